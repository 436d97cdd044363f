"""Kernels on disk: edits of all that a kernel depends on are seen in another process, and nothing
else is compiled."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import torch

from teal.objectives import ObjectiveName
from teal.problem import Allocation, assess
from teal.runtime import cuda, kernel_cache, kernel_fingerprint
from teal.runtime.kernel_cache import KernelCache, interpreting
from teal.runtime.kernel_fingerprint import fingerprint
from teal.solvers.pdhg.fused.kernels import step
from teal.solvers.pipeline import solve
from teal.testing import random_problem

PACKAGE = Path(kernel_cache.__file__).parents[1]

HELPERS = """
from typing import NamedTuple
import numpy as np
from teal.runtime.parallel import inlined_kernel, inner_kernel, kernel

FACTOR = 2.0
TABLE = np.array([1.0, 2.0])

class Pair(NamedTuple):
    left: np.ndarray
    right: np.ndarray

@inner_kernel
def scaled(x):
    return FACTOR * x + TABLE[0]

@inlined_kernel
def shifted(x):
    return x + 10.0
"""
CALLERS = """
import numpy as np
from helpers_of_test import Pair, scaled, shifted
from teal.runtime import kernel_cache
from teal.runtime.parallel import kernel, parallel_kernel

@kernel
def inner(pair):
    return scaled(pair.left[0]) + shifted(pair.left[0])

@kernel
def outer(pair):
    return inner(pair)

@parallel_kernel("out")
def everywhere(i, pair, out):
    out[i] = scaled(pair.left[0]) + i
"""
MAIN = """
import numpy as np
from teal.runtime import kernel_cache
import callers_of_test as callers

class Count(kernel_cache.Announcer):
    number = 0
    def begins(self, name):
        Count.number += 1

with kernel_cache.announcing(Count()):
    one, three, out = np.array([1.0]), np.array([3.0]), np.zeros(2)
    pair = callers.Pair(left=one, right=three)
    callers.everywhere(pair, out)
    print(callers.outer(pair), out[1], Count.number)
