"""Every CUDA kernel against numba-cuda's compiler, with the argument types of its launches; no GPU
is needed."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from teal.objectives import ObjectiveName
from teal.pathops import make_path_ops
from teal.pathops.cuda_backend import CudaBackend
from teal.runtime import cuda
from teal.solvers.pdhg.cuda.recorded import Buffers
from teal.testing import random_problem

pytestmark = [
    pytest.mark.skipif(
        not cuda.SIMULATED, reason="with a GPU, the other tests compile the kernels"
    ),
    pytest.mark.system,  # compiles for tens of seconds
]

_COMPILE = """
import importlib, json, sys, types as python_types
from numba import types
from numba.cuda import compile_ptx, dispatcher
from numba.np.numpy_support import from_dtype
import numpy as np
from teal.runtime.kernel_fingerprint import fingerprint
def type_of(kind):
    if isinstance(kind, list) and kind[0] == "named":
        owner = getattr(importlib.import_module(kind[1]), kind[2])
        return types.NamedTuple(tuple(map(type_of, kind[3])), owner)
    if isinstance(kind, list):
        return types.UniTuple(types.int64, len(kind[1]))
    if kind in ("bool", "int"):
        return types.boolean if kind == "bool" else types.int64
    return types.Array(from_dtype(np.dtype(kind)), 1, "C")
dispatcher.get_current_device = lambda: python_types.SimpleNamespace(compute_capability=(8, 0))
for module, name, kinds in json.load(sys.stdin):
    kernel = getattr(importlib.import_module(module), name)
    signature = tuple(map(type_of, kinds))
    ptx, _ = compile_ptx(kernel.py_func, signature, cc=(8, 0))
    print(name, len(ptx), fingerprint(kernel))  # a GPU's cache asks for the stamp; the simulator has no cache
"""


def _kind(argument: Any) -> Any:
    """The type of a kernel's argument, in a form that JSON can hold and that can be compared."""
    if hasattr(argument, "_fields"):
        owner = type(argument)
        return "named", owner.__module__, owner.__name__, tuple(map(_kind, argument))
    if isinstance(argument, tuple):
        return "tuple", tuple(map(_kind, argument))
    if isinstance(argument, bool):
        return "bool"
    return "int" if isinstance(argument, int) else np.dtype(argument.dtype).str


@pytest.mark.system
def test_every_cuda_kernel_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("numba_cuda") is None:
        pytest.skip("needs numba-cuda with its compiler: pip install 'teal-te[cuda]'")
    launched: set[tuple[str, str, tuple[Any, ...]]] = set()

    def record(
        kernel: Any,
        device: torch.device,
        blocks: Any,
        shared: int,
        *arguments: Any,
        threads: int = 0,
    ) -> None:
        launched.add(
            (
                kernel.fn.__module__,
                kernel.fn.__name__,
                tuple(_kind(argument) for argument in arguments),
            )
        )

    for shared_bytes in (cuda.SHARED_BYTES, cuda.RESERVED_BYTES):
        monkeypatch.setattr(cuda, "SHARED_BYTES", shared_bytes)
        problem = random_problem(0, objective=ObjectiveName.TOTAL_FLOW, nodes=4)
        ops = make_path_ops(problem.paths, "cpu", "cuda")
        for dtype in (torch.float32, torch.float64):
            with monkeypatch.context() as patch:
                patch.setattr(cuda, "launch", record)
                ops.path_sum(problem.capacity.to(dtype))
                ops.link_sum(problem.even_splits.to(dtype))
                ops.path_max(problem.capacity.to(dtype))
                assert isinstance(ops.backend, CudaBackend)
                Buffers(
                    problem.paths,
                    ops.backend,
                    problem.batch,
                    dtype,
                    carries_all=False,
                    h_rows=1,
                    values=1,
                ).advance(2)
                _ = dataclasses.replace(problem, ops=ops).to(dtype).extremes
    assert len(launched) == 2 * 2 * 6 - 2 * 2 + 2, (
        "six kernels, four of which keep nodes in shared or in global memory, and one of extremes"
    )
    environment = {
        name: value for name, value in os.environ.items() if name != "NUMBA_ENABLE_CUDASIM"
    }
    process = subprocess.run(
        [sys.executable, "-c", _COMPILE],
        input=json.dumps(sorted(launched, key=str)),
        text=True,
        capture_output=True,
        env=environment,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    assert len(process.stdout.splitlines()) == len(launched)
