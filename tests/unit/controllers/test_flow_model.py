"""Max-min fairness: textbook examples, and the property that defines it."""

from __future__ import annotations

import math

import pytest
from flow_model import finish_times, max_min_rates
from hypothesis import given
from hypothesis import strategies as st


def test_flows_on_one_link_share_it() -> None:
    assert max_min_rates([["a"], ["a"], ["a"], ["a"]], {"a": 100.0}) == [25.0] * 4


def test_a_flow_held_elsewhere_leaves_its_share_to_the_others() -> None:
    """Two flows share link a; one of them is one of four on link b."""
    paths = [["a"], ["a", "b"], ["b"], ["b"], ["b"]]
    assert max_min_rates(paths, {"a": 100.0, "b": 100.0}) == [75.0, 25.0, 25.0, 25.0, 25.0]


def test_a_parking_lot() -> None:
    paths = [["a", "b", "c"], ["a"], ["b"], ["c"]]
    assert max_min_rates(paths, {"a": 10.0, "b": 20.0, "c": 30.0}) == [5.0, 5.0, 15.0, 25.0]


def test_no_link_no_limit() -> None:
    assert max_min_rates([[], ["a"]], {"a": 1.0}) == [math.inf, 1.0]
    assert max_min_rates([], {}) == []
    with pytest.raises(KeyError, match="b"):
        max_min_rates([["b"]], {"a": 1.0})


links = st.sampled_from("abcdef")
fabrics = st.tuples(
    st.lists(st.lists(links, min_size=1, max_size=4, unique=True), min_size=1, max_size=12),
    st.fixed_dictionaries({link: st.integers(1, 1000).map(float) for link in "abcdef"}),
)


@given(fabrics)
def test_every_flow_has_a_bottleneck(fabric: tuple[list[list[str]], dict[str, float]]) -> None:
    """Rates are max-min fair iff no link is overloaded and every flow crosses a full one on which
    no flow is faster (Bertsekas and Gallager, 6.5.2)."""
    paths, capacity = fabric
    rates = max_min_rates(paths, capacity)
    load = {
        link: sum(rate for rate, path in zip(rates, paths, strict=True) if link in path)
        for link in capacity
    }
    assert all(load[link] <= capacity[link] * (1 + 1e-9) for link in capacity)
    for rate, path in zip(rates, paths, strict=True):
        assert any(
            load[link] >= capacity[link] * (1 - 1e-9)
            and rate * (1 + 1e-9)
            >= max(other for other, way in zip(rates, paths, strict=True) if link in way)
            for link in path
        )


def test_finish_times_follow_changing_shares() -> None:
    """100 bits at half of 10 bit/s until the shorter flow of 50 bits has gone."""
    assert finish_times([100.0, 50.0], [["a"], ["a"]], {"a": 10.0}) == pytest.approx([15.0, 10.0])
    assert finish_times([0.0, 30.0], [["a"], ["a"]], {"a": 10.0}) == pytest.approx([0.0, 3.0])


@given(fabrics, st.data())
def test_no_link_is_faster_than_it_is(
    fabric: tuple[list[list[str]], dict[str, float]], data: st.DataObject
) -> None:
    paths, capacity = fabric
    size = st.integers(0, 1000).map(float)
    sizes = data.draw(st.lists(size, min_size=len(paths), max_size=len(paths)))
    times = finish_times(sizes, paths, capacity)
    for link, rate in capacity.items():
        carried = [
            (bits, time)
            for bits, time, path in zip(sizes, times, paths, strict=True)
            if link in path
        ]
        if carried:
            busy = sum(bits for bits, _ in carried) / rate
            assert busy <= max(time for _, time in carried) * (1 + 1e-9)
    # and work is conserved on a single link
    alone = finish_times(sizes, [["a"]] * len(sizes), capacity)
    assert max(alone) == pytest.approx(sum(sizes) / capacity["a"])
