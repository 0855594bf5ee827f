"""The SDN application: keeps the switches at a program's entries. The only sender of messages.

On every connection it stages the switch's entries in a bundle, and commits it when a barrier shows
that none was refused; a second barrier shows that the entries are in force. When all switches of
the program have come so far it reports ready. A switch that reconnects, or a controller that is
started again mid-run, repeats this without a packet noticing.

An update is a new program: each switch gets, in a bundle of the same kind, what differs for it.
"""

from __future__ import annotations

import itertools
import json
import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from controllers import messages, sdn
from controllers.differences import Differences
from controllers.entries import Entry
from controllers.program import Program, SwitchProgram

LOG = logging.getLogger(__name__)

_ALL_STATES = [sdn.HANDSHAKE_DISPATCHER, sdn.CONFIG_DISPATCHER, sdn.MAIN_DISPATCHER]


class StatusReporter:
    """Writes events as JSON lines to a stream socket."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream

    def __call__(self, event: str, **details: Any) -> None:
        """Report an event. A reader that has gone away is logged; the switches do not need it."""
        line = json.dumps({"event": event, **details}, sort_keys=True)
        LOG.info("%s", line)
        try:
            self._stream.sendall(line.encode() + b"\n")
        except OSError as error:
            LOG.warning("status reader is gone: %s", error)


class ProgramChanged(sdn.Event):  # type: ignore[misc]
    """The runner wants the switches to hold another program, which it numbers ``version``."""

    def __init__(self, program: Program, version: int) -> None:
        super().__init__()
        self.program = program
        self.version = version


@dataclass(slots=True)
class Installation:
    """How far a switch has come. Transaction ids tell which message an answer belongs to."""

    datapath: Any
    switch: SwitchProgram
    bundle_id: int
    entries: dict[int, Entry] = field(default_factory=dict)
    staged: int | None = None
    """Transaction id of the barrier after all entries."""
    committed: int | None = None
    """Transaction id of the barrier after the commit."""
    in_force: bool = False


class RoutingApp(sdn.App):  # type: ignore[misc]
    """Keeps the switches of a program programmed."""

    OFP_VERSIONS = [sdn.ofproto_v1_3.OFP_VERSION]  # noqa: RUF012 (the library's interface)

    def __init__(self, *args: Any, program: Program, report: StatusReporter, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._switches = {switch.datapath_id: switch for switch in program.switches}
        self._report = report
        self._installations: dict[int, Installation] = {}
        self._bundles = itertools.count(1)
        self._missing = set(self._switches)
        """Switches that do not hold their entries of the current program yet."""
        self._version = self._reported = 0
        self._ready = False

    @sdn.set_ev_cls(sdn.ofp_event.EventOFPSwitchFeatures, sdn.CONFIG_DISPATCHER)  # type: ignore[untyped-decorator]
    def switch_connected(self, event: Any) -> None:
        """A switch has introduced itself: program it."""
        datapath = event.msg.datapath
        if datapath.id not in self._switches:
            self._report(
                "error",
                text=f"a switch with datapath id {datapath.id:#x} connected; "
                f"the program knows {', '.join(f'{known:#x}' for known in self._switches)}",
            )
            return
        self._stage_all(datapath)

    @sdn.set_ev_cls(ProgramChanged)  # type: ignore[untyped-decorator]
    def program_changed(self, event: ProgramChanged) -> None:
        """Bring every switch from the entries that it holds to those of another program."""
        previous = self._switches
        wanted = {switch.datapath_id: switch for switch in event.program.switches}
        if wanted.keys() != previous.keys():
            self._report("error", text=f"update {event.version} is for other switches")
            return
        self._switches = wanted
        self._version = event.version
        for datapath_id, switch in self._switches.items():
            changes = Differences.between(previous[datapath_id].entries, switch.entries)
            if not changes:
                continue
            self._missing.add(datapath_id)
            installation = self._installations.get(datapath_id)
            if installation is None:
                continue  # it gets all when it connects
            if installation.in_force:
                self._stage_changes(installation.datapath, changes)
            else:
                self._stage_all(installation.datapath)
        self._report_when_all_have_it()

    def _stage_all(self, datapath: Any) -> None:
        switch = self._switches[datapath.id]
        delete = messages.delete_all(datapath)
        adds = [(messages.add(datapath, entry), entry) for entry in switch.entries]
        self._stage(datapath, [(delete, None), *adds])

    def _stage_changes(self, datapath: Any, changes: Differences) -> None:
        new = (*changes.added, *changes.modified)
        steps = [(messages.delete(datapath, entry), entry) for entry in changes.removed]
        steps += [(messages.add(datapath, entry), entry) for entry in new]
        self._stage(datapath, steps)

    def _stage(self, datapath: Any, steps: Sequence[tuple[Any, Entry | None]]) -> None:
        switch = self._switches[datapath.id]
        installation = Installation(datapath, switch, next(self._bundles))
        self._installations[datapath.id] = installation
        self._send(datapath, messages.open_bundle(datapath, installation.bundle_id))
        for message, entry in steps:
            staged = messages.in_bundle(datapath, installation.bundle_id, message)
            xid = self._send(datapath, staged)
            if entry is not None:
                installation.entries[xid] = entry
        installation.staged = self._send(datapath, messages.barrier(datapath))

    @staticmethod
    def _send(datapath: Any, message: Any) -> int:
        datapath.set_xid(message)
        datapath.send_msg(message)
        return int(message.xid)

    @sdn.set_ev_cls(sdn.ofp_event.EventOFPBarrierReply, _ALL_STATES)  # type: ignore[untyped-decorator]
    def barrier_answered(self, event: Any) -> None:
        """A switch has executed everything that was sent before the barrier: next step."""
        message = event.msg
        datapath = message.datapath
        installation = self._installations.get(datapath.id)
        if installation is None:
            return  # refused, and reported
        if message.xid == installation.staged:
            commit = messages.commit_bundle(datapath, installation.bundle_id)
            self._send(datapath, commit)
            installation.committed = self._send(datapath, messages.barrier(datapath))
        elif message.xid == installation.committed:
            installation.in_force = True
            self._in_force(installation.switch)

    def _in_force(self, switch: SwitchProgram) -> None:
        self._report("installed", switch=switch.name, entries=len(switch.entries))
        if switch.entries == self._switches[switch.datapath_id].entries:
            self._missing.discard(switch.datapath_id)
            self._report_when_all_have_it()

    def _report_when_all_have_it(self) -> None:
        if self._missing:
            return
        if not self._ready:
            self._ready = True
            self._report("ready", switches=len(self._switches), library=sdn.name)
        if self._version != self._reported:
            self._reported = self._version
            self._report("updated", version=self._version)

    @sdn.set_ev_cls(sdn.ofp_event.EventOFPErrorMsg, _ALL_STATES)  # type: ignore[untyped-decorator]
    def error_received(self, event: Any) -> None:
        """A switch refused something: leave its tables as they are and report it in words."""
        message = event.msg
        datapath = message.datapath
        installation = self._installations.pop(datapath.id, None)
        entry = None
        if installation is not None:
            entry = installation.entries.get(message.xid)
        if installation is not None and installation.committed is None:
            discard = messages.discard_bundle(datapath, installation.bundle_id)
            self._send(datapath, discard)
        switch = self._switches.get(datapath.id)
        self._report(
            "error",
            switch=switch.name if switch else None,
            text=describe_error(datapath.ofproto, message, entry),
        )


def describe_error(ofproto: Any, message: Any, entry: Entry | None) -> str:
    """An OFPErrorMsg in words: type, code and the entry that caused it, if one did."""
    if message.type == ofproto.OFPET_EXPERIMENTER:
        what = f"experimenter {message.experimenter:#x} error {message.exp_type}"
    else:
        kind = ofproto.ofp_error_type_to_str(message.type)
        code = ofproto.ofp_error_code_to_str(message.type, message.code)
        what = f"{kind}, {code}"
    return f"{what}, caused by {entry}" if entry else what
