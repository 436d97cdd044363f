"""Shards in Ray actors against one process, also where an actor is killed between two rounds."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from teal.network.shards import PathSearch
from teal.solvers.pdhg.shards.sharded import ShardedProblem
from teal.solvers.pdhg.shards.shards import Allocated
from teal.testing import random_problem
from tests.processes import run

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("ray")]

_GAP = 1e-4


def _splits(allocated: Allocated) -> np.ndarray:
    return allocated.splits


def test_workers_find_what_one_process_finds_even_if_one_is_killed() -> None:
    """In a process of its own: what Teal sets for Ray counts only if Ray is imported after it."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("needs Ray: pip install '.[ray]'")
    ended = run([sys.executable, "-c", f"from {__name__} import compare_workers; compare_workers()"])
    assert ended.returncode == 0, ended.stderr[-3000:]


def compare_workers() -> None:
    """Solve in one process, in two workers, and in two of which one is killed."""
    from teal.distributed.shards import actors

    problem = random_problem(8, nodes=14, batch=1, idle=0.0)

    def solved(backend: Callable[..., Any] | None) -> tuple[ShardedProblem, Any, np.ndarray]:
        with ShardedProblem(
            problem.topology, problem.paths.pairs, problem.demand[0].numpy(), num_shards=4,
            search=PathSearch(problem.paths.num_paths), backend=backend,
        ) as shards:  # fmt: skip
            result = shards.solve(gap=_GAP)
            return shards, result, np.concatenate(shards.apply(_splits))

    _, alone, splits = solved(None)
    assert alone.iterations > 10, "otherwise the kill below comes too late"
    assert alone.sent_bytes == 0
    messages: list[str] = []
    with actors(2, messages.append) as make:
        import ray

        _, together, theirs = solved(make)
        assert (together.iterations, together.rounds) == (alone.iterations, alone.rounds)
        assert together.value == pytest.approx(alone.value, rel=1e-9)
        assert together.bound == pytest.approx(alone.bound, rel=1e-9)
        np.testing.assert_allclose(theirs, splits, atol=1e-5)
        # Of each iteration: prices (float32) to two workers, and their loads (float64) back.
        assert together.sent_bytes >= together.iterations * 2 * problem.topology.num_links * (4 + 8)
        assert not messages
        rounds = 0

        def killing(*arguments: Any) -> Any:
            backend: Any = make(*arguments)
            total = backend.total

            def counted(*shared: Any, **options: Any) -> Any:
                nonlocal rounds
                rounds += 1
                if rounds == 12:
                    ray.kill(backend.actors[1], no_restart=True)
                return total(*shared, **options)

            backend.total = counted
            return backend

        _, after, theirs_after = solved(killing)
    assert len(messages) == 1
    assert (after.value, after.bound, after.iterations) == (together.value, together.bound, together.iterations)
    np.testing.assert_array_equal(theirs_after, theirs)
