"""The GPU engine: two kernel launches an iteration, recorded once and replayed."""

from __future__ import annotations

import dataclasses
import weakref
from typing import cast

import torch
from torch import Tensor

import teal.runtime.cuda as cuda
from teal.network import PathSet
from teal.pathops.cuda_backend import CudaBackend
from teal.problem import Problem
from teal.runtime.memory import available_on, max_batch
from teal.solvers.pdhg.cuda import kernels
from teal.solvers.pdhg.dense import (
    DenseEngine,
    Point,
    bytes_needed,
    scaling,
    start,
    trial_primal_weight,
)
from teal.solvers.pdhg.fused.kernels import FAILED_PRICE
from teal.solvers.result import PdhgState

_REMEDY = "fewer paths a demand (--num-paths) or only the pairs that carry traffic take less"


@dataclasses.dataclass(frozen=True)
class BufferShape:
    """The programs for which a set of buffers can be used.

    Attributes:
        batch: B.
        dtype: type of arrays of the size of the paths.
        carries_all: whether all demand must be carried, and the y lie on the simplex.
        h_rows: rows of h: 1 if capacities are the same in all matrices, else B.
        values: demand values: 1 if all are equal, else D.
    """

    batch: int
    dtype: torch.dtype
    carries_all: bool
    h_rows: int
    values: int


