"""A service that listens while its kernels are being compiled."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")

import httpx

from teal.runtime import shipped_kernels
from teal_serve.engine.engine import AllocationEngine
from teal_serve.engine.kernels import KernelStatus
from teal_serve.http.app import make_app
from tests.house import PACKAGES
from tests.teal_serve.service import rates_of, run

pytestmark = pytest.mark.system
_PATIENCE_S = 0.05


def _client(folder: Path, kernels: KernelStatus) -> httpx.AsyncClient:
    app = make_app(AllocationEngine(folder, kernels=kernels, patience_s=_PATIENCE_S))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


def test_what_needs_kernels_is_refused_until_they_are_there(tmp_path: Path) -> None:
    async def work() -> None:
        kernels = KernelStatus()
        async with _client(tmp_path, kernels) as client:
            assert (await client.get("/healthz")).json() == {"status": "ok"}
            assert (await client.put("/v1/networks/b4", json={"topology": "b4"})).status_code == 201
            loading = await client.get("/readyz")
            assert (loading.status_code, loading.headers["retry-after"]) == (503, "1")
            kernels.begin(18)
            kernels.num_done = 6
            missing = await client.get("/readyz")
            assert missing.status_code == 503
            assert "6 of 18 parts are done" in missing.text
            assert "less than a minute left" in missing.text
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
        kernels = KernelStatus()
        app = make_app(AllocationEngine(tmp_path, kernels=kernels, patience_s=30.0))
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
        kernels = KernelStatus()
        kernels.begin(3)
        kernels.fault = "teal warm-up ended with 1"
        async with _client(tmp_path, kernels) as client:
            found = await client.get("/readyz")
            assert found.status_code == 503
            assert "cannot be prepared: teal warm-up ended with 1" in found.text

    run(work)


class _Clock:
    """A clock that the test sets."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_the_remaining_time_is_measured_and_never_0_before_the_end() -> None:
    clock = _Clock()
    kernels = KernelStatus(clock)
    kernels.begin(20)
    assert "unknown until the first part is done" in str(kernels.not_ready_error())
    # On a busy machine each part takes a minute: 15 parts and the loading remain.
    clock.now_s += 300
    kernels.num_done = 5
    assert "5 of 20 parts are done, about 16 min left" in str(kernels.not_ready_error())
    assert kernels.not_ready_error().retry_after_s == 60
    # A part takes longer than the others: the estimate grows with it.
    clock.now_s += 120
    assert "about 23 min left" in str(kernels.not_ready_error())
    # All are compiled, and loading takes longer than a part did.
    clock.now_s = 100 + 200
    kernels.num_done = 20
    for _ in range(40):
        message = str(kernels.not_ready_error())
        assert (
            "all 20 parts of the kernels are compiled and being loaded, less than a minute left"
            in message
        )
        assert kernels.not_ready_error().retry_after_s >= 1
        clock.now_s += 5
    kernels.finish()
    kernels.check()


# Every option of a request once, and what is in memory of each kernel before and after.
_REQUESTS = """
import asyncio, gc, sys
import httpx, numpy as np
from pathlib import Path
from numba.core.dispatcher import Dispatcher
from teal_serve.engine.kernels import KernelStatus
from teal_serve.engine.engine import AllocationEngine
from teal_serve.http.app import make_app
import teal

def forms():
    kernels = (one for one in gc.get_objects() if isinstance(one, Dispatcher))
    return {(one.py_func.__module__, one.py_func.__name__, str(key))
            for one in kernels for key in one.overloads}

async def main(folder, name):
    topology = teal.load_topology(name)
    traffic = teal.load_traffic("gravity:seed=0,count=20,load=4", topology).read(slice(None))
    solver = AllocationEngine(folder, kernels=KernelStatus(), model="auto")
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


_ROOT = Path(__file__).parents[2]
_LEVELS = shipped_kernels.levels()
# Beside B4 a network on which size chooses other engines, kernels on all threads, and the
# interior-point master of column generation.
_NETWORKS = "b4", "topohub:sndlib/germany50:few"


@pytest.fixture(scope="session")
def machine_code_of_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The machine code that a wheel of these sources brings, for the best level of this machine.

    ``TEAL_PACKAGE_KERNELS`` names a folder of it; without, it is made in the working folder of
    ``python -m teal.app.machine_code``: what earlier runs have compiled is not compiled again.
    """
    if made := os.environ.get("TEAL_PACKAGE_KERNELS"):
        return Path(made)
    folder = tmp_path_factory.mktemp("machine-code")
    command = [sys.executable, "-m", "teal.app.machine_code", "--best", "--out", str(folder)]
    subprocess.run(command, cwd=_ROOT, check=True, capture_output=True, timeout=_COMPILE_S)
    return folder


_COMPILE_S = 3_600  # seconds for all kernels, on two cores that others use too


@pytest.fixture
def installed(tmp_path: Path, machine_code_of_package: Path) -> Path:
    """A folder with these sources and that machine code, as an installed wheel has them."""
    root = tmp_path / "installed"
    (root / "teal" / "_shipped").mkdir(parents=True)
    (root / "teal" / "_shipped" / "kernels").symlink_to(machine_code_of_package)
    for entry in (_ROOT / "teal").iterdir():
        if entry.name not in ("_shipped", "__pycache__"):
            (root / "teal" / entry.name).symlink_to(entry)
    for name in (*PACKAGES[1:], "baselines", "tests", "data", "models"):
        (root / name).symlink_to(_ROOT / name)
    return root


@pytest.mark.slow
@pytest.mark.xdist_group("machine-code")
@pytest.mark.skipif(not _LEVELS, reason="this processor has no level of the package")
def test_a_wheel_has_the_machine_code_of_every_request(installed: Path, tmp_path: Path) -> None:
    """From an empty cache, requests of every kind compile nothing, in whatever process."""
    settings = {
        "PYTHONPATH": str(installed),
        "NUMBA_CACHE_DIR": str(tmp_path / "numba"),
        "TEAL_SHIPPED_KERNELS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.teal_serve.every_request", tmp_path / "state", *_NETWORKS],
        cwd=installed,
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=_COMPILE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    compiled = [file.name for file in (tmp_path / "numba" / "kernels").glob("*.nbc")]
    assert done.stdout == ""
    assert compiled == [], "compiled by another process of the service"
