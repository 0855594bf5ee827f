"""The controller's process against a switch of a few lines: readiness, refusals, and its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_switch import FakeSwitch

from controllers.process import ControllerError, ControllerProcess
from controllers.program import write_program
from controllers.schemes import create_scheme
from testbed.topology import Topology

Build = Callable[..., Topology]


@pytest.fixture
def topology(leaf_spine: Build) -> Topology:
    return leaf_spine(leaves=2, spines=1, servers_per_leaf=1)


@pytest.fixture
def controller(tmp_path: Path, topology: Topology) -> Iterator[ControllerProcess]:
    program = tmp_path / "program.json"
    write_program(program, topology, create_scheme("static").entries(topology))
    with ControllerProcess(program, log=tmp_path / "log", listen="127.0.0.1:0") as process:
        yield process


def test_ready_once_every_switch_has_answered(
    controller: ControllerProcess, topology: Topology
) -> None:
    port = controller.wait_listening(20)
    switches = [FakeSwitch(port, node.datapath_id) for node in topology.switches[:2]]
    with pytest.raises(ControllerError, match=r"not ready after 0\.5 s .*leaf1, leaf2"):
        controller.wait_ready(0.5)
    switches.append(FakeSwitch(port, topology.switches[2].datapath_id))
    event = controller.wait_ready(10)
    assert event["switches"] == 3
    assert [e["event"] for e in controller.poll()].count("ready") == 1
    # open, delete, three entries (two for the spine's prefixes), commit
    assert [s.experimenter_messages for s in switches] == [6, 6, 6]


def test_a_switch_that_reconnects_is_programmed_again(
    controller: ControllerProcess, topology: Topology
) -> None:
    port = controller.wait_listening(20)
    switches = [FakeSwitch(port, node.datapath_id) for node in topology.switches]
    controller.wait_ready(10)
    switches[0].stream.shutdown(socket.SHUT_RDWR)
    again = FakeSwitch(port, switches[0].datapath_id)
    deadline = time.monotonic() + 10
    while again.experimenter_messages < 6 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert again.experimenter_messages == 6
    while len(controller.poll()) < 6 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [event["event"] for event in controller.events] == [
        "listening", "installed", "installed", "installed", "ready", "installed",
    ]  # fmt: skip


def test_a_refused_entry_is_reported_in_words(
    controller: ControllerProcess, topology: Topology
) -> None:
    FakeSwitch(controller.wait_listening(20), 1, refuse=2)
    with pytest.raises(ControllerError) as caught:
        controller.wait_ready(10)
    text = str(caught.value)
    assert "leaf1" in text
    assert "OFPET_BAD_ACTION(2), OFPBAC_BAD_OUT_PORT(4)" in text
    assert "'ipv4_dst': '10.1.0.1/32'" in text
    assert all(event["event"] != "installed" for event in controller.poll())


def test_an_unknown_switch_is_reported(controller: ControllerProcess) -> None:
    FakeSwitch(controller.wait_listening(20), 0xBEEF)
    with pytest.raises(ControllerError, match="0xbeef connected; the program knows 0x1, 0x2, 0x3"):
        controller.wait_ready(10)


def test_start_and_stop_may_be_repeated(controller: ControllerProcess) -> None:
    controller.wait_listening(20)
    pid = controller.pid
    controller.start()
    assert controller.pid == pid
    started = time.monotonic()
    controller.stop()
    controller.stop()
    assert time.monotonic() - started < 5
    assert not controller.running
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    controller.start()
    assert controller.wait_listening(20) > 0
    assert controller.pid != pid


def test_a_busy_port_is_one_line_with_its_owner(
    controller: ControllerProcess, tmp_path: Path
) -> None:
    port = controller.wait_listening(20)
    second = ControllerProcess(
        tmp_path / "program.json", log=tmp_path / "second", listen=f"127.0.0.1:{port}"
    )
    with second, pytest.raises(ControllerError) as caught:
        second.wait_ready(20)
    owner = Path(f"/proc/{controller.pid}/comm").read_text().strip()
    assert str(caught.value) == (
        f"controller: port 127.0.0.1:{port} is busy; "
        f"process {controller.pid} ({owner}) listens there"
    )


@pytest.mark.parametrize(
    ("listen", "message"),
    [("6653", "'6653' is not HOST:PORT"), ("127.0.0.1:99999", "not HOST:PORT")],
)
def test_a_bad_address_is_one_line(tmp_path: Path, listen: str, message: str) -> None:
    process = ControllerProcess(tmp_path / "none", log=tmp_path / "log", listen=listen)
    with process, pytest.raises(ControllerError, match=message):
        process.wait_ready(20)


def test_a_missing_program_is_one_line(tmp_path: Path) -> None:
    process = ControllerProcess(tmp_path / "none.json", log=tmp_path / "log")
    with process, pytest.raises(ControllerError, match=r"program .*none\.json: .*No such file"):
        process.wait_ready(20)


def test_the_controller_dies_with_its_parent(tmp_path: Path, controller: ControllerProcess) -> None:
    script = (
        "import sys, time; from pathlib import Path\n"
        "from controllers.process import ControllerProcess\n"
        "c = ControllerProcess(Path(sys.argv[1]), log=Path(sys.argv[2]), listen='127.0.0.1:0')\n"
        "c.start(); c.wait_listening(20); print(c.pid, flush=True); time.sleep(60)\n"
    )
    arguments = [str(tmp_path / "program.json"), str(tmp_path / "orphan")]
    parent = subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 5
    state = Path(f"/proc/{pid}/stat")
    # a zombie is dead too, if nobody has collected it yet
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, "the controller outlived its parent"
        time.sleep(0.01)
