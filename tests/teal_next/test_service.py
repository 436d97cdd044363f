"""Allocations for the next interval against the hedge itself, over measured matrices that are kept
on disk."""

from __future__ import annotations

import asyncio
import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")

import networkx

import teal
from teal.network import TrafficMatrices
from teal.network.rates import ArrayRates
from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.schemes.hedges import make_hedge
from teal.schemes.past import Past
from teal.solvers import pipeline
from teal_next.evaluation import realised
from teal_next.service import NextInterval
from teal_serve.client import InvalidRequest, LateMeasurement, NotReady, ServiceFault
from teal_serve.engine.allocation_task import AllocationTask
from teal_serve.engine.errors import ServiceError
from teal_serve.engine.responses import AllocationAnswer, NamedAllocation
from tests.teal_serve.service import b4_network_state, b4_service, run, service

NETWORK_STATE = b4_network_state()
PAIRS = NETWORK_STATE.paths.pairs
BEGIN = np.datetime64("2026-01-01T00:00:00", "s")


def _series(count: int, seed: int = 0) -> np.ndarray:
    """Rates (T, D) that follow a daily course."""
    rng = np.random.default_rng(seed)
    base, noise = rng.lognormal(3, 1, 132), rng.lognormal(0, 0.2, (count, 132))
    rates = base * noise * (2 + np.sin(np.arange(count) / 8))[:, None]
    return np.asarray(rates.astype(np.float32), np.float64)


def _times(count: int, first: int = 0) -> list[np.datetime64]:
    return [BEGIN + np.timedelta64(300 * (first + row), "s") for row in range(count)]


def _network() -> Problem:
    return NETWORK_STATE.problem(
        AllocationTask(ObjectiveName.MAX_LINK_UTILISATION), np.zeros((1, 132))
    )


def test_allocations_are_those_of_the_hedge_over_the_same_past(tmp_path: Path) -> None:
    rates, hedge = _series(14), make_hedge("mixture")
    own = NextInterval("b4", PAIRS, tmp_path / "g")
    own.matrices.add(_times(12), rates[:12])
    for known in (12, 13, 14):
        if known > 12:
            own.matrices.add(_times(1, known - 1), rates[known - 1 : known])
        allocation = own.allocate(_network())
        traffic = TrafficMatrices(
            "b4", PAIRS, np.array(_times(known), "datetime64[s]"), ArrayRates(rates[:known]), 300
        )
        expected = hedge.allocate(Past(_network(), traffic))
        np.testing.assert_allclose(allocation.splits.numpy(), expected.numpy(), atol=1e-9)
        assert allocation.time == _times(1, known)[0]
        assert own.is_current(NETWORK_STATE.capacity)
    assert not own.is_current(NETWORK_STATE.capacity * 2)


def test_varied_splits_differ_between_intervals_and_stay_nearly_optimal(tmp_path: Path) -> None:
    rates = _series(12)
    splits = {}
    for share, folder in ((0.0, "plain"), (0.5, "varied")):
        one = NextInterval("b4", PAIRS, tmp_path / folder, share)
        one.matrices.add(_times(11), rates[:11])
        splits[share, 11] = one.allocate(_network()).splits
        one.matrices.add(_times(1, 11), rates[11:])
        splits[share, 12] = one.allocate(_network()).splits
    for known in (11, 12):
        problem = _network().with_demand(rates[known - 1][None])
        best = float(teal.solve(problem, gap=1e-3).value)
        mixed, kept = splits[0.5, known], splits[0.0, known]
        assert float((mixed - kept).abs().max()) > 0.05
        assert float(problem.utilisation((2 * mixed - kept)[None]).amax()) <= best * 1.0211, (
            "the random half"
        )
    changes = [float((splits[share, 12] - splits[share, 11]).abs().sum()) for share in (0.0, 0.5)]
    assert changes[1] > changes[0]


