"""The command line: one line and the right status for every mistake, and quick help."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest
from synthetic import run_result

from testbed import cli, doctor, isolation, launching
from testbed.options import create_run_directory, give_to_caller_of_sudo, point_latest_at
from testbed.results import write_result

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def invoke(capsys, monkeypatch, tmp_path):
    """Run a command line in an empty directory, as a root whose machine has everything."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(doctor, "critical_problems", list)

    def run(*arguments: str) -> tuple[int, str, str]:
        status = cli.invoke(arguments)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def isolated(monkeypatch):
    """Stands in for the namespaces: calls are recorded, the run itself is given by the test."""
    calls = []

    def use(action):
        def run_isolated(function):
            calls.append(function)
            return action()

        monkeypatch.setattr(isolation, "run_isolated", run_isolated)
        return calls

    return use


def one_line(text: str) -> bool:
    return text.count("\n") == 1 and text.startswith("rocelab: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "Missing argument"),
        (["fly"], "No such command 'fly'"),
        (["run", "incast", "--sett", "a=b"], "No such option"),
        (["run", "incst"], "did you mean 'incast'"),
        (["run", "incast", "--dilation", "0"], "dilation: 0 must be"),
        (["run", "incast", "--dilation", "fast"], "dilation: 'fast' is neither"),
        (["run", "incast", "--set", "nic.timout=3"], "nic.timout: unknown field"),
        (["run", "incast", "--set", "workload.message_size=-1"], "must not be negative"),
        (["run", "incast", "--set", "routing.scheme=best"], "routing.scheme: 'best' is not known"),
        (["run", "incast", "--set", "topology.servers_per_leaf=300"], "at most 256"),
        (["run", "incast", "--pcap", "eth0"], "capture.0: 'eth0' is no interface"),
        (["run", "incast", "--variant", "gbn"], "--variant gbn: no such variant"),
        (["run", "."], ".: cannot be read: Is a directory"),
        (["plan", "incast", "--set", "x"], "write it as FIELD=VALUE"),
        (["report", "."], "no such file"),
        (["coll"], "Missing argument"),
        (["coll", "all-reduse"], "OPERATION: 'all-reduse'; did you mean 'all-reduce'"),
        (["coll", "all-reduce", "--min", "8Q"], "--min: '8Q' has no known unit"),
        (["coll", "all-reduce", "--min", "8K", "--max", "4K"], "--min: 8192 bytes is more than"),
        (["coll", "all-reduce", "--factor", "1"], "--factor: 1; allowed: more than 1"),
        (["coll", "all-reduce", "--sizes", "8K,", "--quiet"], "--sizes: '' is not a size"),
        (["coll", "all-reduce", "--sizes", "8K", "--max", "9K"], "--max goes without --sizes"),
        (["coll", "all-reduce", "--algorithm", "ring,tree"], "--algorithm: 'tree'; allowed: auto"),
        (["coll", "all-reduce", "--dtype", "double"], "--dtype: 'double'"),
        (["coll", "all-reduce", "incst"], "did you mean 'incast'"),
        (["coll", "all-reduce", "incast", "--topology", "hpn"], "--topology goes without a"),
        (["coll", "all-reduce", "--topology", "torus"], "topology.kind: 'torus' is not known"),
        (["coll", "all-reduce", "--iterations", "0"], "Invalid value for '--iterations'"),
        (["coll", "all-reduce", "--dilation", "0"], "dilation: 0 must be"),
    ],
)
def test_mistakes_are_one_line_and_status_2(invoke, isolated, arguments, message, tmp_path) -> None:
    calls = isolated(lambda: 0)
    status, out, err = invoke(*arguments)
    assert status == 2
    assert out == ""
    assert one_line(err), err
    assert message in err
    assert calls == []
    assert list(tmp_path.iterdir()) == []


def test_a_yaml_bomb_is_status_2(invoke, isolated, tmp_path) -> None:
    calls = isolated(lambda: 0)
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    (tmp_path / "bomb.yaml").write_text("\n".join(["a0: &a0 x", *levels]))
    status, _, err = invoke("run", "bomb.yaml")
    assert (status, one_line(err), calls) == (2, True, [])
    assert "through its aliases" in err


def test_a_normal_user_is_told_the_command(invoke, isolated, monkeypatch, tmp_path) -> None:
    calls = isolated(lambda: 0)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["/venv/bin/rocelab", "run", "incast", "--set", "seed=2"])
    status, _, err = invoke("run", "incast", "--set", "seed=2")
    assert status == 4
    assert err == "rocelab: needs root; run: sudo /venv/bin/rocelab run incast --set seed=2\n"
    assert calls == [] and list(tmp_path.iterdir()) == []


