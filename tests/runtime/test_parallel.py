"""Which form of a kernel runs, on how many threads: by its size, and by what else the machine
does."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np
import pytest
import torch

from teal.runtime import parallel
from teal.runtime.arrays import FloatArray, Int64Array
from teal.runtime.parallel import as_int64, kernel, parallel_kernel, partitioned_kernel, threads_for
from teal.runtime.thread_team import parallel_for

LARGE, SMALL = 10**9, 10


class Line(NamedTuple):
    """a x + b."""

    a: FloatArray
    b: float


@parallel_kernel("out")
def evaluate(
    part: int,
    line: Line,
    offset: FloatArray | None,
    is_negative: bool,
    threads: Int64Array,
    out: FloatArray,
) -> None:
    value = line.a[0] * part + line.b
    if offset is not None:
        value += offset[part]
    out[part] += -value if is_negative else value
    threads[part] = numba.get_thread_id()


_evaluate_part = evaluate.part  # type: ignore[attr-defined]


@kernel
def evaluate_repeatedly(times, line, is_negative, threads, out):  # type: ignore[no-untyped-def]
    for _ in range(times):
        arguments = (line, None, is_negative, threads, out)
        parallel_for(_evaluate_part, as_int64(len(out)), arguments)


@partitioned_kernel("out")
def count_parts(begin: int, end: int, step: int, out: FloatArray) -> None:
    for part in range(begin, end):
        if out[part] < 0:
            raise ValueError("below 0")
        out[part] += step


@partitioned_kernel("parts", int)
def note_threads(begin: int, end: int, parts: int, first: FloatArray) -> None:
    for part in range(begin, end):
        first[part] = begin


@pytest.fixture
def _two_threads() -> Iterator[None]:
    if numba.config.NUMBA_NUM_THREADS < 2:
        pytest.skip("needs two cores")
    numba.set_num_threads(2)
    yield
    numba.set_num_threads(1)


@pytest.mark.usefixtures("_two_threads")
@pytest.mark.parametrize("is_taken", [False, True])
def test_large_kernels_have_all_threads_unless_others_hold_the_cores(
    is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "_cores_are_taken", lambda: is_taken)
    with threads_for(LARGE):
        assert numba.get_num_threads() == (1 if is_taken else 2)
        with threads_for(SMALL):
            assert numba.get_num_threads() == 1
        assert numba.get_num_threads() == (1 if is_taken else 2)
    with threads_for(SMALL):
        assert numba.get_num_threads() == 1
    assert numba.get_num_threads() == 2


@pytest.mark.usefixtures("_two_threads")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("is_negative", [False, True])
def test_the_thread_team_computes_each_part_once(threads: int, is_negative: bool) -> None:
    numba.set_num_threads(threads)
    line = Line(np.array([3.0]), 2.0)
    sign = -1 if is_negative else 1
    for count in (0, 1, 2, 3, 8, 1001):
        values = sign * (3.0 * np.arange(count) + 2)
        offset = np.linspace(0, 1, count)
        out = np.zeros(count)
        thread_of = np.full(count, -1)
        evaluate(line, None, is_negative, thread_of, out)
        np.testing.assert_array_equal(out, values)
        if threads == 1:
            assert len(set(thread_of)) == min(count, 1)
        evaluate(line, offset, is_negative, thread_of, out)
        np.testing.assert_allclose(out, 2 * values + sign * offset, rtol=1e-12)
        out[:] = 0
        evaluate_repeatedly(4, line, is_negative, thread_of, out)
        np.testing.assert_array_equal(out, 4 * values)
        # Equal shares of consecutive parts; the other threading layers may run two on one thread.
        if numba.threading_layer() != "omp":
            continue
        num_threads = min(count, threads)
        sizes = np.unique(thread_of, return_counts=True)[1]
        assert len(sizes) == num_threads
        assert (np.diff(thread_of) != 0).sum() == max(num_threads - 1, 0)
        assert not count or sizes.max() - sizes.min() <= 1


@pytest.mark.usefixtures("_two_threads")
def test_teams_of_several_threads_do_not_disturb_each_other() -> None:
    line = Line(np.array([3.0]), 2.0)

    def work(seed: int) -> None:
        numba.set_num_threads(2)
        count = 100 + seed
        for _ in range(200):
            out = np.zeros(count)
            evaluate(line, None, False, np.zeros(count, int), out)
            np.testing.assert_array_equal(out, 3.0 * np.arange(count) + 2)

    evaluate(line, None, False, np.zeros(4, int), np.zeros(4))
    if numba.threading_layer() == "workqueue":
        pytest.skip("Numba's own threads serve one caller at a time")
    with ThreadPoolExecutor(4) as pool:
        for thread in [pool.submit(work, seed) for seed in range(4)]:
            thread.result()


def test_a_kernel_on_the_thread_team_runs_as_python() -> None:
    script = """
