"""OpenFlow 1.3 messages, Nicira extensions included, made from entries. Builds; sends nothing."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any

from controllers import sdn
from controllers.entries import (
    Action,
    DecrementTtl,
    Drop,
    Entry,
    GotoTable,
    HashAlgorithm,
    HashFields,
    LoadRegister,
    MatchValue,
    MoveVlanToRegister,
    Multipath,
    Output,
    PopVlan,
    SetEthDst,
    SetEthSrc,
    value_and_mask,
)

_HASH_FIELDS = {HashFields.SYMMETRIC_L3L4: 2, HashFields.SYMMETRIC_L3L4_UDP: 3}
"""enum nx_hash_fields, include/openflow/nicira-ext.h; the libraries know only the older 0 and 1."""
_HASH_ALGORITHMS = {HashAlgorithm.MODULO_N: 0, HashAlgorithm.HASH_THRESHOLD: 1}
"""enum nx_mp_algorithm of the same file."""

_LINK_BITS = 16
"""A link number is 16 bits wide (max_link of struct nx_action_multipath)."""


def match(datapath: Any, fields: Mapping[str, MatchValue]) -> Any:
    """An OFPMatch; prefixes and masked numbers become value and mask."""
    return datapath.ofproto_parser.OFPMatch(
        **{name: _masked(value) for name, value in fields.items()}
    )


def _masked(value: MatchValue) -> MatchValue | tuple[str, str] | tuple[int, int]:
    if isinstance(value, str) and "/" in value:
        if value.startswith("0x"):
            return value_and_mask(value)
        network = ipaddress.IPv4Network(value)
        if network.prefixlen == network.max_prefixlen:
            return str(network.network_address)
        return str(network.network_address), str(network.netmask)
    return value


def action(datapath: Any, step: Action) -> Any:
    """One OFPAction. Raises ValueError for what is not an action but an instruction."""
    parser = datapath.ofproto_parser
    match step:
        case DecrementTtl():
            return parser.OFPActionDecNwTtl()
        case SetEthSrc(mac):
            return parser.OFPActionSetField(eth_src=mac)
        case SetEthDst(mac):
            return parser.OFPActionSetField(eth_dst=mac)
        case PopVlan():
            return parser.OFPActionPopVlan()
        case MoveVlanToRegister(register, first_bit, bits):
            return parser.NXActionRegMove(
                src_field="vlan_vid", dst_field=f"reg{register}", n_bits=bits, src_ofs=first_bit
            )
        case LoadRegister(register, value):
            return parser.OFPActionSetField(**{f"reg{register}": value})
        case Output(port):
            return parser.OFPActionOutput(port)
        case Multipath():
            return parser.NXActionMultipath(
                fields=_HASH_FIELDS[step.fields],
                basis=step.basis,
                algorithm=_HASH_ALGORITHMS[step.algorithm],
                max_link=step.links - 1,
                arg=0,
                ofs_nbits=sdn.nicira_ext.ofs_nbits(0, _LINK_BITS - 1),
                dst=f"reg{step.register}",
            )
    raise ValueError(f"{step} is not an action")


def instructions(datapath: Any, actions: Iterable[Action]) -> list[Any]:
    """The instructions of an entry; none at all means drop."""
    parser = datapath.ofproto_parser
    apply = [action(datapath, step) for step in actions if not isinstance(step, Drop | GotoTable)]
    made = []
    if apply:
        made.append(parser.OFPInstructionActions(datapath.ofproto.OFPIT_APPLY_ACTIONS, apply))
    made += [parser.OFPInstructionGotoTable(s.table) for s in actions if isinstance(s, GotoTable)]
    return made


def add(datapath: Any, entry: Entry) -> Any:
    """An OFPFlowMod that adds an entry, in place of the one with the same match and priority."""
    made = instructions(datapath, entry.actions)
    return _change(datapath, datapath.ofproto.OFPFC_ADD, entry, instructions=made)


def delete(datapath: Any, entry: Entry) -> Any:
    """An OFPFlowMod that removes exactly this entry."""
    return _change(datapath, datapath.ofproto.OFPFC_DELETE_STRICT, entry)


def _change(datapath: Any, command: int, entry: Entry, **more: Any) -> Any:
    return _flow_mod(
        datapath,
        command,
        table_id=entry.table,
        priority=entry.priority,
        match=match(datapath, entry.match),
        **more,
    )


def delete_all(datapath: Any) -> Any:
    """An OFPFlowMod that empties every table."""
    ofproto = datapath.ofproto
    return _flow_mod(datapath, ofproto.OFPFC_DELETE, table_id=ofproto.OFPTT_ALL)


def _flow_mod(datapath: Any, command: int, **fields: Any) -> Any:
    """A change of tables whatever port or group an entry leads to."""
    ofproto = datapath.ofproto
    return datapath.ofproto_parser.OFPFlowMod(
        datapath,
        command=command,
        out_port=ofproto.OFPP_ANY,
        out_group=ofproto.OFPG_ANY,
        **fields,
    )


def _bundle_flags(datapath: Any) -> int:
    return int(datapath.ofproto.ONF_BF_ATOMIC | datapath.ofproto.ONF_BF_ORDERED)


def _bundle_control(datapath: Any, bundle_id: int, kind: int) -> Any:
    parser = datapath.ofproto_parser
    return parser.ONFBundleCtrlMsg(datapath, bundle_id, kind, _bundle_flags(datapath), [])


def open_bundle(datapath: Any, bundle_id: int) -> Any:
    """Open a bundle: OpenFlow 1.4's, as the ONF's extension EXT-230 brings it to 1.3.

    What is put in it takes effect all at once when it is committed; packets meet either the old
    tables or the new, never a gap.
    """
    return _bundle_control(datapath, bundle_id, datapath.ofproto.ONF_BCT_OPEN_REQUEST)


def in_bundle(datapath: Any, bundle_id: int, message: Any) -> Any:
    """Put a message in an open bundle.

    A message that the switch cannot read is left out of the bundle with an error, and what is left
    can still be committed: look for errors before ``commit_bundle``.
    """
    flags = _bundle_flags(datapath)
    return datapath.ofproto_parser.ONFBundleAddMsg(datapath, bundle_id, flags, message, [])


def commit_bundle(datapath: Any, bundle_id: int) -> Any:
    """Apply all messages of a bundle, or none."""
    return _bundle_control(datapath, bundle_id, datapath.ofproto.ONF_BCT_COMMIT_REQUEST)


def discard_bundle(datapath: Any, bundle_id: int) -> Any:
    """Forget a bundle."""
    return _bundle_control(datapath, bundle_id, datapath.ofproto.ONF_BCT_DISCARD_REQUEST)


def barrier(datapath: Any) -> Any:
    """An OFPBarrierRequest."""
    return datapath.ofproto_parser.OFPBarrierRequest(datapath)
