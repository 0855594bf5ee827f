"""What a machine says that refuses a run its namespaces."""

from __future__ import annotations

import errno

import pytest

from testbed import isolation


def test_a_refused_system_call_is_named_without_its_number(monkeypatch) -> None:
    def refuse() -> None:
        raise OSError(errno.EPERM, "prctl PR_SET_PDEATHSIG: Operation not permitted")

    monkeypatch.setattr(isolation, "die_with_parent", refuse)
    with pytest.raises(isolation.IsolationError, match=r"^prctl PR_SET_PDEATHSIG: Operation not"):
        isolation._child(lambda: 0, -1, ())
