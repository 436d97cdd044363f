"""Test service in this process: clients, requests, and a solver thread that waits for the test."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")

import httpx

import teal
from teal.network import all_pairs
from teal_serve.client import AsyncClient, Client, ServedAllocation, ServiceFault, Unreachable
from teal_serve.engine import scheduler
from teal_serve.engine.engine import AllocationEngine
from teal_serve.engine.network_state import NetworkState
from teal_serve.engine.queue import Chunk
from teal_serve.http.app import make_app
from tests.gate import PATIENCE_S

TOKEN = "a-token-of-some-length"


@asynccontextmanager
async def service(
    folder: Path,
    token: str = "",
    max_queued: int = 128,
    max_bytes: int = 1 << 20,
    sent: str = "",
    patience_s: float = 5.0,
    solver: AllocationEngine | None = None,
    tokens: tuple[str, ...] = (),
) -> AsyncIterator[AsyncClient]:
    """Client of a fresh service.

    Args:
        folder: state folder.
        token: required token.
        max_queued, patience_s: as in :class:`AllocationEngine`.
        max_bytes: maximum body size.
        sent: token of the client, if not the right one.
        solver: allocation engine, instead of a new one.
        tokens: accepted tokens, instead of one.
    """
    known = tokens or ((token,) if token else ())
    app = make_app(
        solver or AllocationEngine(folder, max_queued, patience_s=patience_s), known, max_bytes
    )
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with AsyncClient("http://test", sent or token, transport=transport) as client:
        yield client


@asynccontextmanager
async def b4_service(folder: Path, **options: Any) -> AsyncIterator[AsyncClient]:
    """A client of a fresh service, with the ``options`` of :func:`service`, in which B4 is
    registered and ready."""
    async with service(folder, **options) as client:
        await client.put_network("b4", "b4")
        await client.wait_ready("b4")
        yield client


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(work())  # type: ignore[arg-type]


def rates_of(count: int = 1, seed: int = 0, size: float = 1500.0) -> np.ndarray:
    return np.random.default_rng(seed).lognormal(0, 1, (count, 132)) * size / 10


def problem_of(rates: np.ndarray, objective: str = "total_flow") -> teal.Problem:
    topology = teal.load_topology("b4")
    paths = teal.compute_paths(topology, all_pairs(topology), cache=False)
    return teal.Problem.create(topology, paths, objective, rates)


def b4_network_state() -> NetworkState:
    """State of B4, as a replica holds it."""
    topology = teal.load_topology("b4")
    return NetworkState(topology, teal.compute_paths(topology, all_pairs(topology), cache=False))


def free_port() -> int:
    """Free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Asking(threading.Thread):
    """A request to the network ``default`` in a thread of its own, for a gap that takes all of two
    seconds.

    Attributes:
        result: the allocation, or the fault; None before either.
    """

    def __init__(self, address: str, rates: np.ndarray) -> None:
        super().__init__()
        self.result: ServedAllocation | ServiceFault | None = None
        self._address, self._rates = address, rates

    def run(self) -> None:
        with Client(self._address, TOKEN) as client:
            try:
                self.result = client.allocate("default", self._rates, gap=1e-12, deadline_ms=2000)
            except ServiceFault as fault:
                self.result = fault


def assert_answered_before_the_end(
    asking: Asking, process: subprocess.Popen[str], address: str, log: Path
) -> None:
    """A service that was told to stop answers the request that it holds, ends well, and is gone."""
    asking.join(timeout=PATIENCE_S)
    assert isinstance(asking.result, ServedAllocation), asking.result
    assert process.wait(timeout=PATIENCE_S) == 0, log.read_text()
    with Client(address, TOKEN) as client, pytest.raises(Unreachable):
        client.networks()


class HeldEngine:
    """Solver thread of the services in this process, which waits before each batch until the test
    allows it.

    Attributes:
        batches: number of matrices of each batch taken, including the waiting one.
        held: number of matrices of the waiting batch; 0 without one.
    """

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.held = 0
        self._allowed = threading.Semaphore(0)

    def allow(self, batches: int = 1000) -> None:
        """Let the engine solve so many more batches."""
        self._allowed.release(batches)

    def wait(self, matrices: int) -> None:
        """Take a batch, then wait until it is allowed."""
        self.batches.append(matrices)
        self.held = matrices
        assert self._allowed.acquire(timeout=PATIENCE_S), "the test does not allow the batch"
        self.held = 0


@contextmanager
def held_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldEngine]:
    """Hold the solver thread of every service in this process; released at the end."""
    work, engine = scheduler.solve_slice, HeldEngine()

    def held(network_state: NetworkState, batch: list[Chunk], *more: Any) -> Any:
        engine.wait(sum(chunk.size for chunk in batch))
        return work(network_state, batch, *more)

    with monkeypatch.context() as patch:
        patch.setattr(scheduler, "solve_slice", held)
        try:
            yield engine
        finally:
            engine.allow()


async def until(condition: Callable[[], bool], what: str) -> None:
    """Let other tasks run until a condition holds; fail with ``what`` after ``PATIENCE_S`` seconds."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.005)


def queued(solver: AllocationEngine, name: str) -> list[int]:
    """Numbers of matrices of the queued requests, in order of arrival."""
    return [
        len(request.rates)
        for request in solver.scheduler.queued_requests(solver._registry.ready_state(name))
    ]


@contextmanager
def listening(folder: Path, max_bytes: int = 1 << 20, token: str = "") -> Iterator[str]:
    """Address of a fresh service on a port of this machine, without Ray."""
    import uvicorn

    port = free_port()
    app = make_app(AllocationEngine(folder), (token,) if token else (), max_bytes)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="critical"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
