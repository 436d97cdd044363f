"""A minute of ten times what the service can do: everybody is answered, and nothing stays behind."""

from __future__ import annotations

import asyncio
import collections
import gc
import logging
import time
from pathlib import Path

import psutil
import pytest

from teal.client import Overloaded
from tests.serving.service import rates_of, run, service, slow_engine

SECONDS, ENGINE_S, WAITING = 60.0, 0.2, 8
CAPACITY = WAITING / ENGINE_S  # requests a second: what waits goes through the engine together


def test_ten_times_what_it_can_do_for_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "teal.serving")  # pytest would keep a record of every request
    slow_engine(monkeypatch, ENGINE_S)
    rates = rates_of()
    answers: collections.Counter[str] = collections.Counter()
    memory: list[int] = []

    async def work() -> None:
        async with service(tmp_path, most_waiting=WAITING) as client:
            await client.put_network("b4", "b4")
            await client.wait_ready("b4")

            async def ask() -> None:
                try:
                    found = await client.allocate("b4", rates, deadline_ms=60_000)
                except Overloaded as error:
                    answers["turned away"] += error.retry_after_s >= 1
                else:
                    assert found.gap[0] <= 0.01
                    answers["allocated"] += 1

            begin = time.monotonic()
            asked: set[asyncio.Task[None]] = set()
            sent, marked = 0, 0.0
            while (spent := time.monotonic() - begin) < SECONDS:
                while sent < 10 * CAPACITY * spent:
                    asked.add(asyncio.create_task(ask()))
                    sent += 1
                for task in [task for task in asked if task.done()]:
                    task.result()  # raises what is neither an allocation nor a clear refusal
                    asked.discard(task)
                assert len(asked) < 100 * CAPACITY, "answers come, or refusals; other tests may hold the machine"
                if spent >= marked:
                    gc.collect()
                    memory.append(psutil.Process().memory_info().rss)
                    marked += SECONDS / 12
                await asyncio.sleep(0.005)
            await asyncio.gather(*asked)
            assert sum(answers.values()) == sent
            assert answers["turned away"] > 0.5 * sent
            assert answers["allocated"] > 0.25 * CAPACITY * SECONDS, "those who are let in get their answers"
            begin = time.monotonic()
            assert (await client.allocate("b4", rates)).gap[0] <= 0.01
            assert time.monotonic() - begin < 25 * ENGINE_S, "no queue is left behind"

    run(work)
    gc.collect()
    memory.append(psutil.Process().memory_info().rss)
    settled = memory[2]  # after a sixth of the time pools and caches are as large as they get
    assert memory[-1] < settled + 24 * 2**20, [m >> 20 for m in memory]