"""
# left = 1: (2 x 1 + 1) + (1 + 10) and (2 x 1 + 1) + 1
UNCHANGED = (14.0, 4.0)


_edits = itertools.count(1)


def _write(folder: Path, **texts: str) -> None:
    """Write sources, each with a time of its own: Python's bytecode files know a source by its
    second and size."""
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        file = folder / f"{name}_of_test.py"
        file.write_text(text)
        os.utime(file, (1e9 + next(_edits),) * 2)


def _run(folder: Path, cache: Path) -> tuple[float, float, int]:
    """The two results in a new process, and the number of forms that it compiled."""
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(cache),
        "PYTHONPATH": f"{folder}:{PACKAGE.parent}",
    }
    done = subprocess.run(
        [sys.executable, "-c", MAIN],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    outer, parallel, compiled = done.stdout.split()
    return float(outer), float(parallel), int(compiled)


# What is changed in the helpers' file, and the two results after it.
CHANGES = {
    "a kernel": ("FACTOR * x", "2 * FACTOR * x", (16.0, 6.0)),
    "a constant": ("FACTOR = 2.0", "FACTOR = 5.0", (17.0, 7.0)),
    "an array": ("np.array([1.0, 2.0])", "np.array([9.0, 2.0])", (22.0, 12.0)),
    "a kernel that is compiled into its callers": ("x + 10.0", "x + 20.0", (24.0, 4.0)),
    "the order of fields": (
        "    left: np.ndarray\n    right: np.ndarray",
        "    right: np.ndarray\n    left: np.ndarray",
        UNCHANGED,
    ),
}


@pytest.mark.system
def test_a_change_in_another_file_is_seen_in_another_process(tmp_path: Path) -> None:
    _write(tmp_path / "code", helpers=HELPERS, callers=CALLERS)
    first = _run(tmp_path / "code", tmp_path / "cache")
    assert first[:2] == UNCHANGED
    assert first[2] > 3
    assert _run(tmp_path / "code", tmp_path / "cache") == (*UNCHANGED, 0)
    for what, (old, new, expected) in CHANGES.items():
        assert old in HELPERS
        _write(tmp_path / "code", helpers=HELPERS.replace(old, new))
        found = _run(tmp_path / "code", tmp_path / "cache")
        assert found[:2] == expected, what
        assert found[2] > 0, what


@pytest.mark.slow
def test_another_checkout_and_other_comments_compile_nothing(tmp_path: Path) -> None:
    _write(tmp_path / "code", helpers=HELPERS, callers=CALLERS)
    _run(tmp_path / "code", tmp_path / "cache")
    commented = HELPERS.replace(
        "    return x + 10.0", '    """A docstring."""\n    # a comment\n    return x + 10.0'
    )
    _write(tmp_path / "elsewhere", helpers="# moved down by a line\n" + commented, callers=CALLERS)
    assert _run(tmp_path / "elsewhere", tmp_path / "cache") == (*UNCHANGED, 0)


@pytest.mark.slow
def test_two_processes_that_start_together_compile_each_form_once(tmp_path: Path) -> None:
    _write(tmp_path / "code", helpers=HELPERS, callers=CALLERS)
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": f"{tmp_path / 'code'}:{PACKAGE.parent}",
    }
    started = [
        subprocess.Popen(
            [sys.executable, "-c", MAIN], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=300)[0].split() for process in started]
    assert [tuple(map(float, output[:2])) for output in outputs] == [UNCHANGED, UNCHANGED]
    assert sum(int(output[2]) for output in outputs) == len(
        list((tmp_path / "cache" / "kernels").glob("*.nbc"))
    )


@pytest.mark.slow
def test_files_that_cannot_be_read_are_written_anew(tmp_path: Path) -> None:
    _write(tmp_path / "code", helpers=HELPERS, callers=CALLERS)
    compiled = _run(tmp_path / "code", tmp_path / "cache")[2]
    files = sorted((tmp_path / "cache" / "kernels").glob("*.nbc"))
    assert len(files) == compiled >= 4
    for file, content in zip(
        files, itertools.cycle((b"", b"\x80\x04", b"half a file", b"\x80\x04cgone\nGone\n."))
    ):
        file.write_bytes(content)
    assert _run(tmp_path / "code", tmp_path / "cache") == (*UNCHANGED, compiled)
    assert _run(tmp_path / "code", tmp_path / "cache") == (*UNCHANGED, 0)


@pytest.mark.slow
def test_old_stamps_are_removed_and_the_last_three_are_kept(tmp_path: Path) -> None:
    cache, now = tmp_path / "cache", time.time()
    kept = cache / "kernels"
    _write(tmp_path / "code", helpers=HELPERS, callers=CALLERS)
    _run(tmp_path / "code", cache)
    ages = {"a": 1, "b": 3, "c": 2, "d": 4}  # days since each of four earlier stamps was used
    for key, days in ages.items():
        for form in ("one", "two"):
            _aged(kept / f"callers_of_test.inner.{key}.{form}.nbc", now - 86_400 * days)
    _aged(kept / "gone_from_the_code.kernel.a.one.nbc", now - 100 * 86_400)
    _aged(kept / "callers_of_test.inner_of_another_name.d.one.nbc", now - 4 * 86_400)
    _write(tmp_path / "code", helpers=HELPERS.replace("x + 10.0", "x + 11.0"))
    _run(tmp_path / "code", cache)
    stamps = [file.name.split(".")[-3] for file in kept.glob("callers_of_test.inner.*.nbc")]
    assert sorted(stamp for stamp in stamps if len(stamp) == 1) == ["a", "a"], (
        "two of the code, and the last one"
    )
    assert len(set(stamps)) == 3
    assert not list(kept.glob("gone_from_the_code.*"))
    assert list(kept.glob("callers_of_test.inner_of_another_name.*")), (
        "another kernel's files are its own"
    )


def _aged(file: Path, used: float) -> None:
    file.write_bytes(b"")
    os.utime(file, (used, used))


@pytest.mark.slow
def test_where_nobody_or_everybody_may_write_nothing_is_kept(tmp_path: Path) -> None:
    _write(tmp_path / "code", helpers=HELPERS, callers=CALLERS)
    (tmp_path / "file").write_text("")
    assert _run(tmp_path / "code", tmp_path / "file" / "cache")[:2] == UNCHANGED
    everybodys = tmp_path / "cache" / "kernels"
    everybodys.mkdir(parents=True)
    everybodys.chmod(0o777)
    assert _run(tmp_path / "code", tmp_path / "cache")[:2] == UNCHANGED
    assert not list(everybodys.iterdir())


def test_a_global_whose_value_cannot_be_told_is_refused() -> None:
    namespace: dict[str, object] = {"setting": {"a": 1}, "__name__": "somewhere"}
    exec("def reads(x):\n    return setting", namespace)
    function = namespace["reads"]
    assert callable(function)
    with pytest.raises(TypeError, match=r"reads\.setting"):
        fingerprint(function)


def _kernels() -> dict[str, KernelCache]:
    """Every kernel of the package, by name."""
    found: dict[str, KernelCache] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        if "from teal.runtime.parallel import" not in file.read_text():
            continue
        module = importlib.import_module(
            ".".join(("teal", *file.relative_to(PACKAGE).with_suffix("").parts))
        )
        for value in vars(module).values():
            for form in getattr(value, "dispatchers", (value,)):
                cache = getattr(form, "_cache", None)
                if isinstance(cache, KernelCache):
                    found[cache.name] = cache
    return found


def test_every_kernel_of_the_package_has_a_stamp_of_its_own() -> None:
    stamps = [kernel._fingerprint for kernel in _kernels().values()]
    assert len(stamps) > 150
    assert len(set(stamps)) == len(stamps)


def test_the_stamp_of_a_kernel_covers_the_files_of_its_callees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the iteration uses: a constant of another module, a kernel of a third one, the operators
    of lanes."""
    dispatcher = step.part  # type: ignore[attr-defined]
    before = fingerprint(dispatcher)
    assert fingerprint(dispatcher) == before
    values = dispatcher.py_func.__globals__
    monkeypatch.setitem(values, "LOWEST", -1e33)
    assert fingerprint(dispatcher) != before
    monkeypatch.undo()
    shift = values["simplex_shift"].py_func
    monkeypatch.setattr(
        shift, "__code__", shift.__code__.replace(co_consts=(*shift.__code__.co_consts, 7))
    )
    assert fingerprint(dispatcher) != before


