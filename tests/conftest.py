"""Settings that every test shares."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings

# Examples have no deadline each: test machines are small, shared and busy.
settings.register_profile("rocelab", deadline=None)
settings.load_profile("rocelab")

IN_ORDER = "tests/fabric/test_readme.py"
"""The one file whose tests build on each other: what a reader types, from top to bottom."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One test at a time to whichever worker is free, but a page's commands in order to one.

    In place of ``xdist_group``, which pytest-xdist 3.8 silently ignores under pytest 9.2.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class InOrder(LoadScopeScheduling):  # type: ignore[misc, unused-ignore]
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.split("::", 1)[0]
            return path if path == IN_ORDER else nodeid

    return InOrder(config, log)
