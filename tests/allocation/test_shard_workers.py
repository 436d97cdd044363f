"""Shards in Ray actors against one process, also where an actor is killed between two rounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from teal.allocation.shard_workers import RayActors, actors
from teal.errors import SolverError
from teal.network.shards import PathSearch
from teal.solvers.pdhg.shards.sharded import ShardedProblem
from teal.solvers.pdhg.shards.shards import Allocated, ShardDemands
from teal.testing import make_topology, random_problem

_GAP = 1e-4


def _splits(allocated: Allocated) -> np.ndarray:
    return allocated.splits


@pytest.mark.system
@pytest.mark.xdist_group("ray-a")
def test_workers_find_what_one_process_finds_even_if_one_is_killed(local_ray: Any) -> None:
    """Solve in one process, in two workers, and in two of which one is killed."""
    problem = random_problem(8, nodes=14, batch=1, idle=0.0)

    def solved(backend: Callable[..., Any] | None) -> tuple[ShardedProblem, Any, np.ndarray]:
        with ShardedProblem(
            problem.topology,
            problem.paths.pairs,
            problem.demand[0].numpy(),
            num_shards=4,
            search=PathSearch(problem.paths.num_paths),
            backend=backend,
        ) as shards:
            result = shards.solve(gap=_GAP)
            return shards, result, np.concatenate(shards.apply(_splits))

    _, alone, splits = solved(None)
    assert alone.iterations > 10, "otherwise the kill below comes too late"
    assert alone.sent_bytes == 0
    messages: list[str] = []
    with actors(2, messages.append) as make:
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
                    local_ray.kill(backend.actors[1], no_restart=True)
                return total(*shared, **options)

            backend.total = counted
            return backend

        _, after, theirs_after = solved(killing)
    assert len(messages) == 1
    assert (after.value, after.bound, after.iterations) == (
        together.value,
        together.bound,
        together.iterations,
    )
    np.testing.assert_array_equal(theirs_after, theirs)


class _RayError(Exception):
    pass


class _RayActorError(_RayError):
    pass


@dataclasses.dataclass
class _FakeRay:
    """In place of the module: actors in this process that remember their calls, of which some die
    on the way.

    Attributes:
        deaths: by first shard, how many actors that hold it still die, each at its next call of
            ``add``.
        actors: all that were started.
    """

    deaths: dict[int, int] = dataclasses.field(default_factory=dict)
    actors: list[_FakeActor] = dataclasses.field(default_factory=list)
    exceptions = SimpleNamespace(RayError=_RayError, RayActorError=_RayActorError)

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def remote(self, **_: Any) -> Callable[[type], Any]:
        return lambda _: SimpleNamespace(remote=self._start)

    def get(self, answer: Callable[[], Any]) -> Any:
        return answer()

    def _start(self, topology: Any, search: Any, shards: list[ShardDemands], *_: Any) -> _FakeActor:
        self.actors.append(_FakeActor(self, [shard.first for shard in shards]))
        return self.actors[-1]


class _FakeActor:
    """Adds what it is given for each shard to a sum a shard, which it answers with."""

    def __init__(self, ray: _FakeRay, shards: list[int]) -> None:
        self._ray, self._shards, self._is_dead = ray, shards, False
        self.sums = [0.0] * len(shards)
        self.total = SimpleNamespace(remote=self._total)

    def _total(
        self,
        name: str,
        shared: tuple[Any, ...],
        each: Sequence[tuple[Any, ...]],
        options: dict[str, Any],
    ) -> Callable[[], Any]:
        if name == "add" and self._ray.deaths.get(self._shards[0], 0):
            self._ray.deaths[self._shards[0]] -= 1
            self._is_dead = True
        elif name == "add":
            (factor,) = shared
            assert len(each) == len(self._shards)
            self.sums = [
                own + float(factor[0]) * of_shard
                for own, (of_shard,) in zip(self.sums, each, strict=True)
            ]
        return partial(self._answer, list(self.sums))

    def _answer(self, sums: list[float]) -> Any:
        if self._is_dead:
            raise _RayActorError("the actor died")
        return (sum(sums), len(sums))


def _fake_backend(ray: _FakeRay, notify: Callable[[str], None] = lambda _: None) -> RayActors:
    """Two workers with the shards 0 and 1, and 2 to 4."""
    pairs = np.array([[0, 1]], np.int32)
    shards = [ShardDemands(first, pairs, np.ones(1), np.ones(1)) for first in range(5)]
    return RayActors(ray, 2, make_topology([(0, 1, 1.0)]), PathSearch(1), shards, True, notify)


def _add(backend: RayActors, factor: float, amounts: list[float]) -> float:
    total, shards = backend.total("add", np.array([factor]), each=[(amount,) for amount in amounts])
    assert shards == 5
    return float(total)


def test_each_worker_gets_the_arguments_of_its_own_shards() -> None:
    ray = _FakeRay()
    backend = _fake_backend(ray)
    assert _add(backend, 2.0, [1.0, 10.0, 100.0, 1000.0, 10_000.0]) == 22_222
    assert sorted(actor.sums for actor in ray.actors) in (
        [[2.0, 20.0], [200.0, 2000.0, 20_000.0]],
        [[2.0, 20.0, 200.0], [2000.0, 20_000.0]],
    )


def test_a_worker_is_replaced_three_times_and_the_fourth_death_ends_the_solve() -> None:
    messages: list[str] = []
    ray = _FakeRay()
    backend = _fake_backend(ray, messages.append)
    for deaths in (1, 2):  # three in all
        ray.deaths[0] = deaths
        assert _add(backend, 1.0, [1.0] * 5) == 5.0 * deaths, "the earlier sums are there again"
    assert len(messages) == 3
    ray.deaths[0] = 1
    with pytest.raises(SolverError, match="died 4 times"):
        _add(backend, 1.0, [1.0] * 5)
    assert len(messages) == 3


def test_a_new_worker_repeats_calls_with_the_numbers_that_they_had() -> None:
    """The engine writes its next prices into the array of the last ones."""
    ray = _FakeRay()
    backend = _fake_backend(ray)
    factor = np.array([1.0])
    backend.total("add", factor, each=[(1.0,)] * 5)
    factor[0] = 100.0
    ray.deaths[0] = 1
    total, _ = backend.total("add", factor, each=[(1.0,)] * 5)
    assert total == 5 * 101
