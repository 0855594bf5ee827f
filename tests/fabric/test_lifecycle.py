"""Runs that are killed, disturbed, doubled or starved: one clear line, and nothing left behind.

Processes are found by a variable in their environment, which all that a run starts inherit, and
are killed by number.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fabric.machine_state import MachineState, children_of, processes_with

pytestmark = [
    pytest.mark.fabric,
    pytest.mark.alone,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: builds fabrics"),
    pytest.mark.timeout(120),
]

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "testbed.cli"]

SHORT: dict[str, Any] = {
    "name": "short",
    "dilation": 20000,
    "topology": {"kind": "leaf-spine", "leaves": 1, "spines": 0, "servers_per_leaf": 2},
    "workload": {"kind": "incast", "message_size": "256 KiB"},
}
"""Sends for 0.1 s of wall time."""

LONG: dict[str, Any] = {
    **SHORT,
    "name": "long",
    "dilation": 1000,
    "topology": {**SHORT["topology"], "link_rate": "10 Gbps"},
    "workload": {"kind": "incast", "message_size": "16 MiB"},
}
"""Sends for 13 s of wall time."""


class Run:
    """A `rocelab` process that writes its progress to a pipe.

    ``wrapper`` is put before its command, and must exec it; ``more`` goes to Popen.
    """

    def __init__(
        self,
        scenario: dict[str, Any],
        folder: Path,
        *options: str,
        wrapper: tuple[str, ...] = (),
        path: str = os.environ["PATH"],
        **more: Any,
    ) -> None:
        self.output = folder / "runs"
        self._mark = f"ROCELAB_TEST={uuid.uuid4()}"
        file = folder / f"{scenario['name']}.yaml"
        file.write_text(yaml.safe_dump(scenario))
        name, _, value = self._mark.partition("=")
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
        self.process = subprocess.Popen(
            [*wrapper, *COMMAND, "run", str(file), "--output", str(self.output), *options],
            cwd=ROOT,
            env={**os.environ, "PATH": path, name: value},
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            **streams,
        )
        self.lines: list[str] = []

    def wait_for(self, stage: str) -> None:
        """Read progress until a stage begins."""
        assert self.process.stderr
        for line in self.process.stderr:
            self.lines.append(line.rstrip())
            if line.rstrip().endswith(stage):
                return
        raise AssertionError(f"ended before {stage}: {self.lines}")

    def finish(self, timeout: float = 60) -> tuple[int, str, list[str]]:
        """Status, standard output, and lines of standard error that are no progress."""
        out, err = self.process.communicate(timeout=timeout)
        lines = [*self.lines, *(err or "").splitlines()]
        return self.process.returncode, out or "", [x for x in lines if x.startswith("rocelab:")]

    @property
    def init(self) -> int:
        """The process that is PID 1 in the run's namespaces, as seen from outside."""
        (pid,) = children_of(self.process.pid)
        return pid

    def child(self, words: str) -> int:
        """The one child of ``init`` whose command has these words."""
        commands = {pid: _command(pid) for pid in children_of(self.init)}
        (pid,) = [pid for pid, command in commands.items() if words in command]
        return pid

    def server(self) -> int:
        """One of the processes forked from ``init`` that are the RDMA NICs of a server."""
        own = _command(self.init)
        return next(pid for pid in children_of(self.init) if _command(pid) == own)

    def left_over(self) -> dict[int, str]:
        """Processes of the run that exist."""
        return processes_with(self._mark)

    def directory(self) -> Path:
        """The run's only directory."""
        (found,) = [path for path in self.output.iterdir() if not path.is_symlink()]
        return found

    def result(self) -> dict[str, Any]:
        """Its result.json."""
        document: dict[str, Any] = json.loads((self.directory() / "result.json").read_text())
        return document


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()


@pytest.fixture
def before() -> Iterator[MachineState]:
    """The machine's state; at the end of the test it must be the same again."""
    state = MachineState.look()
    yield state
    state.assert_unchanged()


