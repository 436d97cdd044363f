"""What happens to networks before they are ready: searches that end, estimates, and how many there
may be."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")

from teal.runtime.storage import cache_dir
from teal_serve.client import InvalidRequest, ServiceFault, UnknownNetwork
from teal_serve.engine import registry
from teal_serve.engine.engine import AllocationEngine
from teal_serve.engine.network_state import NetworkState
from tests.gate import PATIENCE_S
from tests.teal_serve.service import run, service, until

RING = {
    "nodes": [{"id": i} for i in range(20)],
    "links": [{"source": i, "target": (i + 1) % 20, "capacity": 1} for i in range(20)],
}


def _stored_paths() -> set[str]:
    return {file.name for file in cache_dir("paths").glob("*.npz")}


def test_a_deleted_network_ends_its_search_and_leaves_no_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEAL_CACHE_DIR", str(tmp_path / "cache"))
    searches, goes_on = list[Any](), threading.Event()
    compute = NetworkState.prepare

    def held(name: str, spec: Any, report: Any, grown: Any) -> Any:
        searches.append(report)
        assert goes_on.wait(PATIENCE_S)
        return compute(name, spec, report, grown)

    async def work() -> None:
        async with service(tmp_path / "networks") as client:
            await client.put_network("kept", RING)
            await client.wait_ready("kept")
            own = _stored_paths()
            assert len(own) == 3, (
                "the first set, the chosen one, and the shortest paths of the generated traffic"
            )
            await client.put_network("same", RING)
            await client.wait_ready("same")
            await client.delete_network("same")
            assert _stored_paths() == own, "another network has the same paths"
            monkeypatch.setattr(NetworkState, "prepare", held)
            await client.put_network("long", RING, num_paths=2)
            await until(lambda: len(searches) == 1, "the search has not begun")
            await client.delete_network("long")
            with pytest.raises(registry._NetworkRemoved):
                searches[0](0.5)
            goes_on.set()
            await client.put_network("next", RING)
            await client.wait_ready("next")
            assert _stored_paths() == own, "the search that ended has stored nothing"
            await client.delete_network("next")
            await client.delete_network("kept")
            assert not _stored_paths()

    run(work)


def test_the_share_of_the_paths_is_said_while_they_are_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, compute = threading.Event(), NetworkState.prepare

    def held(name: str, spec: Any, report: Any, grown: Any) -> Any:
        report(0.25)
        assert goes_on.wait(PATIENCE_S)
        return compute(name, spec, report, grown)

    async def work() -> None:
        monkeypatch.setattr(NetworkState, "prepare", held)
        async with service(tmp_path) as client:
            await client.put_network("b4", "b4")
            while not (await client.network("b4")).paths_share:
                await asyncio.sleep(0.01)
            assert (await client.network("b4")).paths_share == 0.25
            goes_on.set()
            assert (await client.wait_ready("b4")).paths_share == 1.0

    run(work)


@pytest.mark.slow
def test_paths_that_would_take_too_long_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_LONG_SEARCH_SPLITS", 0)
    monkeypatch.setattr(
        registry, "estimated_seconds", lambda *_, num_paths, **__: 100.0 * num_paths
    )

    async def work() -> None:
        async with service(tmp_path, solver=AllocationEngine(tmp_path, max_path_s=350.0)) as client:
            with pytest.raises(InvalidRequest, match=r"about 400 s, at most 350 are allowed"):
                await client.put_network("x", RING)
            assert await client.networks() == []
            assert (await client.put_network("x", RING, num_paths=3)).paths_estimated_s == 300
            await client.wait_ready("x")

    run(work)


def test_long_searches_do_not_hold_up_short_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_LONG_SEARCH_SPLITS", 20 * 19 * 4)
    goes_on, compute = threading.Event(), NetworkState.prepare

    def held(name: str, spec: Any, report: Any, grown: Any) -> Any:
        assert name == "b4" or goes_on.wait(PATIENCE_S)
        return compute(name, spec, report, grown)

    async def work() -> None:
        monkeypatch.setattr(NetworkState, "prepare", held)
        async with service(tmp_path) as client:
            await client.put_network("long", RING)
            await client.put_network("b4", "b4")
            await client.wait_ready("b4")
            assert (await client.network("long")).state == "computing"
            goes_on.set()
            await client.wait_ready("long")

    run(work)


def test_a_network_is_prepared_again_while_the_machine_lacks_something_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, goes_on = NetworkState.prepare, threading.Event()

    def fail_for_a_while(*arguments: Any) -> Any:
        if not goes_on.is_set():
            raise OSError(errno.EMFILE, "Too many open files")
        return compute(*arguments)

    monkeypatch.setattr(NetworkState, "prepare", fail_for_a_while)
    monkeypatch.setattr(registry, "_FIRST_PAUSE_S", 0.01)

    async def work() -> None:
        async with service(tmp_path) as client:
            await client.put_network("n", RING)
            for _ in range(1_000):
                if (await client.network("n")).warning:
                    break
                await asyncio.sleep(0.05)
            assert "Too many open files" in ((await client.network("n")).warning or "")
            goes_on.set()
            assert (await client.wait_ready("n", timeout_s=PATIENCE_S)).warning is None

    run(work)


def test_the_same_registration_again_begins_the_search_again_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, faults = NetworkState.prepare, [MemoryError("short")]

    def fail_once(*arguments: Any) -> Any:
        if faults:
            raise faults.pop()
        return compute(*arguments)

    monkeypatch.setattr(NetworkState, "prepare", fail_once)

    async def work() -> None:
        async with service(tmp_path) as client:
            await client.put_network("n", RING)
            with pytest.raises(ServiceFault, match="short"):
                await client.wait_ready("n")
            assert (await client.network("n")).state == "failed"
            await client.put_network("n", RING)
            await client.wait_ready("n")

    run(work)


def test_a_search_that_fails_after_its_network_was_replaced_leaves_the_new_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails_now, goes_on, compute = threading.Event(), threading.Event(), NetworkState.prepare

    def held(name: str, spec: Any, *more: Any) -> Any:
        if spec.num_paths == 1:
            assert fails_now.wait(PATIENCE_S)
            raise OSError(errno.EIO, "input/output error")
        assert goes_on.wait(PATIENCE_S)
        return compute(name, spec, *more)

    monkeypatch.setattr(NetworkState, "prepare", held)

    async def work() -> None:
        solver = AllocationEngine(tmp_path)
        async with service(tmp_path, solver=solver) as client:
            await client.put_network("n", RING, num_paths=1)
            old = solver._registry.get("n")
            await client.put_network("n", RING, num_paths=2)
            new = solver._registry.get("n")
            fails_now.set()
            assert old.preparing is not None
            await old.preparing
            assert solver._registry.get("n") is new
            assert not new.is_gone.is_set()
            goes_on.set()
            await client.wait_ready("n")

    monkeypatch.setattr(registry, "_FIRST_PAUSE_S", 0.01)
    run(work)


def test_a_change_of_links_that_is_stored_stays_in_force(tmp_path: Path) -> None:
    """Another change is worked out before the state folder is read again."""

    async def work() -> None:
        solver = AllocationEngine(tmp_path)
        async with service(tmp_path, solver=solver) as client:
            await client.put_network("n", RING)
            await client.wait_ready("n")
            change = {"source": "0", "target": "1", "up": False}
            await solver._registry.change_links("n", {"links": [change]})
            network = solver._registry._entries["n"]
            network_state = network.network_state
            assert network_state is not None
            assert not network.unsaved_links
            network.apply_capacity(network_state)
            assert (network_state.capacity == 0).any()

    run(work)


def test_there_are_no_more_networks_than_allowed(tmp_path: Path) -> None:
    async def work() -> None:
        async with service(tmp_path, solver=AllocationEngine(tmp_path, max_networks=2)) as client:
            for name in ("a", "b", "a"):
                await client.put_network(name, "b4")
            with pytest.raises(ServiceFault, match="delete one first"):
                await client.put_network("c", "b4")
            await client.delete_network("a")
            await client.put_network("c", "b4")
            with pytest.raises(UnknownNetwork):
                await client.network("a")
            await client.wait_ready("c")

    run(work)