@pytest.mark.system
def test_limits_follow_what_intervals_brought(tmp_path: Path) -> None:
    rates = _series(40)
    own = NextInterval("b4", PAIRS, tmp_path / "g")
    own.matrices.add(_times(10), rates[:10])
    ratios = []
    for row in range(10, 40):
        before = own.allocate(_network())
        own.matrices.add(_times(1, row), rates[row : row + 1])
        problem = _network().with_demand(_torch(rates[row : row + 1]))
        ratios.append(
            realised(problem, before.splits) / float(pipeline.solve(problem, gap=1e-3).value)
        )
    limit = own.allocate(_network()).limit
    assert min(ratios) >= 1 - 1e-6
    assert np.sort(ratios)[-3] - 2e-3 <= limit <= max(ratios) + 2e-3


def _torch(rates: np.ndarray):  # type: ignore[no-untyped-def]
    import torch

    return torch.from_numpy(rates)


@pytest.mark.system
def test_what_was_learnt_survives_a_restart_and_damage(tmp_path: Path) -> None:
    rates, folder = _series(40), tmp_path / "g"
    own = NextInterval("b4", PAIRS, folder)
    own.matrices.add(_times(10), rates[:10])
    for row in range(10, 39):
        own.allocate(_network())
        own.matrices.add(_times(1, row), rates[row : row + 1])
    own.allocate(_network())
    assert own._mixture is not None
    again = NextInterval("b4", PAIRS, folder)
    again.matrices.refresh()
    assert again.info() == own.info()
    assert again.info()["interval_s"] == 300
    again.matrices.add(_times(1, 39), rates[39:])
    found = again.allocate(_network())
    assert again._mixture is not None
    np.testing.assert_allclose(again._mixture.weights, own._mixture.weights)
    assert found.limit == pytest.approx(own._ratio_limit.limit, rel=0.05)
    (folder / "mixture.npz").write_bytes(b"damaged")
    (folder / "limit.json").write_text("{")
    damaged = NextInterval("b4", PAIRS, folder)
    damaged.matrices.refresh()
    assert damaged.allocate(_network()).splits.shape == (132, 4)


def test_a_correction_is_taken_and_seen_by_other_processes(tmp_path: Path) -> None:
    rates = _series(6)
    own, other = (NextInterval("b4", PAIRS, tmp_path / "g") for _ in range(2))
    own.matrices.add(_times(5), rates[:5])
    other.matrices.refresh()
    for one in (own, other):
        one.allocate(_network())
        assert one.is_current(NETWORK_STATE.capacity)
    own.matrices.add(_times(5)[-1:], rates[5:])
    assert not own.is_current(NETWORK_STATE.capacity)
    other.matrices.refresh()
    assert not other.is_current(NETWORK_STATE.capacity)
    np.testing.assert_allclose(other.matrices.newest(), rates[5:])
    with pytest.raises(ServiceError, match="more than 10 minutes ahead"):
        own.matrices.add([np.datetime64("now", "s") + np.timedelta64(10, "D")], rates[:1])


def test_a_full_disk_keeps_none_of_the_matrices_of_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, rates, save = NextInterval("b4", PAIRS, tmp_path / "g"), _series(5), np.save
    written = 0

    def full(*arguments: Any) -> None:
        nonlocal written
        written += 1
        if written > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", full)
        with pytest.raises(OSError, match="No space"):
            own.matrices.add(_times(5), rates)
    assert own.matrices.times == []
    assert list((tmp_path / "g").iterdir()) == []
    own.matrices.add(_times(5), rates)
    assert len(own.matrices.times) == 5


