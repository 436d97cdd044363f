"""The launches of a solve on a GPU, recorded once for all programs of a shape: set-up, iterations,
gap checks, and keeping the best.

The program is copied into tensors whose memory stays where it is; everything else is computed there
by recorded launches (:class:`teal.runtime.cuda.LaunchGraph`).  The host copies the program in,
reads one record for each check, and copies the best results out.  Each recording computes what it
needs of the program anew, and hands numbers to others in tensors of this module alone: whether
another recording was refused then makes no difference.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import teal.runtime.cuda as cuda
from teal.network import PathSet
from teal.pathops.cuda_backend import CudaBackend
from teal.problem import Problem, dual_bound
from teal.problem.bounds import from_score
from teal.problem.fixed import FixedProgram, ProgramShape
from teal.solvers.pdhg.cuda import kernels
from teal.solvers.pdhg.dense import Scaling, scaling, start, total_value, trial_primal_weight
from teal.solvers.pdhg.fused.kernels import FAILED_PRICE
from teal.solvers.projection import project
from teal.solvers.result import PdhgState

_TRIVIAL, _VALUE, _BOUND = range(3)  # rows of the record
_TOGETHER = 4  # iterations of a graph: as many as a search does between two tests


@dataclasses.dataclass(frozen=True)
class SearchShape:
    """The programs for which what is recorded can be used.

    Attributes:
        program: shape of the program.
        dtype: type of arrays of the size of the paths.
        has_one_capacity: whether capacities are the same in all matrices.
        has_one_value: whether all demands have the same value.
    """

    program: ProgramShape
    dtype: torch.dtype
    has_one_capacity: bool
    has_one_value: bool

    @classmethod
    def of(cls, problem: Problem, dtype: torch.dtype) -> SearchShape:
        """The shape of a program whose iteration has a type."""
        capacity = problem.capacity
        has_one_capacity = problem.batch == 1 or capacity.stride(0) == 0
        if not has_one_capacity:
            has_one_capacity = bool((capacity == capacity[:1]).all())
        numbers = problem.extremes
        has_one_value = numbers.smallest_value == numbers.largest_value
        return cls(ProgramShape.of(problem), dtype, has_one_capacity, has_one_value)


class Buffers:
    """The state of the iteration at fixed addresses, and the recorded launches over it.

    Args:
        paths: the paths.
        backend: their operations.
        batch: B.
        real: type of arrays of the size of the paths.
        carries_all: whether all demand must be carried, and the y lie on the simplex.
        h_rows: rows of h: 1 if capacities are the same in all matrices, else B.
        values: demand values: 1 if all are equal, else D.
    """

    @torch.inference_mode(False)  # the buffers outlive the inference mode that the caller may be in
    @torch.no_grad()
    def __init__(
        self,
        paths: PathSet,
        backend: CudaBackend,
        batch: int,
        real: torch.dtype,
        *,
        carries_all: bool,
        h_rows: int,
        values: int,
    ) -> None:
        device = backend.device
        demands, num_paths = paths.leaf.shape
        links, float64 = paths.num_links, torch.float64
        self.splits = torch.zeros(
            3, batch, demands, num_paths, dtype=real, device=device
        )  # current, anchor, stepped
        self.price = torch.zeros(batch, links, dtype=real, device=device)
        self.demand = torch.zeros(batch, demands, dtype=real, device=device)
        self.inverse_capacity_sum = torch.ones(h_rows, demands, dtype=real, device=device)
        self.demand_value = torch.ones(values, dtype=real, device=device)
        self.dual = torch.ones(kernels.DUAL_ROWS, batch, links, dtype=float64, device=device)
        self.control = torch.ones(kernels.CONTROL_ROWS, batch, dtype=float64, device=device)
        flow = torch.empty(batch, backend.num_nodes, dtype=real, device=device)
        sums = torch.empty(kernels.SUM_ROWS, batch, backend.sources, dtype=float64, device=device)
        arrived = torch.zeros(batch, dtype=torch.int32, device=device)
        self._device = device
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
            carries_all,
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
            carries_all,
            backend.threads_per_link,
        )
        self._step = cuda.LaunchGraph(device)
        self._together = {count: cuda.LaunchGraph(device) for count in range(1, _TOGETHER + 1)}

    def _iterate_once(self) -> None:
        self._iterate(is_storing=False)

    def _iterate_together(self, count: int) -> None:
        for number in range(count):
            self._iterate(is_storing=number == count - 1)

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
        for _ in range(count - _TOGETHER):
            self._step.run(self._iterate_once)
        if count:
            last = min(count, _TOGETHER)
            self._together[last].run(partial(self._iterate_together, last))

    def fill(
        self, problem: Problem, scale: Scaling, state: PdhgState, primal_weight: Tensor
    ) -> None:
        """Fill the buffers with the program and the first iterate, which ``state`` gives."""
        k = kernels
        point = start(problem, scale, state)
        self.splits.copy_(point.splits.expand(3, -1, -1, -1))
        self.demand.copy_(problem.routable_demand)
        self.inverse_capacity_sum.copy_(
            scale.inverse_capacity_sum[: len(self.inverse_capacity_sum), :, 0]
        )
        self.demand_value.copy_(problem.demand_value[: len(self.demand_value)])
        inverse = problem.inverse_capacity
        dual, control = self.dual, self.control
        dual[k.LOAD_FACTOR].copy_(inverse / scale.load_scale)
        dual[k.INVERSE].copy_(inverse)
        dual[k.FULL].copy_(scale.full_path_utilisation)
        dual[k.COST].copy_(problem.link_cost / scale.objective_scale)
        load = problem.loads(point.splits) * dual[k.LOAD_FACTOR]
        for row, load_row in (
            (k.CURRENT, k.CURRENT_LOAD),
            (k.ANCHOR, k.ANCHOR_LOAD),
            (k.STEPPED, k.STEPPED_LOAD),
        ):
            dual[row].copy_(point.dual)
            dual[load_row].copy_(load)
        control.zero_()
        control[k.WEIGHT].copy_(primal_weight)
        control[k.FIRST_WEIGHT].copy_(primal_weight)
        control[k.FIRST_ERROR].fill_(-1)
        control[k.INVERSE_SCALE].copy_(1 / scale.objective_scale[:, 0])
        self.price.copy_(
            torch.where(inverse > 0, point.dual * inverse + dual[k.COST], FAILED_PRICE)
        )


class Recorded:
    """The launches of a solve.

    Args:
        problem: the first program; others of its shape may follow.
        backend: operations over its paths.
        shape: its shape.

    Attributes:
        buffers: the iteration.
    """

    @torch.inference_mode(False)  # the tensors outlive the inference mode that the caller may be in
    @torch.no_grad()
    def __init__(self, problem: Problem, backend: CudaBackend, shape: SearchShape) -> None:
        self._device = device = backend.device
        self._pool = cuda.memory_pool()
        batch = problem.batch
        demands, num_paths = problem.paths.leaf.shape
        links = problem.paths.num_links
        self.buffers = Buffers(
            problem.paths,
            backend,
            batch,
            shape.dtype,
            carries_all=problem.demand_set.carries_all,
            h_rows=1 if shape.has_one_capacity else batch,
            values=1 if shape.has_one_value else demands,
        )

        def zeros(*size: int) -> Tensor:
            return torch.zeros(*size, dtype=torch.float64, device=device)

        of_paths = batch, demands, num_paths
        self._start = PdhgState(zeros(*of_paths), zeros(batch, links))
        self._is_warm = False
        self._checked = zeros(*of_paths)
        self._best = zeros(*of_paths), zeros(batch, links)
        self._price_scale = zeros(batch, 1)
        self._record = zeros(3, batch)
        self._mask = torch.zeros(2, batch, dtype=torch.bool, device=device)
        self._has_kept = False
        self._has_checked = False
        self._program = FixedProgram(problem, shape.program, torch.float64)
        self._graphs: dict[str, cuda.LaunchGraph] = {}

    @torch.inference_mode(False)
    @torch.no_grad()
    def _run(self, name: str, work: Callable[[], None]) -> None:
        """Replay what was recorded under a name, or record it."""
        if name not in self._graphs:
            self._graphs[name] = cuda.LaunchGraph(self._device, self._pool)
        self._graphs[name].run(work)

    @torch.inference_mode(False)
    @torch.no_grad()
    def _take(self, problem: Problem, state: PdhgState | None) -> None:
        """Copy a program and a start in."""
        self._program.take(problem)
        if state is not None:
            self._start.splits.copy_(state.splits)
            self._start.prices.copy_(state.prices)
        elif self._is_warm:
            self._start.splits.zero_()
            self._start.prices.zero_()
        self._is_warm = state is not None

    def begin(self, problem: Problem, state: PdhgState | None) -> None:
        """Set up for a program of the shape; ``state`` None for no flow and no prices."""
        self._take(problem, state)
        self._has_kept = self._has_checked = False
        self._run("set up", self._set_up)

    def _set_up(self) -> None:
        exact = self._program.problem()
        scale = scaling(exact)
        self._price_scale.copy_(scale.price_scale)
        self.buffers.fill(exact, scale, self._start, trial_primal_weight(exact, scale))
        self._record[_TRIVIAL].copy_(from_score(exact, total_value(exact)))
        for best in self._best:
            best.zero_()

    def trivial_bound(self) -> Tensor:
        """(B,) certified bound by prices of 0."""
        return self._record[_TRIVIAL].cpu()

    def check(self, refill: int) -> tuple[Tensor, Tensor]:
        """(B,) value of the splits of T(z) after projection, and bound of its prices."""

        def work() -> None:
            exact = self._program.problem()
            splits = self.buffers.splits[2].to(torch.float64)
            self._checked.copy_(project(exact, splits, refill))
            self._record[_VALUE].copy_(exact.value(self._checked))
            self._write_bound(exact)

        self._run(f"check, {refill}", work)
        self._has_checked = True
        _, value, bound = self._record.cpu()
        return value, bound

    def certify(self) -> Tensor:
        """(B,) bound of the prices of T(z)."""
        self._run("certify", lambda: self._write_bound(self._program.problem()))
        return self._record[_BOUND].cpu()

    def _write_bound(self, exact: Problem) -> None:
        self._record[_BOUND].copy_(dual_bound(exact, self._prices(exact)))

    def _prices(self, exact: Problem) -> Tensor:
        """(B, E) value per Gbit/s, of y."""
        return self._price_scale * self.buffers.dual[kernels.STEPPED] * exact.inverse_capacity

    def keep(self, is_best_allocation: Tensor, is_best_prices: Tensor) -> None:
        """Keep the allocations and prices of some matrices (B,); the first time all allocations."""
        if not self._has_checked:
            raise RuntimeError("keep must follow check")
        if not self._has_kept:
            is_best_allocation = torch.ones_like(is_best_allocation)
        self._has_kept = True
        masks = is_best_allocation, is_best_prices
        kept = [
            "all" if bool(mask.all()) else "some" if bool(mask.any()) else "none" for mask in masks
        ]
        # A mask is copied to the GPU where it is needed alone: of one matrix all or none are kept.
        if "some" in kept:
            self._mask.copy_(torch.stack(masks))

        def work() -> None:
            found = self._checked, self._prices(self._program.problem())
            for number, (best, new) in enumerate(zip(self._best, found, strict=True)):
                if kept[number] == "all":
                    best.copy_(new)
                if kept[number] == "some":
                    mask = self._mask[number].reshape(-1, *[1] * (best.dim() - 1))
                    best.copy_(torch.where(mask, new, best))

        if kept != ["none", "none"]:
            self._run(f"keep, {kept[0]}, {kept[1]}", work)

    def best(self) -> tuple[Tensor, Tensor]:
        """The splits (B, D, K) and prices (B, E) that were kept."""
        if not self._has_kept:
            raise RuntimeError("nothing was kept")
        splits, prices = self._best
        return splits.clone(), prices.clone()

    def state(self) -> PdhgState:
        """T(z) of the last iteration."""
        splits = self.buffers.splits[2].to(torch.float64, copy=True)
        return PdhgState(splits, self._prices(self._program.problem()))