import numpy as np
from teal.runtime import kernel_cache
from tests.runtime.test_parallel import Line, evaluate
out = np.zeros(3)
with kernel_cache.interpreting():
    evaluate(Line(np.array([3.0]), 2.0), None, True, np.zeros(3, int), out)
print(out.tolist(), kernel_cache.num_compiled())
"""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=Path(__file__).parents[2],
            env=os.environ | {"NUMBA_CACHE_DIR": folder, "TEAL_SHIPPED_KERNELS": "0"},
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout.split("\n")[0] == "[-2.0, -5.0, -8.0] 0"


@pytest.mark.usefixtures("_two_threads")
def test_each_part_is_computed_once_by_one_of_the_threads() -> None:
    for parts in (0, 1, 2, 3, 8):
        out, first = np.zeros(parts), np.full(parts, -1.0)
        count_parts(3, out)
        note_threads(parts, first)
        np.testing.assert_array_equal(out, np.full(parts, 3.0))
        half = parts // 2 if parts > 1 else parts
        np.testing.assert_array_equal(first, [0] * half + [half] * (parts - half))
    with threads_for(SMALL):
        first = np.zeros(4)
        note_threads(4, first)
        np.testing.assert_array_equal(first, np.zeros(4))


@pytest.mark.usefixtures("_two_threads")
@pytest.mark.parametrize("faulty", [0, 3])
def test_a_fault_in_a_part_is_the_callers(faulty: int) -> None:
    out = np.zeros(4)
    out[faulty] = -1
    with pytest.raises(ValueError, match="below 0"):
        count_parts(1, out)


@pytest.mark.usefixtures("_two_threads")
def test_the_threads_are_new_after_a_fork() -> None:
    count_parts(1, np.zeros(4))
    child = os.fork()
    if not child:
        out = np.zeros(4)
        count_parts(1, out)
        os._exit(int(out.sum()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4


def test_cores_are_taken_if_as_many_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = os.cpu_count() or 1
    for running, expected in (
        (0, False),
        (1, False),
        (cores, False),
        (cores + 1, True),
        (cores + 9, True),
    ):
        monkeypatch.setattr(parallel, "_running_threads", lambda running=running: running)
        monkeypatch.setattr(parallel._load_sample, "until", -1.0)
        assert parallel._cores_are_taken() is expected
    monkeypatch.setattr(parallel, "_running_threads", lambda: 0)
    assert parallel._cores_are_taken(), "the last look serves for a while"
    monkeypatch.undo()
    assert parallel._running_threads() >= 1


def test_a_thread_that_begins_in_the_block_of_another_has_all_of_torchs_threads_afterwards() -> (
    None
):
    has_begun, may_end, seen = threading.Event(), threading.Event(), list[int]()

    def quiet() -> None:
        with parallel.quiet_torch(1):
            has_begun.set()
            assert may_end.wait(60)

    def other() -> None:
        assert has_begun.wait(60)
        torch.ones(3).sum()  # takes over the number of threads of the process, which is 1 now
        with parallel.quiet_torch(1):
            seen.append(torch.get_num_threads())
        seen.append(torch.get_num_threads())
        may_end.set()

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with ThreadPoolExecutor(2) as pool:
            for thread in [pool.submit(quiet), pool.submit(other)]:
                thread.result()
        assert seen == [1, 3]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_threads_keep_the_number_of_torchs_threads_that_they_were_given() -> None:
    before, seen = torch.get_num_threads(), list[int]()

    def work() -> None:
        torch.set_num_threads(1)
        with parallel.quiet_torch(1):
            pass
        seen.append(torch.get_num_threads())

    torch.set_num_threads(3)
    try:
        with parallel.quiet_torch(1):
            pass
        torch.set_num_threads(2)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert seen == [1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
