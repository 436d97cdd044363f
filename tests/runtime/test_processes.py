"""Calls in processes: each is made once, a fault is passed on, and none begins after the iteration
has ended."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from teal.runtime.processes import call_all


def _write(file: Path, seconds: float) -> None:
    time.sleep(seconds)
    file.touch(exist_ok=False)


@pytest.mark.slow
def test_every_call_is_made_once(tmp_path: Path) -> None:
    calls = [(tmp_path / str(number), 0.0) for number in range(5)]
    assert sorted(call_all(_write, calls, workers=2, threads=1)) == list(range(5))
    assert len(list(tmp_path.iterdir())) == 5
    assert list(call_all(_write, [])) == []


@pytest.mark.slow
def test_no_call_begins_after_the_iteration_has_ended(tmp_path: Path) -> None:
    calls = [(tmp_path / str(number), 0.1) for number in range(200)]
    done = call_all(_write, calls, workers=1)
    assert next(done) == 0
    done.close()  # waits for the calls that have begun
    written = len(list(tmp_path.iterdir()))
    assert 1 <= written < 200
    with pytest.raises(FileExistsError):
        list(call_all(_write, calls[:1]))
