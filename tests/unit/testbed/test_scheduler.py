"""Reading the scheduler's tree back: differences from the plan are found, in a fake kernel."""

from __future__ import annotations

import math
from typing import Any

import pytest

from testbed.asic.scheduler import PortPlan, read_back
from traffic.codec import FRAME_OVERHEAD

PLANS = [PortPlan(ifindex=10_000 + n, name=f"port{n}", rate=40e6, frame=4214) for n in range(3)]
TICKS_PER_SECOND = 15.625e6


class Message(dict[str, Any]):
    """Fields by key, attributes by get_attr, as pyroute2's messages have them."""

    def __init__(self, attributes: dict[str, Any], **fields: Any) -> None:
        super().__init__(fields)
        self.attributes = attributes

    def get_attr(self, name: str) -> Any:
        return self.attributes.get(name)


class Kernel:
    """Answers dumps as the kernel does: qdiscs of all interfaces, the rest by interface."""

    def __init__(self) -> None:
        self.qdiscs = [
            Message({"TCA_KIND": kind}, index=plan.ifindex, handle=handle)
            for plan in PLANS
            for handle, kind in ((0x10000, "htb"), (0x100000, "pfifo"), (0xFFFF0000, "clsact"))
        ]
        self.qdiscs.append(Message({"TCA_KIND": "noqueue"}, index=1, handle=0))
        self.rates = {plan.ifindex: plan.bytes_per_second for plan in PLANS}
        self.overhead = FRAME_OVERHEAD
        self.programs = {0xFFFFFFF3: "enqueue", 0xFFFFFFF2: "dequeue"}
        self.qdisc_dumps = 0

    def get_qdiscs(self) -> list[Message]:
        self.qdisc_dumps += 1
        return self.qdiscs

    def get_classes(self, index: int) -> list[Message]:
        if index not in self.rates:
            return []
        rate = self.rates[index]
        burst = math.ceil((4214 + FRAME_OVERHEAD) / 4 / rate * TICKS_PER_SECOND)
        parameters = {"rate": rate, "buffer": burst, "rate_overhead": self.overhead}
        options = Message({"TCA_HTB_PARMS": parameters})
        return [Message({"TCA_OPTIONS": options}, handle=0x10010)]

    def get_filters(self, index: int, parent: int) -> list[Message]:
        name = self.programs.get(parent)
        return [Message({"TCA_OPTIONS": Message({"TCA_BPF_NAME": name})})] if name else []


def test_what_is_as_planned_gives_no_line_and_takes_one_dump():
    kernel = Kernel()
    assert read_back(kernel, PLANS) == []
    assert kernel.qdisc_dumps == 1


def test_a_missing_qdisc_is_found_on_its_own_port_only():
    kernel = Kernel()
    kernel.qdiscs = [m for m in kernel.qdiscs if m["index"] != 10_001 or m["handle"] != 0x100000]
    assert read_back(kernel, PLANS) == ["port1: qdiscs are clsact, htb; planned clsact, htb, pfifo"]


def test_an_interface_without_any_qdisc_is_found():
    kernel = Kernel()
    kernel.qdiscs = [m for m in kernel.qdiscs if m["index"] != 10_002]
    assert read_back(kernel, PLANS) == ["port2: qdiscs are none; planned clsact, htb, pfifo"]


def test_a_missing_class_is_found():
    kernel = Kernel()
    del kernel.rates[10_000]
    assert read_back(kernel, PLANS) == ["port0: htb has no class 1:10"]


def test_another_rate_is_found():
    kernel = Kernel()
    kernel.rates[10_000] = 4_000_000
    assert read_back(kernel, PLANS) == ["port0: rate 4000000 B/s; planned 5000000 B/s"]


def test_another_overhead_is_found():
    kernel = Kernel()
    kernel.overhead = 0
    problems = read_back(kernel, PLANS[:1])
    assert problems == [f"port0: overhead 0 B; planned {FRAME_OVERHEAD} B"]


@pytest.mark.parametrize("name", [None, "dequeue"])
def test_a_missing_or_wrong_program_is_found(name):
    kernel = Kernel()
    kernel.programs[0xFFFFFFF3] = name
    found = [] if name is None else [name]
    assert read_back(kernel, PLANS[:1]) == [f"port0: clsact runs {found}; planned ['enqueue']"]


@pytest.mark.parametrize(
    ("rate", "burst"),
    [
        (40e6, (4214 + FRAME_OVERHEAD) // 4),
        (80e6, 2000),  # a quarter of a frame would be gone before a timer fires
        (400e6, 4214 + FRAME_OVERHEAD),
    ],
)
def test_the_bucket_forgives_a_late_timer_and_is_no_more_than_a_frame(
    rate: float, burst: int
) -> None:
    plan = PortPlan(ifindex=1, name="port", rate=rate, frame=4214)
    assert plan.burst == burst
    assert plan.quantum == 4214 + FRAME_OVERHEAD
