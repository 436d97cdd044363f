"""A service in this process, and what tests send it."""

from __future__ import annotations

import asyncio
import socket
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
from teal.client import (
    AsyncClient,
)
from teal.network import all_pairs
from teal.serving.app import make_app
from teal.serving.served import Job, Served
from teal.serving.solver import Solver

TOKEN = "a-token-of-some-length"


@asynccontextmanager
async def service(
    folder: Path,
    token: str = "",
    most_waiting: int = 64,
    most_bytes: int = 1 << 20,
    sent: str = "",
    patience_s: float = 5.0,
) -> AsyncIterator[AsyncClient]:
    """A client of a fresh service; ``sent`` is the token that it sends, if not the right one."""
    app = make_app(Solver(folder, most_waiting, patience_s=patience_s), token, most_bytes)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with AsyncClient("http://test", sent or token, transport=transport) as client:
        yield client


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(work())  # type: ignore[arg-type]


def rates_of(count: int = 1, seed: int = 0, size: float = 1500.0) -> np.ndarray:
    return np.random.default_rng(seed).lognormal(0, 1, (count, 132)) * size / 10


def problem_of(rates: np.ndarray) -> teal.Problem:
    topology = teal.load_topology("b4")
    paths = teal.compute_paths(topology, all_pairs(topology), cache=False)
    return teal.Problem.create(topology, paths, teal.Objective(), rates)


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def slow_engine(monkeypatch: pytest.MonkeyPatch, seconds: float) -> list[int]:
    """Let every job take so much longer; how many matrices each had, as they come."""
    solve, solved = Served.solve, list[int]()

    def slowly(self: Served, job: Job, *more: Any) -> Any:
        time.sleep(seconds)
        solved.append(len(job.rates))
        return solve(self, job, *more)

    monkeypatch.setattr(Served, "solve", slowly)
    return solved


@contextmanager
def listening(folder: Path, most_bytes: int = 1 << 20, token: str = "") -> Iterator[str]:
    """The address of a fresh service on a port of this machine, without Ray."""
    import uvicorn

    port = free_port()
    app = make_app(Solver(folder), token, most_bytes)
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