@pytest.mark.parametrize(
    "objective", [ObjectiveName.TOTAL_FLOW, ObjectiveName.MAX_LINK_UTILISATION]
)
def test_demands_without_traffic_so_far_take_their_shortest_path(
    tmp_path: Path, objective: ObjectiveName
) -> None:
    own, rates, topology = (
        NextInterval("b4", PAIRS, tmp_path / "g"),
        _series(4),
        NETWORK_STATE.topology,
    )
    rates[:, :40] = 0
    rates[:3, 40:60] = 0
    own.matrices.add(_times(4), rates)
    problem = NETWORK_STATE.problem(AllocationTask(objective), np.zeros((1, 132)))
    problem = problem.with_capacity(
        _torch(np.where(np.arange(topology.num_links) < 2, 0.0, NETWORK_STATE.capacity))
    )
    splits = own.allocate(problem).splits.numpy()
    graph = networkx.DiGraph(
        zip(topology.link_source[2:].tolist(), topology.link_target[2:].tolist(), strict=True)
    )
    for demand in range(40):
        (path,) = np.flatnonzero(splits[demand]).tolist()
        links = NETWORK_STATE.paths.links_of(demand, path)
        assert not set(links) & {0, 1}
        candidates = [
            NETWORK_STATE.paths.links_of(demand, k)
            for k in np.flatnonzero(NETWORK_STATE.paths.mask[demand]).tolist()
        ]
        assert len(links) == min(len(other) for other in candidates if not set(other) & {0, 1})
        assert len(links) >= networkx.shortest_path_length(graph, *PAIRS[demand].tolist())
    known = slice(60, None) if objective is ObjectiveName.TOTAL_FLOW else slice(40, None)
    np.testing.assert_allclose(splits[known].sum(1), 1, atol=1e-9)
    np.testing.assert_allclose(splits[:40].sum(1), 1)


def test_splits_use_no_link_that_failed_after_they_were_made(tmp_path: Path) -> None:
    own = NextInterval("b4", PAIRS, tmp_path / "g")
    own.matrices.add(_times(3), _series(3))
    latest = own.allocate(_network())
    capacity = NETWORK_STATE.capacity.copy()
    capacity[:2] = 0.0
    network = _network().with_capacity(_torch(capacity))
    answer, _ = own.answer(latest, own.matrices.newest(), network, 0.0)
    assert np.isfinite(answer.utilisation).all()
    np.testing.assert_allclose(answer.splits.sum(-1), 1, atol=1e-5)


def test_the_oldest_matrices_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("teal_serve.engine.measured.MAX_KEPT_MATRICES", 20)
    rates = _series(30)
    own = NextInterval("b4", PAIRS, tmp_path / "x.measured" / "g")
    (tmp_path / "x.measured" / "earlier").mkdir()
    for row in range(30):
        own.matrices.add(_times(1, row), rates[row : row + 1])
    assert own.matrices.times == _times(20, 10)
    assert own.matrices.dropped == 10
    assert len(list(own.matrices.folder.glob("*.npy"))) == 20
    np.testing.assert_allclose(own.matrices.newest(), rates[29:])
    NextInterval("b4", PAIRS, tmp_path / "x.measured" / "later")
    assert [folder.name for folder in (tmp_path / "x.measured").iterdir()] == ["later"], (
        "of another registration"
    )


@pytest.mark.slow
def test_a_controller_that_measures_gets_allocations_for_the_next_interval(tmp_path: Path) -> None:
    rates = _series(16)

    async def work() -> None:
        async with service(tmp_path) as client:
            await client.put_network("b4", "b4", objective="max_link_utilisation", num_paths=4)
            await client.wait_ready("b4")
            assert (await client.measured("b4")).matrices == 0
            with pytest.raises(ServiceFault, match="measurements first"):
                await client.allocate_next("b4")
            with pytest.raises(InvalidRequest, match="interval_s"):
                await client.measure("b4", rates[:2], BEGIN)
            kept = await client.measure("b4", rates[:14], BEGIN, 300)
            assert (kept.matrices, kept.first, kept.last, kept.interval_s) == (
                14,
                BEGIN,
                _times(14)[-1],
                300,
            )
            allocation = await client.allocate_next("b4", deadline_ms=600_000)
            assert allocation.status == ("next",)
            assert allocation.time == _times(1, 14)[0]
            np.testing.assert_allclose(allocation.splits.sum(-1), 1, atol=1e-5)
            # Loads of the newest matrix: the figures are those that can be known.
            newest = NETWORK_STATE.problem(
                AllocationTask(ObjectiveName.MAX_LINK_UTILISATION), rates[13:14]
            )
            used = newest.utilisation(_torch(allocation.splits.astype(np.float64))).numpy()
            np.testing.assert_allclose(allocation.utilisation, used, rtol=1e-5)
            with pytest.raises(LateMeasurement):
                await client.measure("b4", rates[:1], BEGIN)
            assert (await client.measure("b4", rates[13:14], _times(14)[-1])).matrices == 14, (
                "the same one again"
            )
            await client.change_link("b4", "1", "2", up=False)
            await client.measure("b4", rates[14:15], _times(15)[-1])
            failed = await client.allocate_next("b4", deadline_ms=600_000)
            assert failed.realised is not None
            assert failed.realised >= 1 - 1e-3
            info = await client.network("b4")
            down = [i for i, link in enumerate(info.links) if link.in_force == 0]
            assert (failed.utilisation[0, down] == 0).all()
            response = await client._http.post("/v1/networks/b4/allocations", json={"for": "next"})
            answer = AllocationAnswer.model_validate_json(response.content)
            assert answer.limit is not None
            assert answer.time == f"{_times(16)[-1]}Z"
            (by_name,) = answer.allocations
            assert isinstance(by_name, NamedAllocation)
            assert (by_name.value, by_name.gap) == (None, None)
            body = {"for": "next", "gap": 0.1}
            wrong = await client._http.post("/v1/networks/b4/allocations", json=body)
            assert wrong.status_code == 422
            metrics = (await client._http.get("/metrics")).text
            assert 'teal_measured_matrices{network="b4"} 15.0' in metrics
        async with service(tmp_path) as later:  # after a restart
            await later.wait_ready("b4")
            assert (await later.measured("b4")).matrices == 15
            assert (await later.allocate_next("b4", deadline_ms=600_000)).time == _times(1, 15)[0]
            await later.delete_network("b4")
            assert not list(tmp_path.glob("b4*"))

    run(work)


