"""What must survive a second registration, damaged files, a full disk and a lock that somebody
holds."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")

import httpx

from teal.runtime import storage
from teal_serve import process
from teal_serve.client import ServiceFault
from teal_serve.engine.engine import AllocationEngine
from teal_serve.engine.store import Store
from teal_serve.http.app import make_app
from tests.gate import PATIENCE_S
from tests.teal_serve.service import b4_service, rates_of, run, service, until

_LINK = {"source": "1", "target": "2"}


def test_the_same_registration_again_keeps_links_measurements_and_answers(tmp_path: Path) -> None:
    async def work() -> None:
        async with service(tmp_path) as client:
            await client.put_network("b4", "b4")
            before = await client.wait_ready("b4")
            await client._http.patch(
                "/v1/networks/b4/links", json={"links": [{**_LINK, "up": False}]}
            )
            answer = await client.allocate("b4", rates_of(1))
            await client.put_network("b4", "b4")
            after = await client.wait_ready("b4")
            assert after.generation == before.generation
            assert sum(link.in_force == 0 for link in after.links) == 2
            kept = await client._http.get(f"/v1/networks/b4/allocations/{answer.id}")
            assert kept.status_code == 200
            await client.put_network("b4", "b4", num_paths=3)
            other = await client.wait_ready("b4")
            assert other.generation != before.generation
            assert all(link.in_force > 0 for link in other.links), "another network begins anew"

    run(work)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("bad.json", {"generation": "../..", "network": {"topology": "b4"}}),
        ("bad.json", {"generation": 7, "network": {"topology": "b4"}}),
        ("bad.json", [1, 2]),
        ("bad.json", {"generation": "0" * 32, "network": {"topology": "b4", "num_paths": -1}}),
        ("bad.links.json", [1, 2]),
        ("bad.links.json", {"generation": "", "links": [1]}),
        ("bad.links.json", "{"),
    ],
)
def test_a_damaged_network_stops_no_other_and_touches_nothing_outside(
    tmp_path: Path, file: str, content: object
) -> None:
    folder = tmp_path / "outside" / "state"
    store = Store(folder)
    store.put("good", {"topology": "b4"})
    store.put("bad", {"topology": "b4"})
    generation = store.read("bad").generation
    if isinstance(content, dict) and "links" in content:
        content = {**content, "generation": generation}
    (folder / file).write_text(content if isinstance(content, str) else json.dumps(content))
    beside = tmp_path / "outside" / "precious"
    beside.mkdir()

    async def work() -> None:
        solver = AllocationEngine(folder)
        await solver.sync_with_store()
        async with service(folder, solver=solver) as client:
            await client.wait_ready("good")
            assert (await client.allocate("good", rates_of(1))).status == ("gap",)
            for path in ("measurements", "paths", "allocations"):
                response = await client._http.get(f"/v1/networks/bad/{path}")
                assert (response.status_code, response.json()["error"]) == (409, "failed")
            await client.delete_network("bad")
            await client.put_network("bad", "b4")
            await client.wait_ready("bad")

    run(work)
    assert beside.is_dir()


@pytest.mark.parametrize(
    "links",
    [
        {"0": {"capacity": -5.0}},
        {"0": {"capacity": float("nan")}},
        {"0": {"capacity": "5"}},
        {"0": {"up": "no"}},
        {"-1": {"up": False}},
        {"38": {"up": False}},
    ],
)
def test_stored_changes_that_are_none_are_refused(tmp_path: Path, links: dict[str, Any]) -> None:
    async def work() -> None:
        solver = AllocationEngine(tmp_path)
        async with service(tmp_path, solver=solver) as client:
            await client.put_network("b4", "b4")
            assert len((await client.wait_ready("b4")).links) == 38
            stored = {"generation": solver._registry.get("b4").generation, "links": links}
            (tmp_path / "b4.links.json").write_text(json.dumps(stored))
            for _ in range(2):
                response = await client._http.get("/v1/networks/b4")
                assert (response.status_code, response.json()["error"]) == (409, "failed")
        async with service(tmp_path, solver=AllocationEngine(tmp_path)) as again:
            with pytest.raises(ServiceFault, match="the stored change of link") as fault:
                await again.allocate("b4", rates_of())
            assert fault.value.status == 409

    run(work)


@pytest.mark.parametrize("file", ["bad.json", "bad.links.json"])
@pytest.mark.parametrize("kind", ["folder", "link to itself"])
def test_an_entry_that_cannot_be_opened_stops_no_other(
    tmp_path: Path, file: str, kind: str
) -> None:
    store, entry = Store(tmp_path), tmp_path / file
    store.put("good", {"topology": "b4"})
    store.put("bad", {"topology": "b4"})
    entry.unlink()
    if kind == "folder":
        entry.mkdir()
    else:
        entry.symlink_to(file)

    async def work() -> None:
        solver = AllocationEngine(tmp_path)
        await solver.sync_with_store()
        async with service(tmp_path, solver=solver) as client:
            await client.wait_ready("good")
            response = await client._http.get("/v1/networks/bad")
            assert (response.status_code, response.json()["error"]) == (409, "failed")
            repaired = (409, 409) if kind == "folder" else (201 if file == "bad.json" else 200, 204)
            put = await client._http.put(
                "/v1/networks/bad", json={"topology": "b4", "num_paths": 2}
            )
            assert (
                put.status_code,
                (await client._http.delete("/v1/networks/bad")).status_code,
            ) == repaired
            assert (await client._http.get("/v1/networks/good")).status_code == 200

    run(work)


def test_a_file_that_cannot_be_opened_for_a_while_takes_no_change_of_links_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        solver = AllocationEngine(tmp_path)
        async with b4_service(tmp_path, solver=solver) as client:
            with monkeypatch.context() as patch:
                patch.setattr(storage, "atomic_file", _full)
                await client.change_link("b4", "1", "2", up=False)
                (tmp_path / "b4.json").rename(tmp_path / "elsewhere")
                (tmp_path / "b4.json").symlink_to("b4.json")
                assert (await client._http.get("/v1/networks/b4")).status_code == 409
            (tmp_path / "elsewhere").replace(tmp_path / "b4.json")
            await solver.sync_with_store()
            await until(
                lambda: not solver._registry.get("b4").unsaved_links, "the change is not stored"
            )
            assert sum(link.in_force == 0 for link in (await client.network("b4")).links) == 2

    run(work)


@contextmanager
def _full(file: Path, mode: int = 0) -> Iterator[Path]:
    yield Path("/dev/null")
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("cause", ["full disk", "locked"])
def test_a_link_failure_is_in_force_at_once_and_stored_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    async def work() -> None:
        solver = AllocationEngine(tmp_path)
        async with b4_service(tmp_path, solver=solver) as client:
            with monkeypatch.context() as patch, (tmp_path / ".lock").open("w") as lock:
                if cause == "locked":
                    patch.setattr("teal_serve.engine.store._LOCK_PATIENCE_S", 0.2)
                    fcntl.flock(lock, fcntl.LOCK_EX)
                else:
                    patch.setattr(storage, "atomic_file", _full)
                changing = asyncio.create_task(
                    client._http.patch(
                        "/v1/networks/b4/links", json={"links": [{**_LINK, "up": False}]}
                    )
                )
                assert (await client._http.get("/healthz")).status_code == 200
                response = await changing
                assert response.status_code == 200
                assert "not stored" in response.json()["warning"]
                assert "not stored" in (await client._http.get("/readyz")).json()["warnings"]["b4"]
                assert (
                    "teal_networks_with_warnings 1.0" in (await client._http.get("/metrics")).text
                )
                links = [link["in_force"] for link in response.json()["links"]]
                assert links.count(0) == 2
                answer = await client.allocate("b4", rates_of(1))
                assert float(answer.utilisation[0, links.index(0)]) == 0
            await solver.sync_with_store()
            while solver._registry.get("b4").unsaved_links:
                await asyncio.sleep(0.01)
            assert (await client._http.get("/readyz")).json()["warnings"] == {}
        async with service(tmp_path, solver=AllocationEngine(tmp_path)) as again:
            assert sum(link.in_force == 0 for link in (await again.wait_ready("b4")).links) == 2

    run(work)


def test_link_failures_that_meet_while_nothing_can_be_stored_are_all_in_force_and_stored_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        solver = AllocationEngine(tmp_path)
        async with b4_service(tmp_path, solver=solver) as client:
            info = await client.network("b4")
            ends = [(link.source, link.target) for link in info.links if link.source < link.target][
                :12
            ]
            monkeypatch.setattr("teal_serve.engine.store._LOCK_PATIENCE_S", 0.2)
            with (tmp_path / ".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                await asyncio.gather(*(client.change_link("b4", *pair, up=False) for pair in ends))
                down = [
                    (link.source, link.target)
                    for link in (await client.network("b4")).links
                    if not link.in_force
                ]
                assert set(ends) <= set(down)
                assert len(solver._registry.get("b4").unsaved_links) == len(down) == 2 * len(ends)
            await solver.sync_with_store()
            await until(
                lambda: not solver._registry.get("b4").unsaved_links, "the changes are not stored"
            )
        stored = Store(tmp_path).read("b4").links
        assert [change["up"] for change in stored.values()] == [False] * 2 * len(ends)

    run(work)


def test_the_last_of_several_changes_of_a_link_is_the_one_that_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_changes, begun, go_on = Store.change_links, threading.Event(), threading.Event()

    def held_at_first(store: Store, *arguments: Any) -> None:
        if not begun.is_set():
            begun.set()
            assert go_on.wait(PATIENCE_S)
        store_changes(store, *arguments)

    async def work() -> None:
        solver = AllocationEngine(tmp_path)
        async with b4_service(tmp_path, solver=solver) as client:
            monkeypatch.setattr(Store, "change_links", held_at_first)
            down = asyncio.create_task(client.change_link("b4", "1", "2", up=False))
            await until(begun.is_set, "the first change is not stored")
            up = asyncio.create_task(client.change_link("b4", "1", "2", up=True))
            network = solver._registry.get("b4")
            await until(
                lambda: up.done() or any(change["up"] for change in network.unsaved_links.values()),
                "no second one",
            )
            go_on.set()
            await asyncio.gather(down, up)
            assert all(link.in_force > 0 for link in (await client.network("b4")).links)

    run(work)
    assert {change["up"] for change in Store(tmp_path).read("b4").links.values()} == {True}


def test_a_key_counts_for_one_answer_in_force(tmp_path: Path) -> None:
    async def work() -> None:
        async with b4_service(tmp_path) as client:
            first, second = [await client.allocate("b4", rates_of(1, seed)) for seed in (0, 1)]
            body = {"rates": rates_of(1, 2).tolist(), "max_churn": 0.5, "form": "dense", "gap": 0.2}
            codes = []
            for previous in (first.id, first.id, second.id):
                response = await client._http.post(
                    f"/v1/networks/b4/allocations?previous={previous}",
                    json=body,
                    headers={"Idempotency-Key": "a"},
                )
                codes.append(response.status_code)
            assert codes == [200, 200, 409]

    run(work)


def test_state_is_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    Store(folder).put("b4", {"topology": "b4"})
    assert folder.stat().st_mode & 0o077 == 0
    assert (folder / "b4.json").stat().st_mode & 0o077 == 0


def test_weights_come_with_what_may_be_sent(tmp_path: Path) -> None:
    """On a network with twice the load that it carries, weights alone would overload links."""

    async def work() -> None:
        async with b4_service(tmp_path) as client:
            info = await client.network("b4")
            rates = rates_of(1, size=60_000)
            answer = await client.allocate("b4", rates, entries=16)
            routes = await client.paths("b4")
            number = {(link.source, link.target): e for e, link in enumerate(info.links)}
            capacity = np.array([link.capacity for link in info.links])
            load = np.zeros(len(capacity))
            for d, paths in enumerate(routes.paths):
                for k, nodes in enumerate(paths):
                    for ends in itertools.pairwise(nodes):
                        load[number[ends]] += rates[0, d] * answer.splits[0, d, k]
            assert (load / capacity).max() == pytest.approx(
                float(answer.max_link_utilisation[0]), rel=1e-4
            )
            assert (load <= capacity * (1 + 1e-6)).all()
            body = {"rates": rates.tolist(), "entries": 16, "form": "dense"}
            dense = (await client._http.post("/v1/networks/b4/allocations", json=body)).json()[
                "allocations"
            ][0]
            carried = float((rates[0] * np.array(dense["admitted_share"])).sum() / rates.sum())
            assert carried == pytest.approx(dense["satisfied_demand"], rel=1e-4)

    run(work)


def test_a_server_has_a_longest_deadline(tmp_path: Path) -> None:
    async def work() -> None:
        async with b4_service(
            tmp_path, solver=AllocationEngine(tmp_path, max_deadline_s=2.0)
        ) as client:
            with pytest.raises(ServiceFault, match=r"at most 2,000"):
                await client.allocate("b4", rates_of(1), deadline_ms=2_001)
            response = await client._http.post(
                "/v1/networks/b4/allocations", json={"rates": rates_of(1).tolist()}
            )
            assert response.status_code == 200, "the default deadline is no longer than the longest"

    run(work)


def test_two_hosts_and_endless_numbers_are_refused_and_counted_by_route(tmp_path: Path) -> None:
    async def work() -> None:
        app = make_app(AllocationEngine(tmp_path), hosts=("localhost",))
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://localhost"
        ) as http:
            both = [("Host", "localhost"), ("Host", "evil.com")]
            assert (await http.get("/v1/networks", headers=both)).status_code == 400
            headers = {"Content-Type": "application/json", "Content-Length": "9" * 5_000}
            assert (await http.put("/v1/networks/x", headers=headers)).status_code == 413
            arrow = {"Content-Type": "application/vnd.apache.arrow.stream"}
            assert (
                await http.put("/v1/networks/x", headers=arrow, content=b"{}")
            ).status_code == 415
            text = (await http.get("/metrics")).text
            assert 'teal_requests_total{route="/v1/networks/{name}",status="413"} 1.0' in text
            assert 'teal_requests_total{route="/v1/networks",status="400"} 1.0' in text

    run(work)


def test_the_state_folder_is_looked_at_again_after_a_look_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks: list[int] = []

    def look() -> list[Any]:
        looks.append(len(looks))
        if len(looks) < 3:
            raise OSError("the folder is away")
        return []

    async def work() -> None:
        solver = AllocationEngine(tmp_path)
        monkeypatch.setattr(solver._registry, "sync_with_store", look)
        monkeypatch.setattr(process, "_STORE_POLL_INTERVAL_S", 0.0)
        looking = asyncio.create_task(process._poll_store(solver))
        await until(lambda: len(looks) > 3 or looking.done(), "no further look")
        looking.cancel()
        assert len(looks) > 3

    run(work)
    assert [record.getMessage() for record in caplog.records] == ["state folder not read"]
