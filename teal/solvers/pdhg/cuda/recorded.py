"""Recorded launches of a GPU solve: set-up, iterations, gap checks and incumbent.

One recording (:class:`teal.runtime.cuda.LaunchGraph`) serves all programs of a shape: the host
copies a program into tensors at fixed addresses, reads one record per check, and copies the
incumbent out.  Each recording recomputes what it needs of the program, and passes values to others
only in tensors of this module, so that a rejected recording does not affect the others.
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
from teal.solvers.result import SolveState

_TRIVIAL, _VALUE, _BOUND = range(3)  # rows of the record
# Largest number of iterations in a graph: those between two tests of the search.
_MAX_GRAPH_ITERATIONS = 4


@dataclasses.dataclass(frozen=True)
class SearchShape:
    """Shape of the programs that can share a recording.

    Attributes:
        program: shape of the program.
        dtype: type of arrays of the size of the paths.
        has_one_capacity: whether capacities are equal in all matrices.
        has_one_value: whether all demands have the same value.
    """

    program: ProgramShape
    dtype: torch.dtype
    has_one_capacity: bool
    has_one_value: bool

    @classmethod
    def of(cls, problem: Problem, dtype: torch.dtype) -> SearchShape:
        """Return the shape of a program whose iteration has the type ``dtype``."""
        capacity = problem.capacity
        # A row that is expanded over the batch (stride 0) needs no comparison.
        has_one_capacity = problem.batch == 1 or capacity.stride(0) == 0
        if not has_one_capacity:
            has_one_capacity = bool((capacity == capacity[:1]).all())
        extremes = problem.extremes
        has_one_value = extremes.smallest_value == extremes.largest_value
        return cls(ProgramShape.of(problem), dtype, has_one_capacity, has_one_value)


class Buffers:
    """State of the PDHG iteration at fixed GPU addresses, and the recorded launches over it.

    B matrices, D demands, K paths of a demand, E links.

    Args:
        paths: the paths.
        backend: path operations.
        batch: B.
        dtype: type of arrays over paths; arrays over links are float64.
        carries_all: whether all demand must be served, with y on the simplex.
        h_rows: number of rows of h: 1 if capacities are equal in all matrices, else B.
        values: number of demand values: 1 if all are equal, else D.

    Attributes:
        splits: (3, B, D, K) splits of the iterate z, the Halpern anchor z_0 and the step T(z).
        price: (B, E) y / capacity + scaled cost, 1/(Gbit/s), with y the scaled dual variables;
            ``FAILED_PRICE`` on a failed link.
        demand: (B, D) routable demand, Gbit/s.
        inverse_capacity_sum: (h_rows, D) h, largest sum of 1 / capacity along a path of the demand.
        demand_value: (values,) value per Gbit/s.
        dual: (DUAL_ROWS, B, E) dual variables, loads and link constants; rows in :mod:`kernels`.
        control: (CONTROL_ROWS, B) state of the restarts; rows in :mod:`kernels`.
    """

    # The buffers outlive an inference mode of the caller.
    @torch.inference_mode(False)
    @torch.no_grad()
    def __init__(
        self,
        paths: PathSet,
        backend: CudaBackend,
        batch: int,
        dtype: torch.dtype,
        *,
        carries_all: bool,
        h_rows: int,
        values: int,
    ) -> None:
        device = backend.device
        num_demands, num_paths = paths.leaf.shape
        num_links = paths.num_links
        float64 = torch.float64
        # Splits of the iterate z, the Halpern anchor z_0 and the step T(z); prices; program data.
        self.splits = torch.zeros(3, batch, num_demands, num_paths, dtype=dtype, device=device)
        self.price = torch.zeros(batch, num_links, dtype=dtype, device=device)
        self.demand = torch.zeros(batch, num_demands, dtype=dtype, device=device)
        self.inverse_capacity_sum = torch.ones(h_rows, num_demands, dtype=dtype, device=device)
        self.demand_value = torch.ones(values, dtype=dtype, device=device)
        # Dual variables and loads of links; state of the restarts.  :mod:`kernels` names the rows.
        self.dual = torch.ones(kernels.DUAL_ROWS, batch, num_links, dtype=float64, device=device)
        self.control = torch.ones(kernels.CONTROL_ROWS, batch, dtype=float64, device=device)
        # Work arrays of the kernels: (B, T) flow through each trie node, (3, B, sources) sums over
        # the demands of a source, (B,) number of finished thread blocks.
        node_flow = torch.empty(batch, backend.num_nodes, dtype=dtype, device=device)
        sums = torch.empty(kernels.SUM_ROWS, batch, backend.sources, dtype=float64, device=device)
        arrived = torch.zeros(batch, dtype=torch.int32, device=device)
        # Launch grids: one block per source and matrix; blocks of LINK_THREADS threads for the
        # links.
        self._device = device
        layout = backend.layout(dtype, 1)
        self._shared_bytes = layout.shared_bytes
        self._blocks = max(1, min(batch * backend.sources, layout.max_blocks))
        self._link_blocks = -(-num_links // (cuda.LINK_THREADS // backend.threads_per_link)) * batch
        # Arguments of the first launch, step_sources; tensors in the order of SourceArrays.
        source_tensors = (
            *self.splits,
            self.price,
            self.demand,
            self.inverse_capacity_sum,
            self.demand_value,
            self.control,
            node_flow,
            sums,
        )
        source_arrays = kernels.SourceArrays(*(cuda.array(tensor) for tensor in source_tensors))
        self._source_arguments = (
            source_arrays,
            backend.trie,
            layout.memory,
            num_paths,
            batch,
            carries_all,
        )
        # Arguments of the second launch, step_links.
        link_arrays = kernels.LinkArrays(
            node_flow=cuda.array(node_flow),
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
        # Recordings: one iteration that stores no step; 1 to _MAX_GRAPH_ITERATIONS iterations, the
        # last of which stores it.
        self._single_step_graph = cuda.LaunchGraph(device)
        self._multi_step_graphs = {
            count: cuda.LaunchGraph(device) for count in range(1, _MAX_GRAPH_ITERATIONS + 1)
        }

    def _iterate_once(self) -> None:
        """Launch one iteration without storing its step."""
        self._iterate(is_storing=False)

    def _iterate_several(self, num_iterations: int) -> None:
        """Launch several iterations; the last one stores its step."""
        for iteration in range(num_iterations):
            self._iterate(is_storing=iteration == num_iterations - 1)

    def _iterate(self, *, is_storing: bool) -> None:
        """Launch the two kernels of one iteration; if ``is_storing``, they store its splits."""
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

    def advance(self, num_iterations: int) -> None:
        """Run ``num_iterations`` iterations; the last one stores the splits of its step.

        The last iterations, at most ``_MAX_GRAPH_ITERATIONS``, replay as one graph, the others one
        by one.
        """
        for _ in range(num_iterations - _MAX_GRAPH_ITERATIONS):
            self._single_step_graph.run(self._iterate_once)
        if num_iterations:
            num_last = min(num_iterations, _MAX_GRAPH_ITERATIONS)
            self._multi_step_graphs[num_last].run(partial(self._iterate_several, num_last))

    def fill(
        self, problem: Problem, scale: Scaling, state: SolveState, primal_weight: Tensor
    ) -> None:
        """Fill the buffers with a program and its first iterate.

        Args:
            problem: B matrices of the recorded shape.
            scale: scaling and step sizes of the program.
            state: (B, D, K) splits and (B, E) prices of the first iterate; also of the anchor and
                of the last step.
            primal_weight: (B,) omega, the factor of dual step sizes.
        """
        # Row names of the kernels; splits of z, z_0 and T(z), demands, step sizes and values.
        rows = kernels
        point = start(problem, scale, state)
        self.splits.copy_(point.splits.expand(3, -1, -1, -1))
        self.demand.copy_(problem.routable_demand)
        self.inverse_capacity_sum.copy_(
            scale.inverse_capacity_sum[: len(self.inverse_capacity_sum), :, 0]
        )
        self.demand_value.copy_(problem.demand_value[: len(self.demand_value)])
        # Constants of the links.
        inverse_capacity = problem.inverse_capacity
        dual = self.dual
        control = self.control
        dual[rows.LOAD_FACTOR].copy_(inverse_capacity / scale.load_scale)
        dual[rows.INVERSE_CAPACITY].copy_(inverse_capacity)
        dual[rows.FULL_PATH_UTILISATION].copy_(scale.full_path_utilisation)
        dual[rows.COST].copy_(problem.link_cost / scale.objective_scale)
        # The first iterate is also the anchor and the last step.
        load = problem.loads(point.splits) * dual[rows.LOAD_FACTOR]
        for row, load_row in (
            (rows.CURRENT_DUAL, rows.CURRENT_LOAD),
            (rows.ANCHOR_DUAL, rows.ANCHOR_LOAD),
            (rows.STEPPED_DUAL, rows.STEPPED_LOAD),
        ):
            dual[row].copy_(point.dual)
            dual[load_row].copy_(load)
        # State of the restarts; -1: no error of this cycle yet.
        control.zero_()
        control[rows.WEIGHT].copy_(primal_weight)
        control[rows.FIRST_WEIGHT].copy_(primal_weight)
        control[rows.FIRST_ERROR].fill_(-1)
        control[rows.INVERSE_SCALE].copy_(1 / scale.objective_scale[:, 0])
        self.price.copy_(
            torch.where(
                inverse_capacity > 0, point.dual * inverse_capacity + dual[rows.COST], FAILED_PRICE
            )
        )


class Recorded:
    """Solve of one program at a time, by launches that are recorded once and replayed.

    Args:
        problem: the first program; others of its shape may follow.
        backend: operations over the paths.
        shape: shape of the program.

    Attributes:
        buffers: state of the iteration.
    """

    # The tensors outlive an inference mode of the caller.
    @torch.inference_mode(False)
    @torch.no_grad()
    def __init__(self, problem: Problem, backend: CudaBackend, shape: SearchShape) -> None:
        self._device = device = backend.device
        self._pool = cuda.memory_pool()
        batch = problem.batch
        num_demands, num_paths = problem.paths.leaf.shape
        num_links = problem.paths.num_links
        self.buffers = Buffers(
            problem.paths,
            backend,
            batch,
            shape.dtype,
            carries_all=problem.demand_set.carries_all,
            h_rows=1 if shape.has_one_capacity else batch,
            values=1 if shape.has_one_value else num_demands,
        )

        def zeros(*size: int) -> Tensor:
            return torch.zeros(*size, dtype=torch.float64, device=device)

        path_shape = batch, num_demands, num_paths
        # Start of a solve: splits and prices.
        self._start = SolveState(zeros(*path_shape), zeros(batch, num_links))
        self._has_warm_start = False
        # Feasible splits of the last gap check; splits and prices of the incumbent.
        self._projected_splits = zeros(*path_shape)
        self._incumbent = zeros(*path_shape), zeros(batch, num_links)
        # Ratio of a link's price to its dual variable over its capacity.
        self._price_scale = zeros(batch, 1)
        # Trivial bound, value and bound of each matrix, read by the host after a check.
        self._check_results = zeros(3, batch)
        # Matrices whose incumbent splits, or prices, are replaced.
        self._replacement_mask = torch.zeros(2, batch, dtype=torch.bool, device=device)
        self._has_incumbent = False
        self._has_checked = False
        self._program = FixedProgram(problem, shape.program, torch.float64)
        self._graphs: dict[str, cuda.LaunchGraph] = {}

    @torch.inference_mode(False)
    @torch.no_grad()
    def _run(self, name: str, work: Callable[[], None]) -> None:
        """Run ``work``: the first call of a name records it, later calls replay the recording."""
        if name not in self._graphs:
            self._graphs[name] = cuda.LaunchGraph(self._device, self._pool)
        self._graphs[name].run(work)

    @torch.inference_mode(False)
    @torch.no_grad()
    def _copy_in(self, problem: Problem, state: SolveState | None) -> None:
        """Copy a program and its first splits and prices into the fixed tensors.

        Args:
            problem: B matrices of the recorded shape.
            state: splits (B, D, K) and prices (B, E); None for zeros.
        """
        self._program.take(problem)
        if state is not None:
            self._start.splits.copy_(state.splits)
            self._start.prices.copy_(state.prices)
        elif self._has_warm_start:
            # Clear the warm start of the last solve.
            self._start.splits.zero_()
            self._start.prices.zero_()
        self._has_warm_start = state is not None

    def begin(self, problem: Problem, state: SolveState | None) -> None:
        """Set up the solve of a program.

        Args:
            problem: B matrices of the recorded shape.
            state: first splits (B, D, K) and prices (B, E); None for zero flow and prices.
        """
        self._copy_in(problem, state)
        self._has_incumbent = self._has_checked = False
        self._run("set up", self._set_up)

    def _set_up(self) -> None:
        """Compute scaling, first iterate and trivial bound; clear the incumbent."""
        exact = self._program.problem()
        scale = scaling(exact)
        self._price_scale.copy_(scale.price_scale)
        self.buffers.fill(exact, scale, self._start, trial_primal_weight(exact, scale))
        self._check_results[_TRIVIAL].copy_(from_score(exact, total_value(exact)))
        for incumbent_tensor in self._incumbent:
            incumbent_tensor.zero_()

    def trivial_bound(self) -> Tensor:
        """Return the (B,) certified dual bounds at zero prices."""
        return self._check_results[_TRIVIAL].cpu()

    def check(self, refill: int) -> tuple[Tensor, Tensor]:
        """Run a gap check; return (B,) values and (B,) certified dual bounds.

        They are those of the last PDHG step, with its splits projected to feasible ones.

        Args:
            refill: rounds that allocate unused capacity to unserved demand.
        """

        def launch_kernels() -> None:
            exact = self._program.problem()
            # Row 2: splits of the last step.
            splits = self.buffers.splits[2].to(torch.float64)
            self._projected_splits.copy_(project(exact, splits, refill))
            self._check_results[_VALUE].copy_(exact.value(self._projected_splits))
            self._write_bound(exact)

        self._run(f"check, {refill}", launch_kernels)
        self._has_checked = True
        _, value, bound = self._check_results.cpu()
        return value, bound

    def certify(self) -> Tensor:
        """Return (B,) certified dual bounds at the prices of the last PDHG step, without values."""
        self._run("certify", lambda: self._write_bound(self._program.problem()))
        return self._check_results[_BOUND].cpu()

    def _write_bound(self, exact: Problem) -> None:
        """Write the dual bounds at the prices of the last PDHG step into the record."""
        self._check_results[_BOUND].copy_(dual_bound(exact, self._prices(exact)))

    def _prices(self, exact: Problem) -> Tensor:
        """Return the (B, E) link prices of the last PDHG step, value per Gbit/s."""
        return self._price_scale * self.buffers.dual[kernels.STEPPED_DUAL] * exact.inverse_capacity

    def keep(self, has_new_allocation: Tensor, has_new_prices: Tensor) -> None:
        """Replace the incumbent by the splits and prices of the last check.

        Args:
            has_new_allocation: (B,) bool, matrices with a new incumbent allocation; the first call
                stores all.
            has_new_prices: (B,) bool, matrices with new incumbent prices.
        """
        if not self._has_checked:
            raise RuntimeError("keep() called before check(): no allocation to store")
        if not self._has_incumbent:
            has_new_allocation = torch.ones_like(has_new_allocation)
        self._has_incumbent = True
        # Whether splits, and prices, of all, some or no matrices are replaced: each combination has
        # its own recording.
        masks = has_new_allocation, has_new_prices
        mask_coverage = [
            "all" if bool(mask.all()) else "some" if bool(mask.any()) else "none" for mask in masks
        ]
        # Copy the masks to the GPU only if needed: for one matrix all or none are stored.
        if "some" in mask_coverage:
            self._replacement_mask.copy_(torch.stack(masks))

        def launch_kernels() -> None:
            candidates = self._projected_splits, self._prices(self._program.problem())
            for index, (incumbent_tensor, candidate) in enumerate(
                zip(self._incumbent, candidates, strict=True)
            ):
                if mask_coverage[index] == "all":
                    incumbent_tensor.copy_(candidate)
                if mask_coverage[index] == "some":
                    mask = self._replacement_mask[index].reshape(
                        -1, *[1] * (incumbent_tensor.dim() - 1)
                    )
                    incumbent_tensor.copy_(torch.where(mask, candidate, incumbent_tensor))

        if mask_coverage != ["none", "none"]:
            self._run(f"keep, {mask_coverage[0]}, {mask_coverage[1]}", launch_kernels)

    def incumbent(self) -> tuple[Tensor, Tensor]:
        """Return copies of the incumbent splits (B, D, K) and prices (B, E)."""
        if not self._has_incumbent:
            raise RuntimeError("incumbent() called before keep(): no incumbent stored")
        splits, prices = self._incumbent
        return splits.clone(), prices.clone()

    def state(self) -> SolveState:
        """Return splits (B, D, K) and prices (B, E) of the last PDHG step, feasible or not."""
        # Row 2: splits of the last step.
        splits = self.buffers.splits[2].to(torch.float64, copy=True)
        return SolveState(splits, self._prices(self._program.problem()))
