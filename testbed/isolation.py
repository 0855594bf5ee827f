"""The run's own network, mount and PID namespaces.

Everything a run makes (interfaces, qdiscs, BPF objects, Open vSwitch, servers) lives in namespaces
that die with the runner, even by SIGKILL: the child is PID 1 of its PID namespace, the kernel kills
it when its parent dies (PR_SET_PDEATHSIG) and kills everything in the namespace with it. Two runs
cannot see each other, and no packet can reach a real network. Nothing is changed outside.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from testbed.syscalls import die_with_parent, enter_network_namespace

_CLONE_NEWNS = 0x0002_0000
_CLONE_NEWNET = 0x4000_0000
_CLONE_NEWPID = 0x2000_0000
_MS_REC = 16384
_MS_PRIVATE = 1 << 18
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_SI_KERNEL = 0x80  # asm-generic/siginfo.h: the sender of what a terminal sends
_INTERRUPTIONS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

_libc = ctypes.CDLL(None, use_errno=True)


class IsolationError(RuntimeError):
    """This machine does not let the run have namespaces of its own."""


def _check(result: int, what: str) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise IsolationError(f"{what}: {os.strerror(error)}")


def _mount(source: str, target: str, kind: str | None, flags: int) -> None:
    result = _libc.mount(
        source.encode(), target.encode(), kind.encode() if kind else None, flags, None
    )
    _check(result, f"mount {kind or 'private'} on {target}")


@contextmanager
def network_namespace_of(pid: int) -> Iterator[None]:
    """Run the block's system calls in another process's network namespace, then come back."""
    own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        other = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            enter_network_namespace(other)
        finally:
            os.close(other)
        try:
            yield
        finally:
            enter_network_namespace(own)
    finally:
        os.close(own)


def _set_up_namespaces() -> None:
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    hardened = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    _mount("proc", "/proc", "proc", hardened)
    # /sys/class/net shows the network namespace that sysfs was mounted from
    _mount("sysfs", "/sys", "sysfs", hardened)
    # short paths for sockets, gone with the namespace; hides the machine's own daemons
    _mount("tmpfs", "/run", "tmpfs", hardened)


def _bring_up_loopback() -> None:
    from pyroute2 import IPRoute

    with IPRoute() as ip:
        ip.link("set", index=ip.link_lookup(ifname="lo")[0], state="up")
    for scope in ("all", "default"):
        path = Path(f"/proc/sys/net/ipv6/conf/{scope}/disable_ipv6")
        if path.exists():
            path.write_text("1")


def _child(function: Callable[[], int], parent_alive: int, handled: Sequence[int]) -> int:
    try:
        die_with_parent()
    except OSError as error:
        raise IsolationError(error.strerror) from error
    # the parent may have died before prctl took effect: then its end of the pipe is closed
    os.set_blocking(parent_alive, False)
    try:
        if os.read(parent_alive, 1) == b"":
            return 128 + signal.SIGKILL
    except BlockingIOError:  # nothing to read, but it is open
        pass
    for signum in handled:
        signal.signal(signum, _interrupt_once)
    # not earlier: PID 1 never gets a signal that it neither handles nor blocks
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*handled, signal.SIGCHLD))
    _check(_libc.unshare(_CLONE_NEWNS), "unshare")
    _set_up_namespaces()
    _bring_up_loopback()
    # a fabric of many servers needs more descriptors than the usual 1024
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return function()


def _interrupt_once(signum: int, frame: FrameType | None) -> None:
    # what follows, such as the second ^C of someone impatient, must not cut the taking down short
    for later in _INTERRUPTIONS:
        signal.signal(later, signal.SIG_IGN)
    if signum == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + signum)


def run_isolated(function: Callable[[], int]) -> int:
    """Run ``function`` as PID 1 of fresh namespaces and return its status.

    SIGINT reaches the function as KeyboardInterrupt, SIGTERM and SIGHUP as SystemExit, whether sent
    to this process or to its group; one that was ignored (nohup) stays so. Status is 128 + n after
    such an interruption, and after death by signal n. Must be called before any thread is started.
    Raises IsolationError when the kernel refuses (not root, seccomp).
    """
    sys.stdout.flush()
    sys.stderr.flush()
    handled = [s for s in _INTERRUPTIONS if signal.getsignal(s) is not signal.SIG_IGN]
    waited = {*handled, signal.SIGCHLD}
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    problem_read, problem_write = os.pipe()
    alive_read, alive_write = os.pipe()
    try:
        child = _fork_into_namespaces()
        if child == 0:
            os.close(alive_write)
            _run_child(function, alive_read, problem_write, handled)
        status = _wait_forwarding_signals(child, waited)
        os.set_blocking(problem_read, False)
        with contextlib.suppress(BlockingIOError):  # the child had no problem
            if problem := os.read(problem_read, 4096):
                raise IsolationError(problem.decode(errors="replace"))
        return status
    finally:
        for descriptor in (problem_read, problem_write, alive_read, alive_write):
            os.close(descriptor)
        while signal.sigtimedwait(waited, 0) is not None:
            pass  # came too late for the run
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _fork_into_namespaces() -> int:
    """fork(2), the child as PID 1; the caller's own namespaces are as before when it returns."""
    own_pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    own_network = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        # a process forked from here on is PID 1 of the new PID namespace; the caller itself goes
        # back to where it was, so that it can start another run later
        _check(_libc.unshare(_CLONE_NEWPID | _CLONE_NEWNET), "unshare")
        child = os.fork()
        if child:
            _check(_libc.setns(own_network, _CLONE_NEWNET), "setns")
            _check(_libc.setns(own_pid_namespace, _CLONE_NEWPID), "setns")
        return child
    finally:
        os.close(own_network)
        os.close(own_pid_namespace)


def _run_child(
    function: Callable[[], int], parent_alive: int, problem: int, handled: Sequence[int]
) -> NoReturn:
    status = 1
    try:
        status = _child(function, parent_alive, handled)
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else 1
    except IsolationError as error:
        os.write(problem, str(error).encode())
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):  # nobody may be reading any more
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _wait_forwarding_signals(child: int, waited: Collection[int]) -> int:
    while True:
        received = signal.sigwaitinfo(waited)
        if received.si_signo == signal.SIGCHLD:
            pid, wait_status = os.waitpid(child, os.WNOHANG)
            if pid:
                status = os.waitstatus_to_exitcode(wait_status)
                return status if status >= 0 else 128 - status
        elif received.si_code != _SI_KERNEL:
            # a terminal has sent it to the whole foreground group, the child included
            os.kill(child, received.si_signo)
