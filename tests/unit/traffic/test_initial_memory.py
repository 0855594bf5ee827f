"""Initial memories: random where a rank has inputs, zero everywhere else, whatever was there."""

from __future__ import annotations

import numpy as np
import pytest

from traffic.payload import initial_memory, initial_slice
from traffic.workloads import create_workload, workload_class


@pytest.mark.parametrize("rank", [0, 3])
def test_what_is_not_initialised_is_zero(rank: int) -> None:
    parameters = workload_class("collective").Parameters(size=1 << 20)
    plan = create_workload("collective").plan(parameters, world_size=4, seed=1)
    initialised = plan.memory[rank].initialised
    for _ in range(3):
        memory = initial_memory(plan, rank)
        assert memory.nbytes == plan.memory[rank].total > initialised
        expected = initial_slice(plan, rank, 0, initialised).view(np.uint8)
        assert np.array_equal(memory[:initialised], expected)
        assert not memory[initialised:].any()
        memory[:] = 0xFF  # what the allocator may hand out next
        del memory