def test_a_normal_user_hears_of_a_bad_scenario_first(invoke, monkeypatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert invoke("run", "incast", "--dilation", "0")[0] == 2


def test_a_machine_that_lacks_something_is_status_4(invoke, isolated, monkeypatch) -> None:
    calls = isolated(lambda: 0)
    monkeypatch.setattr(doctor, "critical_problems", lambda: ["clang is missing", "tc is missing"])
    status, _, err = invoke("run", "incast")
    assert (status, calls) == (4, [])
    assert err == "rocelab: clang is missing (and 1 more; see: rocelab doctor)\n"


def test_a_fabric_that_is_too_large_to_emulate_is_status_2(invoke, isolated) -> None:
    calls = isolated(lambda: 0)
    large = (
        "topology={kind: rail-optimised, pods: 6, servers_per_pod: 11, gpus_per_server: 16, "
        "spines: 32}"
    )
    status, out, err = invoke("run", "incast", "--set", large)
    assert (status, out, one_line(err), calls) == (2, "", True, [])
    # 1056 NICs, and 96 leaves with 32 links each
    assert "the fabric of go-back-n has 8256 interfaces; allowed: at most 8192" in err


def test_payload_that_does_not_fit_into_memory_is_status_4(invoke, isolated, monkeypatch) -> None:
    calls = isolated(lambda: 0)
    sizes = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 2**18}  # 1 GiB
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
    size = ("--set", "workload.messages=1", "--set", "workload.message_size=128 MiB")
    status, out, err = invoke("run", "incast-long", *size)
    assert (status, out, one_line(err), calls) == (4, "", True, [])
    assert "the ranks of go-back-n need 1.8 GiB of memory" in err
    assert "this machine has 1.0 GiB in all" in err
    assert invoke("run", "incast-long", *size, "--set", "workload.senders=2", "--quiet")[0] == 0
    status, _, err = invoke("coll", "all_reduce", "--max", "64M")
    assert (status, one_line(err)) == (4, True)
    assert "the ranks of auto-" in err