def test_the_stamp_holds_what_numba_may_call_and_for_which_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Machine code that calls Intel's library must not be loaded where there is none."""
    machine = kernel_fingerprint.machine_fingerprint.__wrapped__
    before, this = machine(), kernel_fingerprint.processor()
    assert machine(this) == before
    assert machine(this._replace(name="x86-64-v3", features="")) != before
    monkeypatch.setattr(numba.config, "USING_SVML", not numba.config.USING_SVML)
    assert machine() != before


# What a first solve of a small network calls, over random networks: candidate paths, chosen paths,
# sums over paths and links, and shorter paths.  As Python in a process without kernels, and as
# machine code here.
FIRST_SOLVE = """
import json
import numpy as np
import torch
from teal.network import PathMethod, all_pairs, compute_paths, shortest
from teal.problem import Allocation, all_paths_bound, assess
from teal.solvers import columns
from teal.solvers.short_paths import preferred
from teal.testing import random_problem, random_topology

def results():
    found = []
    for seed in range(2):
        topology = random_topology(seed, nodes=9)
        for method in PathMethod:
            paths = compute_paths(topology, all_pairs(topology), method=method, cache=False)
            found += [paths.leaf.tolist(), paths.trie.parent.tolist(), paths.trie.link.tolist()]
        problem = random_problem(seed, batch=1, failed=seed % 2)
        generator = np.random.default_rng(seed)
        prices = torch.from_numpy(generator.uniform(0, 1, tuple(problem.capacity.shape)))
        splits = preferred(problem, problem.even_splits / 3, "latency")
        figures = assess(problem, Allocation.of_batch(splits, prices, 0.0)).metrics(0)
        bound = float(all_paths_bound(problem, prices)[0])
        found += [splits.tolist(), [figures.value, figures.bound, figures.max_link_utilisation, bound]]
        weight = generator.integers(1, 5, topology.num_links).astype(float)
        links = topology.num_nodes, topology.link_source, topology.link_target
        found.append(shortest.shortest_trees(*links, weight, np.arange(3))[0].tolist())
        more = columns._with_best_paths(problem, columns.SolveResult(
            splits=splits, prices=prices, value=prices[:, 0], bound=problem.demand.sum(1), gap=prices[:, 0],
            iterations=0, solve_s=0.0, state=columns.SolveState(splits, prices), stopped_by=(columns.Stop.GAP,),
        ), 1e-6)
        found.append(more.leaf.tolist())
    return found
"""