class Buffers:
    """The state of the iteration at fixed addresses, and the recorded launches over it."""

    @torch.inference_mode(False)  # the buffers outlive the inference mode that the caller may be in
    @torch.no_grad()
    def __init__(self, paths: PathSet, backend: CudaBackend, shape: BufferShape) -> None:
        batch, real, device = shape.batch, shape.dtype, backend.device
        demands, num_paths = paths.leaf.shape
        links, float64 = paths.num_links, torch.float64
        self.splits = torch.zeros(
            3, batch, demands, num_paths, dtype=real, device=device
        )  # current, anchor, stepped
        self.price = torch.zeros(batch, links, dtype=real, device=device)
        self.demand = torch.zeros(batch, demands, dtype=real, device=device)
        self.inverse_capacity_sum = torch.ones(shape.h_rows, demands, dtype=real, device=device)
        self.demand_value = torch.ones(shape.values, dtype=real, device=device)
        self.dual = torch.ones(kernels.DUAL_ROWS, batch, links, dtype=float64, device=device)
        self.control = torch.ones(kernels.CONTROL_ROWS, batch, dtype=float64, device=device)
        flow = torch.empty(batch, backend.num_nodes, dtype=real, device=device)
        sums = torch.empty(kernels.SUM_ROWS, batch, backend.sources, dtype=float64, device=device)
        arrived = torch.zeros(batch, dtype=torch.int32, device=device)
        self._device, self._stream = (
            device,
            torch.cuda.current_stream(device) if device.type == "cuda" else None,
        )
        layout = backend.layout(real, 1)
        self._shared_bytes = layout.shared_bytes
        self._blocks = max(1, min(batch * backend.sources, layout.max_blocks))
        self._link_blocks = -(-links // (cuda.LINK_THREADS // backend.threads_per_link)) * batch
        tensors = (
            *self.splits,
            self.price,
            self.demand,
            self.inverse_capacity_sum,
            self.demand_value,
            self.control,
            flow,
            sums,
        )
        source_arrays = kernels.SourceArrays(*(cuda.array(t) for t in tensors))
        self._source_arguments = (
            source_arrays,
            backend.trie,
            layout.memory,
            num_paths,
            batch,
            shape.carries_all,
        )
        link_arrays = kernels.LinkArrays(
            node_flow=cuda.array(flow),
            dual=cuda.array(self.dual),
            control=cuda.array(self.control),
            price=cuda.array(self.price),
            sums=cuda.array(sums),
            arrived=cuda.array(arrived),
            link_ptr=backend.link_ptr,
            link_node=backend.link_node,
        )
        self._link_arguments = (
            link_arrays,
            batch,
            backend.sources,
            shape.carries_all,
            backend.threads_per_link,
        )
        self._step = cuda.LaunchGraph(lambda: self._iterate(is_storing=False), device)
        self._last_step = cuda.LaunchGraph(lambda: self._iterate(is_storing=True), device)

    def join(self) -> None:
        """Make the current stream wait for what an earlier solve did on another stream."""
        if self._stream is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_stream(self._stream)
            self._stream = current

    def _iterate(self, *, is_storing: bool) -> None:
        cuda.launch(
            kernels.step_sources,
            self._device,
            self._blocks,
            self._shared_bytes,
            *self._source_arguments,
            is_storing,
        )
        cuda.launch(
            kernels.step_links,
            self._device,
            self._link_blocks,
            0,
            *self._link_arguments,
            threads=cuda.LINK_THREADS,
        )

    def advance(self, count: int) -> None:
        """Do ``count`` iterations; the last one stores its step."""
        for _ in range(count - 1):
            self._step.replay()
        if count:
            self._last_step.replay()


class CudaEngine(DenseEngine):
    """PDHG on a GPU: a :class:`teal.solvers.pdhg.engine.PdhgEngine`; computes the same as
    PlainEngine.

    Setting up and gap checks are torch over the path operations.  Memory: see
    :func:`dense.bytes_needed`.
    """

    @staticmethod
    def accepts(problem: Problem) -> bool:
        """Whether the kernels can solve the program: linear, over paths without caps, on a GPU with
        numba-cuda.
        """
        if not problem.is_linear:
            return False
        return (
            problem.ops.is_over_paths
            and problem.largest_share is None
            and problem.ops.backend.name == "cuda"
        )

    def __init__(self, problem: Problem, state: PdhgState | None, dtype: torch.dtype) -> None:
        exact = problem.solved.to(torch.float64)
        backend = cast(CudaBackend, problem.ops.backend)
        self._scale = scale = scaling(exact)
        super().__init__(exact, scale.price_scale)
        same_capacity = bool((exact.capacity == exact.capacity[:1]).all())
        same_value = bool((exact.demand_value == exact.demand_value[:1]).all())
        shape = BufferShape(
            batch=exact.batch,
            dtype=dtype,
            carries_all=exact.demand_set.carries_all,
            h_rows=1 if same_capacity else exact.batch,
            values=1 if same_value else exact.paths.num_demands,
        )
        spare = backend.spare_buffers.setdefault(shape, [])
        self._buffers = buffers = spare.pop() if spare else Buffers(exact.paths, backend, shape)
        buffers.join()
        weakref.finalize(self, _give_back, spare, buffers)
        self._load(exact, start(exact, scale, state), trial_primal_weight(exact, scale))

    def _load(self, problem: Problem, point: Point, primal_weight: Tensor) -> None:
        """Fill the buffers with the program and the first iterate."""
        scale, buffers, k = self._scale, self._buffers, kernels
        buffers.splits.copy_(point.splits.expand(3, -1, -1, -1))
        buffers.demand.copy_(problem.routable_demand)
        buffers.inverse_capacity_sum.copy_(
            scale.inverse_capacity_sum[: len(buffers.inverse_capacity_sum), :, 0]
        )
        buffers.demand_value.copy_(problem.demand_value[: len(buffers.demand_value)])
        inverse = problem.inverse_capacity
        dual, control = buffers.dual, buffers.control
        dual[k.LOAD_FACTOR] = inverse / scale.load_scale
        dual[k.INVERSE], dual[k.FULL] = inverse, scale.full_path_utilisation
        dual[k.COST] = problem.link_cost / scale.objective_scale
        load = problem.loads(point.splits) * dual[k.LOAD_FACTOR]
        for row, load_row in (
            (k.CURRENT, k.CURRENT_LOAD),
            (k.ANCHOR, k.ANCHOR_LOAD),
            (k.STEPPED, k.STEPPED_LOAD),
        ):
            dual[row], dual[load_row] = point.dual, load
        control.zero_()
        control[k.WEIGHT], control[k.FIRST_WEIGHT], control[k.FIRST_ERROR] = (
            primal_weight,
            primal_weight,
            -1,
        )
        control[k.INVERSE_SCALE] = 1 / scale.objective_scale[:, 0]
        buffers.price.copy_(
            torch.where(inverse > 0, point.dual * inverse + dual[k.COST], FAILED_PRICE)
        )

    def _last_step(self) -> Point:
        return Point(self._buffers.splits[2], self._buffers.dual[kernels.STEPPED])

    def advance(self, count: int) -> Tensor:
        """Iterate, as in :meth:`PdhgEngine.advance`."""
        self._buffers.advance(count)
        return self._buffers.control[kernels.BOUND].cpu()


def _give_back(spare: list[Buffers], buffers: Buffers) -> None:
    """Keep the buffers for the next solve of their shape; one set is enough unless solves run side
    by side.
    """
    if not spare:
        spare.append(buffers)


def lanes(problem: Problem, dtype: torch.dtype) -> int:
    """How many of the matrices of ``problem`` fit the GPU at once.

    Raises:
        InputError: not even one.
    """
    paths, device, backend = (
        problem.paths,
        problem.ops.device,
        cast(CudaBackend, problem.ops.backend),
    )
    matrix_bytes = bytes_needed(paths, dtype)  # without the path set, which is there already
    result_bytes = (
        2 * 8 * paths.leaf.size * problem.batch
    )  # float64 results of all parts, and again when joined
    if matrix_bytes * problem.batch > available_on(device):
        backend.spare_buffers.clear()
    return max_batch(
        "solve", matrix_bytes, problem.batch, device, _REMEDY, fixed_bytes=result_bytes
    )
