"""That every CUDA kernel compiles for a GPU, with the types with which it is launched; no GPU is needed for that."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from teal import cuda
from teal.objectives import ObjectiveName
from teal.pathops import make_path_ops
from teal.pathops.cuda_backend import CudaBackend
from teal.solvers.pdhg.cuda_engine import _Buffers, _Shape
from teal.testing import random_problem

pytestmark = pytest.mark.skipif(not cuda.SIMULATED, reason="there is a GPU: the other tests compile")

_COMPILE = """
import importlib, json, sys, types as python_types
from numba import types
from numba.cuda import compile_ptx, dispatcher
from numba.np.numpy_support import from_dtype
import numpy as np
dispatcher.get_current_device = lambda: python_types.SimpleNamespace(compute_capability=(8, 0))
for module, name, kinds in json.load(sys.stdin):
    kernel = getattr(importlib.import_module(module), name)
    signature = tuple(
        types.UniTuple(types.int64, int(k[1:])) if k[0] == "t"
        else types.boolean if k == "bool" else types.int64 if k == "int"
        else types.Array(from_dtype(np.dtype(k)), 1, "C")
        for k in kinds
    )
    ptx, _ = compile_ptx(kernel.py_func, signature, cc=(8, 0))
    print(name, len(ptx))
"""


def _kind(argument: Any) -> str:
    if isinstance(argument, tuple):
        return f"t{len(argument)}"
    if isinstance(argument, bool):
        return "bool"
    return "int" if isinstance(argument, int) else np.dtype(argument.dtype).str


def test_every_kernel_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("numba_cuda") is None:
        pytest.skip("needs numba-cuda with its compiler: pip install 'teal-te[cuda]'")
    launched: set[tuple[str, str, tuple[str, ...]]] = set()

    def record(kernel: Any, device: torch.device, blocks: Any, shared: int, *arguments: Any, threads: int = 0) -> None:
        launched.add((kernel.fn.__module__, kernel.fn.__name__, tuple(_kind(a) for a in arguments)))

    for room in (cuda.SHARED_BYTES, cuda.RESERVED_BYTES):
        monkeypatch.setattr(cuda, "SHARED_BYTES", room)
        problem = random_problem(0, objective=ObjectiveName.TOTAL_FLOW, nodes=4)
        ops = make_path_ops(problem.paths, "cpu", "cuda")
        for dtype in (torch.float32, torch.float64):
            with monkeypatch.context() as patch:
                patch.setattr(cuda, "launch", record)
                ops.path_sum(problem.capacity.to(dtype))
                ops.link_sum(problem.even_splits.to(dtype))
                ops.path_max(problem.capacity.to(dtype))
                shape = _Shape(problem.batch, dtype, False, 1, 1)
                assert isinstance(ops.backend, CudaBackend)
                _Buffers(problem.paths, ops.backend, shape).advance(2)
    assert len(launched) == 2 * 2 * 6 - 2 * 2, "six kernels, four of which keep nodes in shared or in global memory"
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_ENABLE_CUDASIM"}
    done = subprocess.run(
        [sys.executable, "-c", _COMPILE], input=json.dumps(sorted(launched)), text=True, capture_output=True,
        env=environment, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.splitlines()) == len(launched)
