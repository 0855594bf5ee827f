"""Settings that every test shares."""

from __future__ import annotations

from hypothesis import settings

# Examples have no deadline each: test machines are small, shared and busy.
settings.register_profile("rocelab", deadline=None)
settings.load_profile("rocelab")
