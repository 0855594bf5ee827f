"""What turns one set of flow table entries into another: the content of an update."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from controllers.entries import Entry


@dataclass(frozen=True, slots=True)
class Differences:
    """Entries that go, that come, and that do something else than before, in a stable order.

    Two entries are the same one if a switch cannot hold both: equal table, priority and match.
    """

    removed: tuple[Entry, ...]
    added: tuple[Entry, ...]
    modified: tuple[Entry, ...]

    @classmethod
    def between(cls, old: Iterable[Entry], new: Iterable[Entry]) -> Differences:
        """What must change in a switch that holds ``old`` so that it holds ``new``."""
        before = {_identity(entry): entry for entry in old}
        after = {_identity(entry): entry for entry in new}
        return cls(
            removed=tuple(entry for key, entry in before.items() if key not in after),
            added=tuple(entry for key, entry in after.items() if key not in before),
            modified=tuple(
                entry
                for key, entry in after.items()
                if key in before and before[key].actions != entry.actions
            ),
        )

    def __bool__(self) -> bool:
        return bool(self.removed or self.added or self.modified)


def _identity(entry: Entry) -> Hashable:
    return entry.table, entry.priority, frozenset(entry.match.items())