@pytest.fixture(autouse=True)
def heeded_signals() -> Iterator[None]:
    """Runs inherit what is ignored, as everything in the background of a script ignores SIGINT."""
    ignored = [
        number
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
        if signal.getsignal(number) is signal.SIG_IGN
    ]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


def assert_gone(run: Run | Terminal) -> None:
    deadline = time.monotonic() + 2
    while left := run.left_over():
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


@pytest.mark.parametrize("stage", ["build", "route", "traffic", "report"])
def test_nothing_survives_kill_9(before, tmp_path, stage) -> None:
    run = Run(SHORT if stage == "report" else LONG, tmp_path)
    run.wait_for(stage)
    time.sleep(0.1)
    assert len(run.left_over()) >= 2
    run.process.kill()
    run.process.wait()
    assert_gone(run)
    before.assert_unchanged()
    assert run.finish()[0] == -signal.SIGKILL


def test_the_death_of_the_inner_process_is_told(before, tmp_path) -> None:
    run = Run(LONG, tmp_path)
    run.wait_for("traffic")
    os.kill(run.init, signal.SIGKILL)
    status, out, errors = run.finish(timeout=5)
    assert (status, out) == (3, "")
    assert errors == [f"rocelab: the run was killed by SIGKILL; logs are in {run.directory()}"]
    assert_gone(run)