def test_no_namespaces_is_status_4_and_leaves_no_directory(invoke, isolated, tmp_path) -> None:
    def refuse() -> int:
        raise isolation.IsolationError("unshare: Operation not permitted")

    isolated(refuse)
    status, _, err = invoke("run", "incast")
    assert status == 4
    assert "Operation not permitted" in err and one_line(err)
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize("output", ["file", "/proc/nowhere", "/sys/kernel"])
def test_output_that_cannot_be_written_is_status_2(invoke, isolated, tmp_path, output) -> None:
    calls = isolated(lambda: 0)
    (tmp_path / "file").write_text("")
    status, _, err = invoke("run", "incast", "--output", output)
    assert (status, one_line(err), calls) == (2, True, [])
    assert f"--output {output}: cannot be written to" in err


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: gives files away")
def test_results_belong_to_the_caller_of_sudo(tmp_path, monkeypatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("not a result")
    monkeypatch.setenv("SUDO_UID", "1234")
    monkeypatch.setenv("SUDO_GID", "2345")
    directory = create_run_directory(tmp_path / "runs", "incast", datetime(2026, 1, 2))
    (directory / "logs").mkdir()
    (directory / "logs" / "ovs.log").write_text("")
    (directory / "link").symlink_to(elsewhere)
    give_to_caller_of_sudo(directory)
    given = [tmp_path / "runs", directory, *directory.rglob("*")]
    assert len(given) == 5
    assert {(p.lstat().st_uid, p.lstat().st_gid) for p in given} == {(1234, 2345)}
    assert elsewhere.stat().st_uid == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: gives files away")
def test_what_plan_writes_belongs_to_the_caller_of_sudo(invoke, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SUDO_UID", "1234")
    monkeypatch.setenv("SUDO_GID", "2345")
    drawn, exported = tmp_path / "a.svg", tmp_path / "a.txt"
    status, out, _ = invoke("plan", "incast", "--draw", drawn, "--export-topology", exported)
    assert (status, out.split()[-2:]) == (0, [str(drawn), str(exported)])
    assert {(p.stat().st_uid, p.stat().st_gid) for p in (drawn, exported)} == {(1234, 2345)}


def test_without_sudo_results_stay_as_they_are(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("SUDO_UID", raising=False)
    give_to_caller_of_sudo(tmp_path)
    assert tmp_path.stat().st_uid == os.geteuid()


def test_latest_is_a_link_that_moves_on(tmp_path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        point_latest_at(tmp_path / name)
    assert (tmp_path / "latest").readlink() == Path("b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "latest"]


def test_latest_spares_what_is_no_link(tmp_path) -> None:
    (tmp_path / "latest").write_text("mine")
    (tmp_path / "a").mkdir()
    point_latest_at(tmp_path / "a")
    assert (tmp_path / "latest").read_text() == "mine"


def run_that_writes(tmp_path: Path, status: int):
    def action() -> int:
        (directory,) = (tmp_path / "runs").iterdir()
        write_result(directory, run_result(packets=32))
        return status

    return action


def test_outcome_on_the_terminal(invoke, isolated, tmp_path) -> None:
    isolated(run_that_writes(tmp_path, 1))
    status, out, err = invoke("run", "incast")
    assert (status, err) == (1, "")
    assert "go-back-n" in out and "selective-repeat" in out
    assert "max_queue_depth <= 300 KB" in out and "report.html" in out
    table = [line for line in out.splitlines() if not line.startswith("report ")]
    assert max(map(len, table)) <= 80
    assert "\x1b" not in out, "colours go to terminals only"


def test_outcome_in_one_line(invoke, isolated, tmp_path) -> None:
    isolated(run_that_writes(tmp_path, 1))
    status, out, _ = invoke("run", "incast", "--quiet")
    assert status == 1
    assert out.count("\n") == 1
    assert (tmp_path / "runs" / "latest" / "result.json").exists()
    assert "expectation failed: max_queue_depth <= 300 KB" in out


def test_outcome_as_json(invoke, isolated, tmp_path) -> None:
    isolated(run_that_writes(tmp_path, 0))
    status, out, err = invoke("run", "incast", "--json")
    document = json.loads(out)
    assert (status, err, document["status"]) == (0, "", 0)
    assert set(document["variants"]) == {"go-back-n", "selective-repeat"}
    assert document["variants"]["go-back-n"]["dropped_packets"] > 0
    assert Path(document["directory"]).is_dir()


@pytest.mark.parametrize("status", [0, 1, 3, 4, 130])
def test_the_status_of_the_run_is_returned(invoke, isolated, status: int) -> None:
    isolated(lambda: status)
    assert invoke("run", "incast", "--quiet")[0] == status


def test_an_unforeseen_error_is_one_line_a_log_and_status_3(
    invoke, isolated, tmp_path, capsys
) -> None:
    with pytest.raises(SystemExit) as caught, launching.errors_logged(tmp_path):
        raise RuntimeError("boom")
    assert "RuntimeError: boom" in capsys.readouterr().err
    assert "Traceback" in (tmp_path / "error.log").read_text()
    isolated(lambda: caught.value.code)
    assert invoke("run", "incast") == (3, "", "")


@pytest.mark.parametrize(
    ("ended_by", "status", "message"),
    [(2, 130, "interrupted by SIGINT"), (15, 143, "interrupted by SIGTERM"), (9, 3, "SIGKILL")],
)
def test_the_end_by_a_signal_is_told(invoke, isolated, ended_by, status, message) -> None:
    isolated(lambda: 128 + ended_by)
    actual, out, err = invoke("run", "incast")
    assert (actual, out, one_line(err)) == (status, "", True)
    assert message in err


def test_an_error_on_a_full_disk_is_still_one_line(tmp_path, capsys) -> None:
    (tmp_path / "error.log").mkdir()  # cannot be written either
    with pytest.raises(SystemExit), launching.errors_logged(tmp_path):
        raise OSError(28, "No space left on device")
    message = capsys.readouterr().err
    assert one_line(message) and "No space left" in message and "Is a directory" in message


def test_plan_needs_no_root_and_fits_80_columns(invoke, monkeypatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    status, out, err = invoke("plan", "incast", "--dilation", "6000")
    assert (status, err) == (0, "")
    assert "dilation 6000" in out
    assert max(map(len, out.splitlines())) <= 80


def test_list_names_everything_within_80_columns(invoke) -> None:
    status, out, _ = invoke("list")
    assert status == 0
    for name in ("incast", "permutation", "leaf-spine", "ecmp", "ring-all-reduce", "go-back-n"):
        assert name in out
    assert "cannot be run" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_report_is_rebuilt(invoke, tmp_path) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    write_result(directory, run_result(packets=32))
    status, out, _ = invoke("report", "run")
    assert status == 0
    assert out.strip() == "run/report.html"
    assert (directory / "report.html").stat().st_size > 1000


def test_no_arguments_show_help(invoke) -> None:
    status, out, _ = invoke()
    assert status == 0
    assert "run" in out and "doctor" in out


def test_help_is_quick() -> None:
    command = [sys.executable, "-m", "testbed.cli", "--help"]
    best = 9.0
    for _ in range(3):
        started = time.monotonic()
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
        best = min(best, time.monotonic() - started)
    assert best < 0.5


def test_run_directories_never_collide(tmp_path) -> None:
    from datetime import datetime

    now = datetime(2025, 3, 14, 9, 26, 53)
    names = [create_run_directory(tmp_path, "incast", now).name for _ in range(3)]
    assert names == [f"20250314-092653-incast{suffix}" for suffix in ("", "-2", "-3")]
