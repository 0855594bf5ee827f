"""What this machine can do, what it lacks, and the command that mends it."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

MEMORY_WANTED = 2 * 2**30
"""Bytes; the main job needs about a quarter of it, 64 servers most of it."""

CORES_WANTED = 2

SYSTEM_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
"""Where programs are looked for; `su` without a dash leaves out the directories of root's."""


class State(StrEnum):
    """What became of a check."""

    OK = "ok"
    MISSING = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that is needed: ``purpose`` says what for, ``remedy`` is a command or advice.

    A run cannot do without what is ``critical``.
    """

    name: str
    state: State
    purpose: str
    detail: str = ""
    remedy: str = ""
    critical: bool = True


_PACKAGES = {  # import name: what for
    "mininet": "hosts and links",
    "os_ken": "routing (OpenFlow)",
    "scapy": "packet definitions, captures",
    "pyroute2": "queueing disciplines",
    "numpy": "payload and statistics",
    "pydantic": "scenario files",
    "yaml": "scenario files",
    "rich": "progress and tables",
    "matplotlib": "charts",
    "jinja2": "reports",
}
_DEBIAN_PACKAGES = {"mininet": "mininet"}

_PROGRAMS = {  # program: (what for, Debian package, critical)
    "ovs-vswitchd": ("switches", "openvswitch-switch", True),
    "ovsdb-server": ("switches", "openvswitch-switch", True),
    "ovs-vsctl": ("switches", "openvswitch-switch", True),
    "ovs-ofctl": ("reading flow tables back", "openvswitch-switch", True),
    "ip": ("links and namespaces", "iproute2", True),
    "tc": ("queueing disciplines", "iproute2", True),
    "clang": ("compiling BPF programs", "clang", True),
    "mnexec": ("Mininet's hosts", "mininet", True),
    "ethtool": ("showing offloads", "ethtool", False),
    "tcpdump": ("pcap files", "tcpdump", False),
    "tshark": ("decoding pcap files", "tshark", False),
    "iperf3": ("TCP between servers", "iperf3", False),
    "ping": ("reachability of servers", "iputils-ping", False),
}

_BPF_TOOLS = frozenset({"clang", "libbpf.so.1", "bpf_helpers.h"})
_BPF_FEATURES = frozenset({"bpf", "cls_bpf", "xdp"})
"""Features of the kernel that cannot be tried without ``_BPF_TOOLS``."""


def critical_problems() -> list[str]:
    """What makes a run impossible, one line each, without trying the kernel; takes milliseconds."""
    checks = [_root(), *_packages(), *_programs(), _libbpf(), _bpf_headers()]
    return [
        f"{check.name} is missing ({check.purpose}): {check.remedy}"
        for check in checks
        if check.critical and check.state is State.MISSING
    ]


def examine() -> list[Check]:
    """Every check. As root the kernel's features are tried in throwaway namespaces."""
    return [
        _root(),
        *_packages(),
        *_programs(),
        _bpf_target(),
        _libbpf(),
        _bpf_headers(),
        *_kernel(),
        _memory(),
        _cores(),
        _working_directory(),
    ]


def _root() -> Check:
    purpose = "namespaces, interfaces, BPF"
    if os.geteuid() == 0:
        return Check("root", State.OK, purpose)
    return Check("root", State.MISSING, purpose, remedy="run it with sudo")


def _packages() -> Iterator[Check]:
    for module, purpose in _PACKAGES.items():
        name = f"Python {module}"
        if importlib.util.find_spec(module) is not None:
            yield Check(name, State.OK, purpose)
        else:
            package = _DEBIAN_PACKAGES.get(module)
            remedy = _apt(package) if package else "sudo make setup"
            yield Check(name, State.MISSING, purpose, remedy=remedy)


def _programs() -> Iterator[Check]:
    for program, (purpose, package, critical) in _PROGRAMS.items():
        path = shutil.which(program, path=SYSTEM_PATH)
        state = State.OK if path else State.MISSING
        remedy = "" if path else _apt(package)
        yield Check(program, state, purpose, path or "", remedy, critical)


def _bpf_target() -> Check:
    name, purpose = "clang target bpf", "compiling BPF programs"
    clang = shutil.which("clang", path=SYSTEM_PATH)
    if clang is None:
        return Check(name, State.UNKNOWN, purpose, "no clang")
    listing = subprocess.run(
        [clang, "--print-targets"], capture_output=True, text=True, check=False
    )
    if " bpf " in listing.stdout:
        return Check(name, State.OK, purpose)
    return Check(name, State.MISSING, purpose, remedy=_apt("clang"))


def _libbpf() -> Check:
    purpose = "loading BPF programs"
    try:
        ctypes.CDLL("libbpf.so.1")
    except OSError as error:
        return Check("libbpf.so.1", State.MISSING, purpose, str(error), _apt("libbpf-dev"))
    return Check("libbpf.so.1", State.OK, purpose)


def _bpf_headers() -> Check:
    header = Path("/usr/include/bpf/bpf_helpers.h")
    state = State.OK if header.exists() else State.MISSING
    remedy = "" if state is State.OK else _apt("libbpf-dev")
    return Check("bpf_helpers.h", state, "compiling BPF programs", str(header), remedy)


def _kernel() -> Iterator[Check]:
    from testbed.kernel_probe import FEATURES, probe

    if os.geteuid() != 0:
        for name, purpose in FEATURES.items():
            yield Check(name, State.UNKNOWN, purpose, "tried only as root")
        return
    results = probe()
    tools = [check for check in (*_programs(), _libbpf(), _bpf_headers()) if check.critical]
    lacking = [c.name for c in tools if c.name in _BPF_TOOLS and c.state is State.MISSING]
    remedy = f"another kernel (this is {os.uname().release}), or a VM: vagrant up"
    for name, purpose in FEATURES.items():
        problem = results.get(name, "not tried")
        if problem is None:
            yield Check(name, State.OK, purpose)
        elif lacking and name in _BPF_FEATURES:
            yield Check(name, State.UNKNOWN, purpose, f"not tried without {lacking[0]}")
        elif problem == "not tried":
            yield Check(name, State.UNKNOWN, purpose, problem)
        else:
            yield Check(name, State.MISSING, purpose, problem, remedy)


def _memory() -> Check:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    state = State.OK if total >= MEMORY_WANTED else State.MISSING
    remedy = "" if state is State.OK else f"give the machine {MEMORY_WANTED / 2**30:.0f} GiB"
    detail = f"{total / 2**30:.1f} GiB"
    return Check("memory", state, "servers and reports", detail, remedy, critical=False)


def _cores() -> Check:
    count = len(os.sched_getaffinity(0))
    state = State.OK if count >= CORES_WANTED else State.MISSING
    remedy = (
        "" if state is State.OK else f"give the machine {CORES_WANTED} cores, or --dilation more"
    )
    return Check("cores", state, "keeping up", str(count), remedy, critical=False)


def _working_directory() -> Check:
    here = Path.cwd()
    purpose = "the default place of results"
    if os.access(here, os.W_OK):
        return Check("writable directory", State.OK, purpose, str(here), critical=False)
    remedy = "change directory, or use --output"
    return Check("writable directory", State.MISSING, purpose, str(here), remedy, critical=False)


def _apt(package: str) -> str:
    return f"sudo apt-get install {package}"