@pytest.mark.slow
def test_measured_matrices_are_deleted_with_what_was_learnt_from_them(tmp_path: Path) -> None:
    rates = _series(6)

    async def work() -> None:
        async with service(tmp_path) as client, service(tmp_path) as other:
            await client.put_network("b4", "b4", num_paths=4)
            await client.wait_ready("b4")
            await other.wait_ready("b4")
            await client.measure("b4", rates[:5] * 7, BEGIN, 300)
            await client.allocate_next("b4", deadline_ms=600_000)
            assert (await other.measured("b4")).matrices == 5
            assert (await client._http.delete("/v1/networks/b4/measurements")).status_code == 204
            assert (
                (await client.measured("b4")).matrices == (await other.measured("b4")).matrices == 0
            )
            assert (
                'teal_measured_matrices{network="b4"} 0.0'
                in (await client._http.get("/metrics")).text
            )
            for one in (client, other):
                with pytest.raises(ServiceFault, match="measurements first"):
                    await one.allocate_next("b4")
            await client.measure("b4", rates[5:], BEGIN)  # earlier than those that were deleted
            fresh = await client.allocate_next("b4", deadline_ms=600_000)
            alone = NextInterval("b4", PAIRS, tmp_path / "alone" / "g")
            alone.matrices.add(_times(1), rates[5:])
            expected = alone.allocate(
                NETWORK_STATE.problem(AllocationTask(ObjectiveName.TOTAL_FLOW), np.zeros((1, 132)))
            )
            np.testing.assert_allclose(fresh.splits[0], expected.splits.numpy(), atol=1e-5)
            assert (await other.measured("b4")).matrices == 1
            assert (await client._http.delete("/v1/networks/x/measurements")).status_code == 404

    run(work)


def test_a_deadline_that_is_too_short_for_the_first_allocation_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, allocate = asyncio.Event(), NextInterval.allocate

    async def work() -> None:
        loop = asyncio.get_running_loop()

        def held(self: NextInterval, network):  # type: ignore[no-untyped-def]
            asyncio.run_coroutine_threadsafe(goes_on.wait(), loop).result()
            return allocate(self, network)

        async with b4_service(tmp_path) as client:
            monkeypatch.setattr(NextInterval, "allocate", held)
            body = {
                "time": "2026-01-01T00:00:00Z",
                "demands": [{"source": "1", "target": "2", "rate": 3.5}],
            }
            first = await client._http.post("/v1/networks/b4/measurements", json=body)
            assert first.json()["matrices"] == 1, json.dumps(first.json())
            with pytest.raises(NotReady):
                await client.allocate_next("b4", deadline_ms=1)
            goes_on.set()
            assert (await client.allocate_next("b4", deadline_ms=600_000)).status == ("next",)

    run(work)
