"""Progress reporters: what is said where."""

from __future__ import annotations

import io

import pytest

from testbed import progress
from testbed.progress import (
    LiveProgress,
    PlainProgress,
    ProgressReporter,
    QuietProgress,
    Stage,
    create_progress,
    format_time,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def tell(reporter: ProgressReporter) -> None:
    with reporter:
        reporter.stage(Stage.LOAD)
        for number, name in enumerate(("go-back-n", "selective-repeat"), start=1):
            reporter.variant(name, number=number, count=2)
            reporter.stage(Stage.TRAFFIC)
            reporter.note(f"dilation {number}000")
            reporter.update(fraction=0.5, emulated=3e-4, wall=1.5)
            reporter.update(fraction=1.7, emulated=6e-4, wall=3.0)
        reporter.stage(Stage.REPORT)


def test_the_stream_decides() -> None:
    assert type(create_progress(io.StringIO(), quiet=False)) is PlainProgress
    assert type(create_progress(Terminal(), quiet=False)) is LiveProgress
    assert type(create_progress(Terminal(), quiet=True)) is QuietProgress


def test_plain_lines(monkeypatch) -> None:
    monkeypatch.setattr(progress, "PLAIN_INTERVAL", 0.0)
    stream = io.StringIO()
    tell(PlainProgress(stream))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "load"
    assert "go-back-n (1/2) traffic" in lines
    assert "go-back-n (1/2) traffic 50%, emulated 300 us, wall 2 s" in lines
    assert "selective-repeat (2/2) dilation 2000" in lines
    assert "\x1b" not in stream.getvalue()


def test_plain_lines_are_rare() -> None:
    stream = io.StringIO()
    reporter = PlainProgress(stream)
    reporter.stage(Stage.TRAFFIC)
    for step in range(1000):
        reporter.update(fraction=step / 1000, emulated=step * 1e-6, wall=step / 100)
    assert stream.getvalue() == "traffic\n"


def test_a_single_variant_is_not_named() -> None:
    stream = io.StringIO()
    reporter = PlainProgress(stream)
    reporter.variant("default", number=1, count=1)
    reporter.stage(Stage.BUILD)
    assert stream.getvalue() == "build\n"


def test_live_bars() -> None:
    stream = Terminal()
    tell(LiveProgress(stream))
    text = stream.getvalue()
    assert "go-back-n" in text and "selective-repeat" in text
    assert "100%" in text and "170%" not in text
    assert "dilation 1000" in text


def test_quiet_says_nothing(capsys) -> None:
    tell(QuietProgress())
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
@pytest.mark.parametrize("quiet", [False, True])
def test_results_go_to_standard_output_alone(capsys, stream, quiet) -> None:
    reporter = create_progress(stream, quiet=quiet, transient=True)
    with reporter:
        for number in (1, 2, 3):
            reporter.variant(f"size-{number}", number=number, count=3)
            reporter.stage(Stage.TRAFFIC)
            reporter.update(fraction=0.5, emulated=3e-4, wall=1.5)
            reporter.result(f"row {number}")
    assert capsys.readouterr().out == "row 1\nrow 2\nrow 3\n"
    assert "row" not in stream.getvalue()


def test_a_transient_bar_is_erased_before_a_result_is_printed(monkeypatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stdout", stream)
    with create_progress(stream, quiet=False, transient=True) as reporter:
        reporter.variant("size-1", number=1, count=1)
        reporter.result("row")
    line_up, erase = "\x1b[1A", "\x1b[2K"
    assert f"{line_up}{erase}row\n" in stream.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 ns"), (5e-9, "5 ns"), (12.34e-6, "12.34 us"), (0.067108864, "67.11 ms"), (2, "2 s")],
)
def test_times(seconds: float, text: str) -> None:
    assert format_time(seconds) == text
