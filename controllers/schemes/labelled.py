"""What schemes with labels share: member tables of 64 slots, and the hash engines' settings.

A leaf's hash engine writes two slots into the label of every packet from a NIC. Tier-2 switches
choose among ports by the second slot, all others by the first; a switch with one port towards the
destination needs no slot. So one label fixes the whole path. A core's choice on the way down
repeats the leaf's on the way up: packets descend by the spine with the number of the one by which
they climbed, so an engine that balances a leaf's uplinks balances these ports as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import ClassVar

from pydantic import Field

from controllers.entries import Entry, GotoTable, LoadRegister, MoveVlanToRegister
from controllers.flows import Flow
from controllers.labels import (
    SLOT_BITS,
    SLOTS,
    LabelMember,
    LabelMode,
    LabelSettings,
    deal_slots,
    label_of,
    make_label,
)
from controllers.routes import LinkState
from controllers.schemes.base import (
    MEMBER_TABLE,
    RoutingScheme,
    RoutingView,
    SchemeParameters,
    route,
    to_switch,
)
from testbed.topology import Interface, Topology

SLOT_REGISTER = 0
GROUP_REGISTER = 1

SECOND_SLOT_TIER = 2

_Slots = frozenset[int]


class LabelParameters(SchemeParameters):
    """What the leaves' engines hash."""

    use_destination_qp: bool = Field(
        True, description="hash the BTH's destination QP besides the 5-tuple"
    )
    hash_seed: int | None = Field(None, ge=0, description="default: the scenario's seed")
    per_switch_seed: bool = Field(
        True,
        description="false gives all leaves and both tiers one seed, and the fabric "
        "hash polarisation",
    )


class LabelledScheme(RoutingScheme):
    """Base of schemes whose leaves put a label on every packet; subclasses say by which mode."""

    parameters_type: ClassVar[type[SchemeParameters]] = LabelParameters
    labelled = True
    mode: ClassVar[LabelMode]

    _view: RoutingView | None = None

    @property
    def flowlet_gap(self) -> float:
        """Seconds of emulated time after which a new slot may be chosen; 0 for every packet."""
        return 0.0

    @property
    def load_aware(self) -> bool:
        """Whether a leaf looks at its queues when it chooses the first slot."""
        return False

    def seeds(self, datapath_id: int) -> tuple[int, int]:
        """The 32-bit seeds of a leaf's first and second slot."""
        seed = self.seed if self.parameters.hash_seed is None else self.parameters.hash_seed
        switch = datapath_id if self.parameters.per_switch_seed else "all"
        digest = blake2b(f"{seed} {switch}".encode(), digest_size=8).digest()
        first, second = int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:], "big")
        return (first, second) if self.parameters.per_switch_seed else (first, first)

    def remote_entries(self, view: RoutingView, switch: str) -> Iterable[Entry]:
        """Prefixes to a port or a group, then the 64 slots of every group."""
        topology = view.topology
        first_bit = SLOT_BITS if topology.nodes[switch].tier == SECOND_SLOT_TIER else 0
        groups: dict[tuple[str, ...], int] = {}
        slots: list[Entry] = []
        for prefix, ports in view.hops[switch].items():
            if len(ports) == 1:
                yield route(topology, switch, prefix, to_switch(topology, ports[0]))
                continue
            dealt = _dealt(view, switch, prefix)
            names = tuple(port.name for port in dealt)
            if names not in groups:
                groups[names] = len(groups) + 1
                slots += _members(topology, groups[names], dealt)
            actions = (
                LoadRegister(GROUP_REGISTER, groups[names]),
                MoveVlanToRegister(SLOT_REGISTER, first_bit, SLOT_BITS),
                GotoTable(MEMBER_TABLE),
            )
            yield route(topology, switch, prefix, actions)
        yield from slots

    def label_settings(
        self, topology: Topology, link_state: LinkState | None = None
    ) -> dict[str, LabelSettings]:
        """Settings of every leaf that has an uplink which is up."""
        view = self._look(topology, link_state)
        settings = {}
        for leaf in topology.prefixes:
            uplinks = view.up_ports[leaf]
            members = tuple(
                LabelMember(port.name, tuple(range(index, SLOTS, len(uplinks))))
                for index, port in enumerate(uplinks)
                if view.link_state.up(port)
            )
            if members:
                seed, upper_seed = self.seeds(topology.nodes[leaf].datapath_id)
                settings[leaf] = LabelSettings(
                    mode=self.mode,
                    seed=seed,
                    upper_seed=upper_seed,
                    use_destination_qp=self.parameters.use_destination_qp,
                    flowlet_gap=self.flowlet_gap,
                    load_aware=self.load_aware,
                    members=members,
                )
        return settings

    def label(self, topology: Topology, switch: str, flow: Flow) -> int | None:
        """The label of a flow in ``hash`` mode; None in the modes in which it varies."""
        if self.mode is not LabelMode.HASH:
            return None
        seed, upper_seed = self.seeds(topology.nodes[switch].datapath_id)
        return label_of(
            flow.five_tuple,
            flow.destination_qp,
            seed=seed,
            upper_seed=upper_seed,
            use_destination_qp=self.parameters.use_destination_qp,
        )

    def possible_labels(
        self, topology: Topology, switch: str, flow: Flow, link_state: LinkState | None = None
    ) -> tuple[int | None, ...]:
        """In ``hash`` mode the flow's label, else one label for each path that there is."""
        if self.mode is LabelMode.HASH:
            return (self.label(topology, switch, flow),)
        view = self._look(topology, link_state)
        nic = topology.nic(topology.rank_of_address(flow.five_tuple.destination_ip))
        prefix = view.destination_of(nic).prefix
        every = frozenset(range(SLOTS))
        return tuple(
            make_label(min(slots), min(upper_slots))
            for slots, upper_slots in _ways(view, switch, prefix, every, every)
        )

    def _look(self, topology: Topology, link_state: LinkState | None) -> RoutingView:
        """A view without flows; kept, because it is asked for once per flow."""
        state = link_state or LinkState()
        view = self._view
        if view is None or view.topology is not topology or view.link_state != state:
            view = self._view = RoutingView.of(topology, (), state)
        return view


def _dealt(view: RoutingView, switch: str, prefix: str) -> list[Interface]:
    """Slot -> port of a switch's member table towards a destination."""
    return deal_slots(view.members(switch, prefix), view.hops[switch][prefix])


def _members(topology: Topology, group: int, dealt: Iterable[Interface]) -> Iterator[Entry]:
    for slot, port in enumerate(dealt):
        match = {f"reg{SLOT_REGISTER}": slot, f"reg{GROUP_REGISTER}": group}
        yield Entry(MEMBER_TABLE, 1, match, to_switch(topology, port))


def _ways(
    view: RoutingView, switch: str, prefix: str, slots: _Slots, upper_slots: _Slots
) -> Iterator[tuple[_Slots, _Slots]]:
    """For every path from a switch to a destination the first and second slots that select it."""
    ports = view.hops[switch].get(prefix, ())
    if not ports:
        yield slots, upper_slots
        return
    if len(ports) == 1:
        yield from _ways(view, ports[0].peer_node, prefix, slots, upper_slots)
        return
    second = view.topology.nodes[switch].tier == SECOND_SLOT_TIER
    dealt = _dealt(view, switch, prefix)
    for port in ports:
        chosen = frozenset(slot for slot, member in enumerate(dealt) if member is port)
        left = (slots, upper_slots & chosen) if second else (slots & chosen, upper_slots)
        if all(left):
            yield from _ways(view, port.peer_node, prefix, *left)
