"""The SDN application: installs a program's entries in the switches. The only sender of messages.

On every connection it replaces the switch's tables in one atomic bundle and asks for a barrier;
when all switches of the program have answered theirs it reports ready. A switch that reconnects, or
a controller that is started again mid-run, repeats this without a packet noticing.
"""

from __future__ import annotations

import json
import logging
import socket
from typing import Any

from controllers import messages, sdn
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


class RoutingApp(sdn.App):  # type: ignore[misc]
    """Keeps the switches of a program programmed."""

    OFP_VERSIONS = [sdn.ofproto_v1_3.OFP_VERSION]  # noqa: RUF012 (the library's interface)

    def __init__(self, *args: Any, program: Program, report: StatusReporter, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._switches = {switch.datapath_id: switch for switch in program.switches}
        self._report = report
        self._installed: set[int] = set()
        self._ready = False
        self._sent: dict[int, dict[int, Entry]] = {}
        """Datapath id -> transaction id -> the entry that was sent under it."""

    @sdn.set_ev_cls(sdn.ofp_event.EventOFPSwitchFeatures, sdn.CONFIG_DISPATCHER)  # type: ignore[untyped-decorator]
    def switch_connected(self, event: Any) -> None:
        """A switch has introduced itself: program it."""
        datapath = event.msg.datapath
        switch = self._switches.get(datapath.id)
        if switch is None:
            self._report(
                "error",
                text=f"a switch with datapath id {datapath.id:#x} connected; "
                f"the program knows {', '.join(f'{known:#x}' for known in self._switches)}",
            )
            return
        self._install(datapath, switch)

    def _install(self, datapath: Any, switch: SwitchProgram) -> None:
        sent: dict[int, Entry] = {}
        self._sent[datapath.id] = sent
        bundle = messages.replace_all(datapath, switch.entries, bundle_id=switch.datapath_id)
        # Between opening and commit: one message that deletes, then one per entry.
        first = len(bundle) - 1 - len(switch.entries)
        for position, message in enumerate(bundle):
            datapath.set_xid(message)
            if 0 <= position - first < len(switch.entries):
                sent[message.xid] = switch.entries[position - first]
            datapath.send_msg(message)
        datapath.send_msg(messages.barrier(datapath))

    @sdn.set_ev_cls(sdn.ofp_event.EventOFPBarrierReply, _ALL_STATES)  # type: ignore[untyped-decorator]
    def barrier_answered(self, event: Any) -> None:
        """A switch has executed everything that was sent before the barrier."""
        switch = self._switches[event.msg.datapath.id]
        if switch.datapath_id not in self._sent:
            return  # its bundle failed; the error has been reported
        self._report("installed", switch=switch.name, entries=len(switch.entries))
        self._installed.add(switch.datapath_id)
        if len(self._installed) == len(self._switches) and not self._ready:
            self._ready = True
            self._report("ready", switches=len(self._switches), library=sdn.name)

    @sdn.set_ev_cls(sdn.ofp_event.EventOFPErrorMsg, _ALL_STATES)  # type: ignore[untyped-decorator]
    def error_received(self, event: Any) -> None:
        """A switch refused something: report what, in words."""
        message = event.msg
        datapath = message.datapath
        switch = self._switches.get(datapath.id)
        entry = self._sent.pop(datapath.id, {}).get(message.xid)
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