@pytest.mark.parametrize("stage", ["build", "traffic"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interruption_is_one_line_and_128_plus_n(before, tmp_path, number, stage) -> None:
    run = Run(LONG, tmp_path)
    run.wait_for(stage)
    # to the process alone at first, then to all of its group and twice, as terminals and shells do
    run.process.send_signal(number)
    if stage == "traffic":
        os.killpg(run.process.pid, number)
        time.sleep(0.05)
        os.killpg(run.process.pid, signal.SIGINT)
    status, out, errors = run.finish(timeout=10)
    assert (status, out) == (128 + number, "")
    assert errors == [f"rocelab: interrupted by {number.name}; logs are in {run.directory()}"]
    assert_gone(run)


def test_nohup_is_obeyed(before, tmp_path) -> None:
    run = Run(SHORT, tmp_path, wrapper=("nohup",))
    run.wait_for("build")
    os.killpg(run.process.pid, signal.SIGHUP)
    status, _, errors = run.finish()
    assert (status, errors) == (0, [])


def test_a_run_works_after_one_was_killed_and_two_at_once_do(before, tmp_path) -> None:
    killed = Run(LONG, tmp_path)
    killed.wait_for("traffic")
    killed.process.kill()
    killed.finish()
    runs = [Run(SHORT, tmp_path, "--json") for _ in range(2)]
    outcomes = [run.finish() for run in runs]
    assert [(status, errors) for status, _, errors in outcomes] == [(0, []), (0, [])]
    directories = {json.loads(out)["directory"] for _, out, _ in outcomes}
    assert len(directories) == 2
    assert {Path(directory).parent for directory in directories} == {tmp_path / "runs"}
    assert str((tmp_path / "runs" / "latest").resolve()) in directories
    for directory in directories:
        result = json.loads((Path(directory) / "result.json").read_text())
        assert result["variants"][0]["metrics"]["verdict"] != "invalid"
        assert result["variants"][0]["metrics"]["failed_flows"] == 0


@pytest.mark.parametrize("victim", ["ovs-vswitchd", "ovsdb-server", "server"])
def test_the_death_of_a_part_ends_the_run(before, tmp_path, victim) -> None:
    run = Run(LONG, tmp_path)
    run.wait_for("traffic")
    time.sleep(0.5)
    os.kill(run.server() if victim == "server" else run.child(victim), signal.SIGKILL)
    status, out, errors = run.finish(timeout=15)
    assert (status, out) == (3, "")
    assert len(errors) == 1
    reason = "its process ended" if victim == "server" else f"{victim} ended with signal SIGKILL"
    assert reason in errors[0]
    assert "Traceback" in (run.directory() / "error.log").read_text()
    assert (run.directory() / "logs" / "ovs-vswitchd.log").stat().st_size > 0
    assert_gone(run)


def test_traffic_goes_on_without_the_controller(before, tmp_path) -> None:
    scenario = {**LONG, "workload": {"kind": "incast", "message_size": "4 MiB"}}
    run = Run(scenario, tmp_path)
    run.wait_for("traffic")
    os.kill(run.child("controllers.launch"), signal.SIGKILL)
    status, _, errors = run.finish()
    assert (status, errors) == (0, [])
    metrics = run.result()["variants"][0]["metrics"]
    assert metrics["failed_flows"] == metrics["dropped_packets"] == metrics["ledger_open"] == 0
    assert metrics["delivered_bytes"] == 4 * 2**20


def test_a_busy_openflow_port_outside_does_not_matter(before, tmp_path) -> None:
    with socket.socket() as busy:
        busy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        busy.bind(("0.0.0.0", 6653))
        busy.listen()
        status, _, errors = Run(SHORT, tmp_path).finish()
    assert (status, errors) == (0, [])


def closed_pipe() -> int:
    """A descriptor whose reader has left, as `| head -0` makes it."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    return write_end


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_run_goes_on_when_its_reader_leaves(before, tmp_path, stream) -> None:
    descriptor = closed_pipe()
    run = Run(SHORT, tmp_path, **{stream: descriptor})
    os.close(descriptor)
    status, out, errors = run.finish()
    assert (status, errors) == (0, [])
    assert ("report.html" in out) == (stream == "stderr")
    assert (run.directory() / "report.html").exists()


def test_a_run_without_standard_streams(before, tmp_path) -> None:
    run = Run(SHORT, tmp_path, wrapper=("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"))
    assert run.finish() == (0, "", [])
    assert (run.directory() / "report.html").exists()


def in_mount_namespace(*commands: str) -> tuple[str, ...]:
    """A wrapper that changes mounts which only the run sees."""
    return ("unshare", "--mount", "sh", "-ec", "; ".join([*commands, 'exec "$@"']), "sh")


def one_error(run: Run) -> tuple[int, str]:
    """Status and the only line that a run without result says; nothing of it may be left."""
    status, out, errors = run.finish()
    assert (out, len(errors)) == ("", 1), errors
    assert_gone(run)
    return status, errors[0]


@pytest.mark.parametrize("size", ["16k", "128k"])
def test_a_full_disk(before, tmp_path, size) -> None:
    (tmp_path / "runs").mkdir()
    mount = f"mount -t tmpfs -o size={size} tmpfs {tmp_path / 'runs'}"
    status, line = one_error(Run(SHORT, tmp_path, wrapper=in_mount_namespace(mount)))
    assert status == 3
    assert "No space left on device" in line


def test_a_read_only_output(before, tmp_path) -> None:
    (tmp_path / "runs").mkdir()
    mount = f"mount -t tmpfs -o ro tmpfs {tmp_path / 'runs'}"
    status, line = one_error(Run(SHORT, tmp_path, wrapper=in_mount_namespace(mount)))
    assert (status, line.split(": ")[-1]) == (2, "Read-only file system")
    assert list((tmp_path / "runs").iterdir()) == []


def test_output_below_run_is_refused(before, tmp_path) -> None:
    status, line = one_error(Run(SHORT, tmp_path, "--output", "/run/rocelab-test"))
    assert (status, "cannot be below /run" in line) == (2, True)
    assert not Path("/run/rocelab-test").exists()


@pytest.mark.parametrize("program", ["/usr/sbin/ovs-vswitchd", "/usr/bin/clang"])
def test_a_missing_program_is_status_4_and_names_its_package(before, tmp_path, program) -> None:
    hide = f"mount --bind /dev/null {program}"
    status, line = one_error(Run(SHORT, tmp_path, wrapper=in_mount_namespace(hide)))
    assert status == 4
    assert f"{Path(program).name} is missing" in line
    assert "sudo apt-get install" in line
    assert not (tmp_path / "runs").exists()


def test_a_path_without_the_directories_of_root_is_enough(before, tmp_path) -> None:
    assert Run(SHORT, tmp_path, path="/usr/bin:/bin").finish()[0] == 0


def test_a_normal_user_is_status_4(before, tmp_path) -> None:
    wrapper = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    tmp_path.chmod(0o777)
    for folder in (tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o755)
    status, line = one_error(Run(SHORT, tmp_path, wrapper=wrapper))
    assert status == 4
    assert line.startswith("rocelab: needs root; run: sudo ")
    assert not (tmp_path / "runs").exists()


class Terminal:
    """A process whose standard streams are a terminal of its own."""

    def __init__(self, command: list[str]) -> None:
        self._mark = f"ROCELAB_TEST={uuid.uuid4()}"
        self._main, terminal = pty.openpty()
        name, _, value = self._mark.partition("=")
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, name: value, "TERM": "xterm", "COLUMNS": "80"},
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(terminal)
        self.seen = ""

    def expect(self, text: str, timeout: float = 30) -> str:
        """Read until ``text`` comes; returns all up to it, and forgets it."""
        deadline = time.monotonic() + timeout
        while text not in self.seen:
            ready, _, _ = select.select([self._main], [], [], deadline - time.monotonic())
            assert ready, f"no {text!r} in {self.seen!r}"
            try:
                self.seen += os.read(self._main, 65536).decode(errors="replace")
            except OSError as error:  # EIO: nobody has it open any more
                raise AssertionError(f"ended without {text!r}: {self.seen!r}") from error
        head, _, self.seen = self.seen.partition(text)
        return head

    def type(self, text: str) -> None:
        """Send what a person types; \\x03 is ^C, \\x04 is ^D."""
        os.write(self._main, text.encode())

    def close(self) -> int:
        """Wait for the end; returns the status."""
        try:
            return self.process.wait(15)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            os.close(self._main)

    def left_over(self) -> dict[int, str]:
        """Processes of it that exist."""
        return processes_with(self._mark)


@pytest.mark.parametrize("end", ["exit\n", "\x04"], ids=["exit", "^D"])
def test_shell(before, tmp_path, end) -> None:
    scenario = tmp_path / "short.yaml"
    scenario.write_text(yaml.safe_dump(SHORT))
    shell = Terminal([*COMMAND, "shell", str(scenario), "--output", str(tmp_path / "runs")])
    prompt = "mininet> "
    shell.expect(prompt)
    # readline prints its prompt before it listens; a ^C in between waits for the next key
    time.sleep(1)
    shell.type("\x03")
    shell.expect(prompt)
    shell.type("server1 ping server2\n")
    shell.expect("icmp_seq=2")
    shell.type("\x03")
    shell.expect(prompt)
    shell.type("server1 ping -c 1 server2\n")
    assert "1 received" in shell.expect(prompt), "^C has stopped what forwards"
    shell.type("net\n")
    assert "leaf1-rank1" in shell.expect(prompt)
    shell.type(end)
    assert shell.close() == 0
    assert_gone(shell)


def test_progress_on_a_terminal(before, tmp_path) -> None:
    scenario = tmp_path / "short.yaml"
    scenario.write_text(yaml.safe_dump(SHORT))
    run = Terminal([*COMMAND, "run", str(scenario), "--output", str(tmp_path / "runs")])
    assert "\x1b[" in run.expect("100%")
    run.expect("report.html")
    assert run.close() == 0


def test_an_interrupted_terminal_is_as_it_was(before, tmp_path) -> None:
    scenario = tmp_path / "long.yaml"
    scenario.write_text(yaml.safe_dump(LONG))
    run = Terminal([*COMMAND, "run", str(scenario), "--output", str(tmp_path / "runs")])
    run.expect("emulated")
    run.type("\x03")
    run.expect("\x1b[?25h")  # the cursor is shown again
    run.expect("rocelab: interrupted by SIGINT")
    assert run.close() == 128 + signal.SIGINT
    assert_gone(run)
