"""A service that listens while its kernels are being compiled."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")

import httpx

from teal.serving.engine.kernels import Kernels
from teal.serving.engine.solver import Solver
from teal.serving.http.app import make_app
from tests.serving.service import rates_of, run

pytestmark = pytest.mark.system
_PATIENCE_S = 0.05


def _client(folder: Path, kernels: Kernels) -> httpx.AsyncClient:
    app = make_app(Solver(folder, kernels=kernels, patience_s=_PATIENCE_S))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


def test_what_needs_kernels_is_refused_until_they_are_there(tmp_path: Path) -> None:
    async def work() -> None:
        kernels = Kernels()
        async with _client(tmp_path, kernels) as client:
            assert (await client.get("/healthz")).json() == {"status": "ok"}
            assert (await client.put("/v1/networks/b4", json={"topology": "b4"})).status_code == 201
            loading = await client.get("/readyz")
            assert (loading.status_code, loading.headers["retry-after"]) == (503, "1")
            kernels.begin(18)
            kernels.done = 6
            missing = await client.get("/readyz")
            assert missing.status_code == 503
            assert "6 of 18 parts are done" in missing.text
            assert "s are left" in missing.text
            body = {"rates": rates_of().tolist()}
            refused = await client.post("/v1/networks/b4/allocations", json=body)
            assert refused.status_code == 503
            assert refused.json()["error"] == "not_ready"
            assert int(refused.headers["retry-after"]) >= 1
            assert (await client.get("/v1/networks/b4")).json()["state"] == "computing"
            kernels.finish()
            for _ in range(200):
                if (await client.get("/v1/networks/b4")).json()["state"] == "ready":
                    break
                await asyncio.sleep(0.05)
            assert (await client.get("/readyz")).status_code == 200
            answered = await client.post("/v1/networks/b4/allocations", json=body)
            assert answered.status_code == 200

    run(work)


def test_a_request_waits_a_moment_for_kernels_that_are_being_loaded(tmp_path: Path) -> None:
    async def work() -> None:
        kernels = Kernels()
        app = make_app(Solver(tmp_path, kernels=kernels, patience_s=30.0))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            await client.put("/v1/networks/b4", json={"topology": "b4"})
            body = {"rates": rates_of().tolist()}
            asking = asyncio.create_task(client.post("/v1/networks/b4/allocations", json=body))
            await asyncio.sleep(0.1)
            assert not asking.done()
            kernels.finish()
            assert (await asking).status_code == 200

    run(work)


def test_a_fault_of_the_compilation_is_said(tmp_path: Path) -> None:
    async def work() -> None:
        kernels = Kernels()
        kernels.begin(3)
        kernels.fault = "teal warm-up ended with 1"
        async with _client(tmp_path, kernels) as client:
            found = await client.get("/readyz")
            assert found.status_code == 503
            assert "cannot be prepared: teal warm-up ended with 1" in found.text

    run(work)


# Every option of a request once, and what is in memory of each kernel before and after.
_REQUESTS = """
import asyncio, gc, sys
import httpx, numpy as np
from pathlib import Path
from numba.core.dispatcher import Dispatcher
from teal.serving.engine.kernels import Kernels
from teal.serving.engine.solver import Solver
from teal.serving.http.app import make_app
import teal

def forms():
    kernels = (one for one in gc.get_objects() if isinstance(one, Dispatcher))
    return {(one.py_func.__module__, one.py_func.__name__, str(key))
            for one in kernels for key in one.overloads}

async def main(folder, name):
    topology = teal.load_topology(name)
    traffic = teal.load_traffic("gravity:seed=0,count=20,load=4", topology).read(slice(None))
    solver = Solver(folder, kernels=Kernels(), model="auto")
    solver.prepare()
    solver.kernels.finish()
    transport = httpx.ASGITransport(make_app(solver))
    async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=300) as client:
        await client.put("/v1/networks/one", json={"topology": name})
        while (await client.get("/v1/networks/one")).json()["state"] != "ready":
            await asyncio.sleep(0.1)
        before = forms()
        one, at = {"rates": traffic[:1].tolist()}, "/v1/networks/one/allocations"
        asked = [one, *({"rates": traffic[:n].tolist()} for n in (2, 5, 12, 20))]
        asked += [{**one, "objective": objective} for objective in (
            "max_link_utilisation", "max_concurrent_flow", "least_cost", "proportional_fair",
            "alpha_fair", "max_min", "latency_penalised_flow")]
        asked += [{**one, **option} for option in (
            {"gap": 1e-5}, {"protect": "cables"}, {"entries": 8}, {"prove": True},
            {"form": "dense"}, *({"solver": s} for s in ("model", "model-pdhg", "pdhg")))]
        asked += [{"rates": traffic[:2].tolist(), "classes": ["gold", "bronze"]}]
        for body in asked:
            answer = await client.post(at, json={"deadline_ms": 60_000, **body})
            assert answer.status_code == 200, (body.keys(), answer.text[:200])
        number = (await client.post(at, json=one)).json()["id"]
        still = await client.post(f"{at}?previous={number}", json={**one, "max_churn": 0.3})
        assert still.status_code == 200, still.text[:200]
        for path in (at, "/v1/networks/one/paths", "/v1/networks/one/map", "/metrics"):
            assert (await client.get(path)).status_code == 200, path
        for form in sorted(forms() - before):
            print(*form)

asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


@pytest.mark.slow
def test_no_request_needs_a_kernel_that_was_not_there_before(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _REQUESTS, str(tmp_path), "b4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == ""
