"""Recordings of launches, over functions that stand for those of torch.cuda."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from teal.runtime import cuda


class _Stream:
    def wait_stream(self, _: object) -> None:
        """Nothing runs beside."""


class _Graph:
    """A graph; what was done with the graphs is in ``done``."""

    done: list[str]

    def capture_begin(self, **_: Any) -> None:
        self.done.append("begin")

    def capture_end(self) -> None:
        self.done.append("end")

    def replay(self) -> None:
        self.done.append("replay")


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is done, on a machine that seems to have a GPU."""
    found: list[str] = []
    monkeypatch.setattr(_Graph, "done", found, raising=False)
    monkeypatch.setattr(cuda, "SIMULATED", False)
    monkeypatch.setattr(cuda, "_can_record", True)
    monkeypatch.setattr(cuda, "_side_stream", lambda _: _Stream())
    for name, fake in (
        ("CUDAGraph", _Graph),
        ("current_stream", lambda *_: _Stream()),
        ("device", contextlib.nullcontext),
        ("stream", contextlib.nullcontext),
    ):
        monkeypatch.setattr(torch.cuda, name, fake)
    yield found
    cuda._warn_no_graphs.cache_clear()


def test_work_is_done_then_recorded_then_replayed(done: list[str]) -> None:
    graph = cuda.LaunchGraph(torch.device("cuda"))
    for _ in range(4):
        graph.run(lambda: done.append("work"))
    recorded = ["begin", "work", "end"]
    assert done == ["work", *recorded, "replay", "replay", "replay"]


def test_after_a_refusal_nothing_is_recorded_any_more(done: list[str]) -> None:
    def refused() -> None:
        done.append("work")
        if done[-2:] == ["begin", "work"]:
            raise RuntimeError("operation not permitted when stream is capturing")

    graph, other = (cuda.LaunchGraph(torch.device("cuda")) for _ in range(2))
    graph.run(refused)
    with pytest.warns(UserWarning, match="TEAL_CUDA_GRAPHS=0"):
        graph.run(refused)
    assert done == ["work", "begin", "work", "end", "work"]
    for _ in range(3):
        other.run(lambda: done.append("other"))
    assert done[5:] == ["other"] * 3
