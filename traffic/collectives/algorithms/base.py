"""The interface of collective algorithms and their registry."""

from __future__ import annotations

import abc
from typing import ClassVar

from traffic.collectives.request import Chunking, Collective, CollectiveRequest, ScheduleError
from traffic.collectives.schedule import Schedule


class Algorithm(abc.ABC):
    """A way to carry out collectives. Each is one file, registered by name."""

    name: ClassVar[str]
    collectives: ClassVar[frozenset[Collective]]
    """What it can do; a barrier is an all-reduce of one element."""
    chunking: ClassVar[Chunking] = Chunking()
    """What a large request without a chunking of its own gets."""

    @abc.abstractmethod
    def build(self, request: CollectiveRequest, chunking: Chunking) -> Schedule:
        """The schedule of a supported request."""

    @abc.abstractmethod
    def sent_elements(self, request: CollectiveRequest, rank: int) -> dict[int, int]:
        """Elements that a rank sends to each of its peers, in closed form; zeros left out."""

    def chunking_of(self, request: CollectiveRequest) -> Chunking:
        """The chunking that a request gets: its own, or the algorithm's."""
        return request.chunking or self.chunking

    def schedule(self, request: CollectiveRequest) -> Schedule:
        """The schedule of a request. Raises ScheduleError if the algorithm cannot do it."""
        if request.collective not in self.collectives:
            able = ", ".join(algorithms_for(request.collective))
            raise ScheduleError(
                f"algorithm: {self.name} cannot do {request.collective}; allowed: {able}"
            )
        return self.build(request, self.chunking_of(request))


_algorithms: dict[str, type[Algorithm]] = {}


def register_algorithm(cls: type[Algorithm]) -> type[Algorithm]:
    """Class decorator: make an algorithm available under its name."""
    if cls.name in _algorithms:
        raise ValueError(f"algorithm {cls.name!r} is registered twice")
    _algorithms[cls.name] = cls
    return cls


def algorithm_names() -> list[str]:
    """Names of all algorithms, sorted."""
    return sorted(_algorithms)


def algorithms_for(collective: Collective) -> list[str]:
    """Names of the algorithms that can do a collective, sorted."""
    return [name for name in algorithm_names() if collective in _algorithms[name].collectives]


def create_algorithm(name: str) -> Algorithm:
    """An algorithm by name. Raises ScheduleError that lists the allowed names."""
    if name not in _algorithms:
        allowed = ", ".join(algorithm_names())
        raise ScheduleError(f"algorithm: {name!r}; allowed: {allowed}")
    return _algorithms[name]()


def merge(*parts: dict[int, int]) -> dict[int, int]:
    """Sum of several ``sent_elements``; zeros are left out."""
    total: dict[int, int] = {}
    for part in parts:
        for peer, elements in part.items():
            total[peer] = total.get(peer, 0) + elements
    return {peer: elements for peer, elements in total.items() if elements}
