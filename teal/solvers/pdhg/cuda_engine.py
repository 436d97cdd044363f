"""The engine of the GPU: two launches an iteration, recorded once and replayed."""

from __future__ import annotations

import dataclasses
import weakref
from typing import cast

import torch
from torch import Tensor

import teal.cuda as cuda
from teal.memory import available_on, fitting
from teal.network import PathSet
from teal.pathops.cuda_backend import CudaBackend
from teal.problem import Problem
from teal.solvers.pdhg import cuda_kernels as kernels
from teal.solvers.pdhg.dense import DenseEngine, Point, bytes_needed, guessed_omega, in_utilisations, scaling, start
from teal.solvers.pdhg.engine import PdhgState
from teal.solvers.pdhg.kernels import DEAD


@dataclasses.dataclass(frozen=True)
class _Shape:
    """What one set of buffers is good for."""

    batch: int
    dtype: torch.dtype
    balanced: bool
    reaches: int
    worths: int


class _Buffers:
    """The iteration's state at fixed addresses, and the recorded launches over it."""

    @torch.inference_mode(False)  # they outlive whatever mode the caller is in
    @torch.no_grad()
    def __init__(self, paths: PathSet, backend: CudaBackend, shape: _Shape) -> None:
        batch, real, device = shape.batch, shape.dtype, backend.device
        demands, places = paths.leaf.shape
        links, wide = paths.num_links, torch.float64
        self.splits = torch.zeros(3, batch, demands, places, dtype=real, device=device)  # point, anchor, offer
        self.price = torch.zeros(batch, links, dtype=real, device=device)
        self.demand = torch.zeros(batch, demands, dtype=real, device=device)
        self.reach = torch.ones(shape.reaches, demands, dtype=real, device=device)
        self.worth = torch.ones(shape.worths, dtype=real, device=device)
        self.dual = torch.ones(kernels.DUAL_ROWS, batch, links, dtype=wide, device=device)
        self.control = torch.ones(kernels.CONTROL_ROWS, batch, dtype=wide, device=device)
        flow = torch.empty(batch, backend.num_nodes, dtype=real, device=device)
        sums = torch.empty(kernels.SOURCE_ROWS, batch, backend.sources, dtype=wide, device=device)
        arrived = torch.zeros(batch, dtype=torch.int32, device=device)
        self._device, self._stream = device, torch.cuda.current_stream(device) if device.type == "cuda" else None
        mode, _, self._shared, scratch, most = backend.room(real, 1)
        self._blocks = max(1, min(batch * backend.sources, most))
        self._link_blocks = -(-links // (cuda.LINK_THREADS // backend.rows)) * batch
        a, balanced = backend.arrays, shape.balanced
        tensors = *self.splits, self.price, self.demand, self.reach, self.worth, self.control, flow, sums
        trie = (a[name] for name in ("link", "above", "below", "ends", "end", "count", "starts", "level_end"))
        self._of_sources = (
            *(cuda.array(t) for t in tensors), scratch, *trie, backend.widest, places, batch, balanced,
        )  # fmt: skip
        self._mode = mode
        self._of_links = (
            *(cuda.array(t) for t in (flow, self.dual, self.control, self.price, sums, arrived)), a["link_ptr"],
            a["link_node"], batch, backend.sources, balanced, backend.rows,
        )  # fmt: skip
        self._step = cuda.Graph(lambda: self._iterate(storing=False), device)
        self._last_step = cuda.Graph(lambda: self._iterate(storing=True), device)

    def join(self) -> None:
        """Wait on the current stream for what an earlier solve did on another."""
        if self._stream is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_stream(self._stream)
            self._stream = current

    def _iterate(self, *, storing: bool) -> None:
        cuda.launch(
            kernels.step_sources, self._device, self._blocks, self._shared, *self._of_sources, storing, self._mode
        )
        cuda.launch(kernels.step_links, self._device, self._link_blocks, 0, *self._of_links, threads=cuda.LINK_THREADS)

    def advance(self, count: int) -> None:
        """Iterate; the last iteration leaves where its step led."""
        for _ in range(count - 1):
            self._step.replay()
        if count:
            self._last_step.replay()


class CudaEngine(DenseEngine):
    """See :class:`teal.solvers.pdhg.engine.Engine`; :class:`teal.solvers.pdhg.plain.PlainEngine` says what it computes.

    Setting up and looks are torch over the path operations.  Memory: see :func:`teal.solvers.pdhg.dense.bytes_needed`.
    """

    def __init__(self, problem: Problem, state: PdhgState | None, dtype: torch.dtype) -> None:
        exact = in_utilisations(problem.to(torch.float64))
        backend = cast(CudaBackend, problem.ops.backend)
        self._scale = scale = scaling(exact)
        super().__init__(exact, scale.unit)
        balanced = exact.objective.is_balanced
        alike = bool((exact.capacity == exact.capacity[:1]).all())
        uneven = bool((exact.demand_value != exact.demand_value[:1]).any())
        shape = _Shape(
            exact.batch, dtype, balanced, 1 if alike else exact.batch, exact.paths.num_demands if uneven else 1
        )
        spare = backend.spare.setdefault(shape, [])
        self._buffers = buffers = spare.pop() if spare else _Buffers(exact.paths, backend, shape)
        buffers.join()
        weakref.finalize(self, _give_back, spare, buffers)
        self._load(exact, start(exact, scale, state), guessed_omega(exact, scale))

    def _load(self, problem: Problem, point: Point, omega: Tensor) -> None:
        """Fill the buffers."""
        scale, held, k = self._scale, self._buffers, kernels
        balanced = problem.objective.is_balanced
        held.splits.copy_(point.splits.expand(3, -1, -1, -1))
        held.demand.copy_(torch.where(problem.routable, problem.demand, 0))
        held.reach.copy_(scale.along[: len(held.reach), :, 0])
        held.worth.copy_(problem.demand_value[: len(held.worth)])
        inverse = problem.inverse_capacity
        dual, control = held.dual, held.control
        dual[k.PER_LOAD] = inverse / scale.scale if balanced else inverse
        dual[k.INVERSE], dual[k.THROUGH] = inverse, scale.through
        dual[k.COST] = problem.link_cost / scale.scale
        load = problem.loads(point.splits) * dual[k.PER_LOAD]
        for y, own in ((k.POINT, k.POINT_LOAD), (k.ANCHOR, k.ANCHOR_LOAD), (k.OFFER, k.OFFER_LOAD)):
            dual[y], dual[own] = point.dual, load
        control.zero_()
        control[k.OMEGA], control[k.FIRST_OMEGA], control[k.FIRST_ERROR] = omega, omega, -1
        control[k.UNIT] = 1 / scale.scale[:, 0]
        held.price.copy_(torch.where(inverse > 0, point.dual * inverse + dual[k.COST], DEAD))

    def _offered(self) -> Point:
        return Point(self._buffers.splits[2], self._buffers.dual[kernels.OFFER])

    def advance(self, count: int) -> Tensor:
        """See Engine."""
        self._buffers.advance(count)
        return self._buffers.control[kernels.BOUND].cpu()


def _give_back(spare: list[_Buffers], buffers: _Buffers) -> None:
    if not spare:  # one of a shape is enough, unless solves run side by side
        spare.append(buffers)


def lanes(problem: Problem, dtype: torch.dtype) -> int:
    """How many of the matrices of ``problem`` fit the GPU at once.

    Raises:
        InputError: not even one.
    """
    paths, device, backend = problem.paths, problem.ops.device, cast(CudaBackend, problem.ops.backend)
    each = bytes_needed(paths, dtype)  # the path set is there already
    results = 2 * 8 * paths.leaf.size * problem.batch  # of all parts, and once more when they are joined
    if each * problem.batch > available_on(device):
        backend.spare.clear()
    remedy = "fewer paths a demand (--num-paths) or only the pairs that carry traffic take less"
    return fitting("solve", each, problem.batch, device, remedy, besides=results)
