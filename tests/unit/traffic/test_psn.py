"""24-bit sequence numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traffic.psn import PSN_HALF, PSN_MASK, psn_add, psn_diff, psn_extend

psns = st.integers(0, PSN_MASK)


@pytest.mark.parametrize(
    ("a", "b", "diff"),
    [
        (1, 0, 1),
        (0, 1, -1),
        (0, PSN_MASK, 1),
        (PSN_MASK, 0, -1),
        (5, 5, 0),
        (PSN_HALF, 0, -PSN_HALF),
    ],
)
def test_difference_is_signed_and_wraps(a, b, diff):
    assert psn_diff(a, b) == diff


@given(psns, st.integers(-PSN_HALF, PSN_HALF - 1))
def test_difference_undoes_addition(psn, count):
    assert psn_diff(psn_add(psn, count), psn) == count


@given(st.integers(0, 1 << 40), st.integers(-PSN_HALF, PSN_HALF - 1))
def test_extension_restores_what_the_wire_cut_off(reference, distance):
    extended = reference + distance
    assert psn_extend(extended & PSN_MASK, reference) == extended