@pytest.mark.system
def test_kernels_that_run_as_python_give_what_machine_code_gives(tmp_path: Path) -> None:
    program = FIRST_SOLVE + textwrap.dedent("""
        from teal.runtime.kernel_cache import interpreting
        with interpreting():
            print(json.dumps(results()))
    """)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "TEAL_SHIPPED_KERNELS": "0"}
    python = json.loads(
        subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        ).stdout
    )
    assert not list(tmp_path.rglob("*.nbc")), "nothing was compiled"
    namespace: dict[str, Any] = {}
    exec(FIRST_SOLVE, namespace)
    machine = json.loads(json.dumps(namespace["results"]()))
    assert len(machine) == len(python) > 20
    for ours, theirs in zip(machine, python, strict=True):
        np.testing.assert_allclose(_flat(ours), _flat(theirs), rtol=1e-12, atol=1e-12)


TWO_CALLERS = """
from teal.runtime.kernel_cache import interpreting
from teal.runtime.parallel import inner_kernel, kernel

@inner_kernel
def double(x):
    return 2 * x

@kernel
def quadruple(x):
    return double(double(x))

@kernel
def sextuple(x):
    return 3 * double(x)

print(quadruple(5))
with interpreting():
    print(sextuple(5))
"""


def test_a_kernel_runs_as_python_where_another_has_compiled_what_both_call(tmp_path: Path) -> None:
    """Machine code of an inner kernel cannot be called from Python: the process ended with a
    segmentation fault."""
    module = tmp_path / "two_callers.py"
    module.write_text(TWO_CALLERS)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    run = subprocess.run(
        [sys.executable, module], env=environment, capture_output=True, text=True, timeout=300
    )
    assert (run.returncode, run.stdout.split()) == (0, ["20", "30"]), run.stderr


def _flat(nested: Any) -> list[float]:
    return (
        [number for part in nested for number in _flat(part)]
        if isinstance(nested, list)
        else [nested]
    )


@pytest.mark.parametrize(
    "objective",
    [
        ObjectiveName.TOTAL_FLOW,
        ObjectiveName.WEIGHTED_FLOW,
        ObjectiveName.LATENCY_PENALISED_FLOW,
        ObjectiveName.MAX_LINK_UTILISATION,
        ObjectiveName.MAX_CONCURRENT_FLOW,
    ],
)
@pytest.mark.parametrize("failed", [0, 2])
@pytest.mark.parametrize("batch", [1, 2])
def test_without_kernels_highs_solves_small_programs_to_the_optimum(
    objective: ObjectiveName, failed: int, batch: int
) -> None:
    for seed in range(2):
        problem = random_problem(seed, objective=objective, batch=batch, failed=failed)
        by_engine = solve(problem, gap=1e-4)
        with interpreting():
            exact = solve(problem, gap=1e-6)
        assert exact.iterations == 0
        assert (exact.gap <= 1e-6).all()
        torch.testing.assert_close(exact.value, by_engine.value, rtol=1.1e-4, atol=1e-9)
        checked = assess(problem, Allocation.of_batch(exact.splits, exact.prices, 0.0))
        assert all(status.usable for status in checked.status)
        assert (checked.gap <= 1e-6).all()


def test_the_files_of_a_cuda_kernel_have_the_stamp_of_all_that_it_depends_on() -> None:
    """Nothing can be compiled for a GPU here: what is asked of the index is asked with the
    stamp."""

    class File:
        _source_stamp = "that of one file"

        def load(self) -> str:
            return self._source_stamp

    namespace: dict[str, Any] = {"FACTOR": 2, "__name__": "somewhere"}
    exec("def scaled(x):\n    return FACTOR * x", namespace)
    file, scaled = File(), namespace["scaled"]
    first = cuda._with_fingerprint(file, file.load, scaled)
    assert first == fingerprint(scaled, (cuda._compiler_version(), cuda._MAX_REGISTERS))
    namespace["FACTOR"] = 3
    assert cuda._with_fingerprint(file, file.load, scaled) not in (first, "that of one file")
