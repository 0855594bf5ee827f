"""Tries, in namespaces that vanish afterwards, the kernel features that a run is built from."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

FEATURES = {
    "namespaces": "a run of its own",
    "veth": "links",
    "htb": "link rates",
    "tbf": "pausable queues",
    "pfifo": "queues",
    "clsact": "attaching BPF programs",
    "bpf": "buffer management",
    "cls_bpf": "buffer management",
    "xdp": "leaves' hash engines",
}
"""Feature -> what it is for, in the order in which they are tried."""

_BPF_PROGRAM = """
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(map_flags, BPF_F_MMAPABLE);
         __uint(max_entries, 1); __type(key, __u32); __type(value, __u64); } counter SEC(".maps");
SEC("tc") int admit(struct __sk_buff *packet) { return 0; }
char terms[] SEC("license") = "GPL";
"""

_XDP_PROGRAM = """
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
static long look(__u32 step, void *context) { return 0; }
SEC("xdp") int label(struct xdp_md *packet) {
    bpf_loop(packet->rx_queue_index, look, 0, 0);
    return XDP_PASS;
}
char terms[] SEC("license") = "GPL";
"""
"""With bpf_loop, the newest helper in use: Linux 5.17."""

_CLSACT_EGRESS = 0xFFFF_FFF3
"""TC_H_CLSACT with TC_H_MIN_EGRESS (linux/pkt_sched.h)."""


def probe() -> dict[str, str | None]:
    """Feature -> None if it works, else the reason. What was not reached is left out.

    Needs root.
    """
    from testbed.isolation import IsolationError, run_isolated

    read_end, write_end = os.pipe()
    try:
        run_isolated(lambda: _report(write_end))
    except IsolationError as error:
        os.close(write_end)
        os.close(read_end)
        return {"namespaces": str(error)}
    os.close(write_end)
    with os.fdopen(read_end, encoding="utf-8") as pipe:
        return {"namespaces": None, **dict(json.loads(line) for line in pipe)}


def _report(descriptor: int) -> int:
    """Try every feature inside the namespaces; write one JSON line each."""
    from pyroute2 import IPRoute

    with IPRoute() as ip, tempfile.TemporaryDirectory() as folder:
        for name, attempt in _attempts(ip, Path(folder)).items():
            problem: str | None = None
            try:
                attempt()
            except Exception as error:
                # whatever the reason is, it is the answer: each feature fails in its own way
                problem = str(error) or type(error).__name__
            os.write(descriptor, (json.dumps([name, problem]) + "\n").encode())
    return 0


def _attempts(route: Any, folder: Path) -> dict[str, Callable[[], object]]:
    from testbed.asic.bpf import BpfObject, XdpMode, attach_xdp, compile_bpf

    loaded: dict[str, BpfObject] = {}

    def index() -> int:
        return int(route.link_lookup(ifname="probe0")[0])

    def built(name: str, text: str) -> BpfObject:
        source, output = folder / f"{name}.bpf.c", folder / f"{name}.bpf.o"
        source.write_text(text, encoding="utf-8")
        compile_bpf(source, output)
        return BpfObject(output)

    def load() -> None:
        loaded["probe"] = built("probe", _BPF_PROGRAM)

    def label() -> None:
        loaded["label"] = built("label", _XDP_PROGRAM)
        attach_xdp(index(), loaded["label"].program("label"), XdpMode.GENERIC)

    def attach() -> None:
        if "probe" not in loaded:
            raise RuntimeError("there is no program to attach")
        route.tc(
            "add-filter",
            "bpf",
            index(),
            parent=_CLSACT_EGRESS,
            prio=1,
            fd=loaded["probe"].program("admit"),
            name="admit",
            direct_action=True,
        )

    return {
        "veth": lambda: route.link("add", ifname="probe0", kind="veth", peer="probe1"),
        "htb": lambda: route.tc("add", "htb", index(), handle=0x10000, default=1),
        "tbf": lambda: route.tc(
            "replace", "tbf", index(), handle=0x20000, rate="1mbit", burst=10000, latency="1s"
        ),
        "pfifo": lambda: route.tc("replace", "pfifo", index(), handle=0x30000, limit=10),
        "clsact": lambda: route.tc("add", "clsact", index()),
        "bpf": load,
        "cls_bpf": attach,
        "xdp": label,
    }
