"""Ten times as many requests as the service can solve, against its promise: an answer or a refusal,
and no memory."""

from __future__ import annotations

import asyncio
import collections
import gc
import logging
from pathlib import Path

import psutil
import pytest

from teal_serve.client import Overloaded
from teal_serve.engine.engine import AllocationEngine
from teal_serve.engine.errors import CLIENT_SHARE
from tests.teal_serve.service import b4_service, held_engine, queued, rates_of, run, until

pytestmark = pytest.mark.system

BATCHES = 120  # that the engine solves while the load lasts
WAITING = 8  # requests that may wait, six of one client; they go through the engine together
MEMORY_EVERY = BATCHES // 12  # batches between two measurements of the memory


def test_ten_times_the_load_is_answered_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Between two batches, ten times as many requests arrive as fit into one: no clock has a part
    in the result."""
    caplog.set_level(logging.WARNING, "teal_serve")  # pytest would keep a record of every request
    rates = rates_of()
    answers: collections.Counter[str] = collections.Counter()
    memory: list[int] = []
    solver = AllocationEngine(tmp_path, max_queued=WAITING)

    async def work() -> None:
        async with b4_service(tmp_path, solver=solver) as client:

            async def ask() -> None:
                try:
                    answer = await client.allocate("b4", rates, deadline_ms=60_000)
                except Overloaded as error:
                    answers["refused"] += error.retry_after_s >= 1
                else:
                    assert answer.gap[0] <= 0.01
                    answers["allocated"] += 1

            with held_engine(monkeypatch) as engine:
                unanswered: set[asyncio.Task[None]] = set()

                def all_settled() -> bool:
                    waiting = engine.held + sum(queued(solver, "b4"))
                    return (
                        engine.held > 0 and sum(not task.done() for task in unanswered) == waiting
                    )

                for batch in range(1, BATCHES + 1):
                    unanswered |= {asyncio.create_task(ask()) for _ in range(10 * WAITING)}
                    await until(all_settled, "each request in the engine, in the queue, or refused")
                    if batch % MEMORY_EVERY == 0:
                        gc.collect()
                        memory.append(psutil.Process().memory_info().rss)
                    engine.allow(1)
                    for task in [task for task in unanswered if task.done()]:
                        task.result()  # raises what is neither an allocation nor a refusal
                        unanswered.discard(task)
                engine.allow()
                await asyncio.gather(*unanswered)
                assert sum(answers.values()) == BATCHES * 10 * WAITING
                places = round(CLIENT_SHARE * WAITING)
                assert answers["allocated"] >= (BATCHES - 1) * places, (
                    "each batch answers all that waited"
                )
                assert answers["refused"] > 0.5 * BATCHES * 10 * WAITING
                assert (await client.allocate("b4", rates)).gap[0] <= 0.01
                assert sum(engine.batches) == answers["allocated"] + 1, "no queue is left behind"

    run(work)
    gc.collect()
    memory.append(psutil.Process().memory_info().rss)
    settled = memory[2]  # after a sixth of the batches, pools and caches are as large as they get
    assert memory[-1] < settled + 24 * 2**20, [m >> 20 for m in memory]
