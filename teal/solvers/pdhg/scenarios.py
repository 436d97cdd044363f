"""Splits for several traffic matrices at once: which of them comes is not known when the splits are installed.

With S scenarios of demand D_s, shared splits x and theta_s = max_e load_s[e](x) / c[e], the largest utilisation,

    min over x of  max over w of  sum_s w[s] theta_s,     0 <= w[s] <= limit[s],  sum_s w[s] = 1,

where limit[s] = weight[s] / (1 - tail): the weighted mean for tail = 0, the mean of the worst share 1 - tail of the
scenarios (conditional value at risk; Rockafellar & Uryasev 2000) between, and the worst scenario for tail = 1.  As a
saddle point, with y >= 0 on every link of every scenario, sum_e y_s[e] <= limit[s] and sum of all y = 1,

    min over x, max over y of  sum_s sum_e y_s[e] load_s[e](x) / c[e],

which is the program of :mod:`teal.solvers.pdhg` for max_link_utilisation with S E links.  Any such y prove the bound

    sum_d min_k sum_s D_s[d] price_s(d, k),     price_s(d, k) = sum over the links e of the path of y_s[e] / c[e].

The engine and the search are those of one matrix; passes over the paths serve up to 16 scenarios in SIMD lanes.
"""

from __future__ import annotations

import dataclasses
import math
import time

import numpy as np
import torch
from torch import Tensor

from teal.errors import InputError
from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.runtime.arrays import Float32Array, FloatArray, Int64Array
from teal.runtime.parallel import threads_for
from teal.runtime.shapes import Float
from teal.solvers.pdhg import certificates, kernels, scenario_kernels
from teal.solvers.pdhg.engine import PdhgState
from teal.solvers.pdhg.fused import LANES, FusedEngine
from teal.solvers.pdhg.fused_state import Control, Dual, ScaledProgram
from teal.solvers.pdhg.passes import MAX_BLOCKS, MIN_BLOCK_WORK, OPERATIONS_PER_ENTRY, Measured, make_scratch
from teal.solvers.pdhg.search import LARGE_WORK, ProgressCallback, Search, Stop


@dataclasses.dataclass(frozen=True, eq=False)
class ScenarioResult:
    """The best splits and the best prices that were found.

    Attributes:
        splits: (D, K) share of the demand on each path, in every scenario.
        prices: (S, E) 1/(Gbit/s), y / c.
        utilisation: (S,) largest link utilisation in each scenario.
        value: mean, tail mean or maximum of them.
        bound: lower bound of the optimal value that the prices prove.
        gap: (value - bound) / value.
        iterations: number of iterations done.
        solve_s: wall-clock seconds.
        stopped_by: what ended the search.
    """

    splits: Float[Tensor, "D K"]
    prices: Float[Tensor, "S E"]
    utilisation: Float[Tensor, " S"]
    value: float
    bound: float
    gap: float
    iterations: int
    solve_s: float
    stopped_by: Stop


@torch.no_grad()
def solve_scenarios(
    problem: Problem,
    *,
    weights: FloatArray | None = None,
    tail: float = 0.0,
    gap: float = 1e-2,
    deadline: float = math.inf,
    max_iterations: int = 10_000,
    warm_start: tuple[Tensor, Tensor] | None = None,
    report: ProgressCallback | None = None,
) -> ScenarioResult:
    """Find splits that are good in all scenarios together, to a certified gap.

    Args:
        problem: S matrices under max_link_utilisation, on the CPU, all with the same capacities.
        weights: (S,) >= 0, of the scenarios; None for equal ones.
        tail: in [0, 1]: 0 for the mean, 1 for the worst scenario, between for the mean of the worst share 1 - tail.
        gap: target: (value - bound) / value.
        deadline: seconds from now.
        max_iterations: largest number of iterations.
        warm_start: splits (D, K) and prices (S, E), such as those of an earlier result.
        report: called after each full gap check between iterations.

    Raises:
        InputError: another objective or device, capacities that differ, or settings out of range.
    """
    begin = time.perf_counter()
    if problem.objective.name is not ObjectiveName.MAX_LINK_UTILISATION:
        raise InputError("scenarios", "objective", "max_link_utilisation", problem.objective.name.value)
    if problem.ops.device.type != "cpu":
        raise InputError("scenarios", "device", "cpu", problem.ops.device)
    if not problem.batch or not bool((problem.capacity == problem.capacity[:1]).all()):
        raise InputError("scenarios", "capacity", "the same in at least one scenario", f"{problem.batch} matrices")
    if not 0 <= tail <= 1:
        raise InputError("scenarios", "tail", "a number in [0, 1]", tail)
    if not 0 <= gap < math.inf:
        raise InputError("scenarios", "gap", "a number >= 0", gap)
    limits = _limits(problem.batch, weights, tail)
    # Scenarios without weight would count in the step sizes.
    counted = torch.from_numpy(np.flatnonzero(limits))
    some, limits = problem.rows(counted), limits[limits > 0]
    state = None
    if warm_start is not None:
        splits, prices = warm_start
        expected = tuple(problem.paths.leaf.shape), tuple(problem.capacity.shape)
        if (tuple(splits.shape), tuple(prices.shape)) != expected:
            raise InputError("scenarios", "warm_start", f"splits and prices {expected}", (splits.shape, prices.shape))
        state = PdhgState(splits[None].to(torch.float64), prices[counted])
    engine = ScenarioEngine(some, limits, state)
    work = some.batch * (problem.paths.trie.num_nodes + problem.paths.leaf.size)
    search = Search(
        some.row(0), engine, gap, max_iterations, report, begin, may_stall=False, is_large=work > LARGE_WORK
    )
    iterations, stop = search.iterate(deadline, warm=state is not None)
    kept, rows = engine.best()
    prices = torch.zeros_like(problem.capacity, dtype=torch.float64)
    prices[counted] = engine.of_scenarios(rows[0].numpy())
    utilisation = problem.utilisation(kept.expand(problem.batch, -1, -1).to(problem.demand)).amax(1)
    value, bound = float(search.value), float(search.bound)
    return ScenarioResult(
        splits=kept[0],
        prices=prices,
        utilisation=utilisation,
        value=value,
        bound=bound,
        gap=(value - bound) / value if value > 0 else 0.0,
        iterations=iterations,
        solve_s=time.perf_counter() - begin,
        stopped_by=stop,
    )


def _limits(scenarios: int, weights: FloatArray | None, tail: float) -> FloatArray:
    """(S,) largest weights of the scenarios."""
    weights = np.ones(scenarios) if weights is None else np.asarray(weights, dtype=np.float64)
    if (
        weights.shape != (scenarios,)
        or not bool((np.isfinite(weights) & (weights >= 0)).all())
        or not weights.sum() > 0
    ):
        raise InputError("scenarios", "weights", f"({scenarios},) numbers >= 0, not all 0", weights)
    weights = weights / weights.sum()
    return np.minimum(weights / (1 - tail), 1.0) if tail < 1 else (weights > 0).astype(np.float64)


class ScenarioEngine(FusedEngine):
    """The CPU engine of one matrix over S E links, those of all scenarios.

    Args:
        problem: S matrices.
        limits: (S,) largest weight of each scenario, above 0.
        state: splits (1, D, K) and prices (S, E) to start from; None for even splits.
    """

    def __init__(self, problem: Problem, limits: FloatArray, state: PdhgState | None) -> None:
        self._scenarios, self._all_limits = problem.to(torch.float64), limits
        # Whole groups of the largest width, or one group of the least width that holds all scenarios.
        self._group_width = next((width for width in LANES if width >= problem.batch), LANES[-1])
        self._groups = math.ceil(problem.batch / self._group_width)
        passes = ScenarioPasses(self._scenarios, self._groups, self._group_width)
        if state is not None:
            state = PdhgState(state.splits, torch.from_numpy(self._of_groups(state.prices.numpy())[None]))
        super().__init__(problem.row(0), state, torch.float64, passes)

    def _of_groups(self, values: FloatArray) -> FloatArray:
        """(S, E) as (G * E * L,), 0 in lanes without a scenario."""
        padded = np.zeros((self._groups * self._group_width, values.shape[1]))
        padded[: len(values)] = values
        return padded.reshape(self._groups, self._group_width, -1).transpose(0, 2, 1).reshape(-1)

    def of_scenarios(self, values: FloatArray) -> Tensor:
        """(G * E * L,) as (S, E)."""
        grouped = values.reshape(self._groups, -1, self._group_width).transpose(0, 2, 1)
        return torch.from_numpy(grouped.reshape(self._groups * self._group_width, -1)[: self._scenarios.batch].copy())

    def _link_rows(self) -> tuple[FloatArray, FloatArray]:
        capacity = self._of_groups(self._scenarios.capacity.numpy())  # lanes without a scenario have no links
        return capacity, np.zeros_like(capacity)

    def _limits(self) -> tuple[FloatArray, int]:
        return self._all_limits, self._group_width

    def _worst(self, utilisation: FloatArray) -> FloatArray:
        """(1,) sum of the scenarios' largest utilisations, weighted for the worst within the limits."""
        theta = self.of_scenarios(utilisation).amax(1).numpy()
        order = np.argsort(-theta)
        filled = np.minimum(np.cumsum(self._all_limits[order]), 1.0)
        return np.array([float((theta[order] * np.diff(filled, prepend=0.0)).sum() / filled[-1])])


class ScenarioPasses:
    """See :class:`teal.solvers.pdhg.passes.Passes`: for B = 1, and S E links in rows (G, E, L).

    Memory: 40 bytes a path, and 8 for each demand and scenario.

    Args:
        problem: S matrices, float64.
        groups: G.
        width: L.
    """

    def __init__(self, problem: Problem, groups: int, width: int) -> None:
        packed = problem.paths.packed
        self._problem, self._scan, self._max_slots = problem, packed.scan, packed.max_slots
        self._groups, self._lanes = groups, (0,) * width
        self._block_ptr = packed.blocks(MIN_BLOCK_WORK, MAX_BLOCKS)
        self._operations = OPERATIONS_PER_ENTRY * groups * width * (packed.num_nodes + packed.num_paths)
        blocks, self._row = len(self._block_ptr) - 1, packed.num_links * width
        self._current, self._anchor, self._stepped, self._best = np.zeros((4, packed.num_paths))
        self._loads, self._sums = np.zeros((blocks, groups, self._row)), np.zeros((blocks, 3))
        self._profits = np.zeros(blocks)
        self._scratch = make_scratch(groups * self._row, 1, 1, np.float64)
        self._is_kept = False

    def compile(self, program: ScaledProgram, dual: Dual, control: Control) -> None:
        """See Passes."""
        self._step(self._block_ptr[:1], is_restarting=False)

    def measure(self, inverse_capacity: FloatArray, cost: FloatArray) -> Measured:
        """See Passes."""
        problem, groups, lanes, width = self._problem, self._groups, self._lanes, len(self._lanes)
        demands, blocks = problem.paths.num_demands, len(self._block_ptr) - 1
        demand = np.zeros((groups * width, demands))
        demand[: problem.batch] = problem.demand.numpy()
        rate = np.empty((groups, demands * width))
        full, trial = np.empty((2, groups, self._row))
        capacity = problem.capacity[0].numpy()
        live = np.repeat(capacity > 0, width)  # (E * L,), also in lanes without a scenario
        inverse = np.where(live, 1 / np.where(live, np.repeat(capacity, width), 1), 0.0)
        path_cost = np.where(live, 0.0, kernels.FAILED_PRICE)
        h = np.empty(demands)
        for g in range(groups):
            out = certificates.Measurements(
                inverse_capacity_sum=h,
                live_demand=rate[g],
                full_load=np.zeros((blocks, self._row)),
                trial_load=np.zeros((blocks, self._row)),
                demand_value_sum=np.zeros((blocks, width)),
            )
            own = np.ascontiguousarray(demand[g * width : (g + 1) * width].T).reshape(-1)
            with threads_for(self._operations // groups):
                certificates.measure(
                    self._scan, self._block_ptr, self._max_slots, own, inverse, path_cost, np.zeros(1), True, out,
                    lanes, (0,),
                )  # fmt: skip
            full[g], trial[g] = out.full_load.sum(0), out.trial_load.sum(0)
        total = rate.reshape(groups, demands, width).sum((0, 2))
        self._rows = scenario_kernels.ScenarioRows(
            rate=np.ascontiguousarray(rate.reshape(groups, demands, width).transpose(1, 0, 2)).reshape(-1),
            total=total,
            inverse_capacity_sum=h,
            is_live=self._path_rows(problem.path_mask[:1].to(torch.float64).numpy()),
        )
        one = np.ones(1)
        return Measured(full.reshape(-1), trial.reshape(-1), 0 * one, total.sum() * one, (total * h).sum() * one)

    def _path_rows(self, values: FloatArray) -> FloatArray:
        """(1, D, K) as (P,)."""
        rows = np.empty(len(self._scan.end_node))
        certificates.pack_splits(self._scan, np.ascontiguousarray(values), rows, (0,))
        return rows

    def put_splits(self, splits: FloatArray) -> None:
        """See Passes."""
        self._stepped[:] = self._path_rows(splits)

    def respond(
        self, price_plus_cost: Float32Array, sharpness: float, kept: Int64Array, kept_splits: FloatArray, lane: int,
        *, is_summing: bool,
    ) -> tuple[FloatArray, FloatArray]:  # fmt: skip
        """Not for scenarios.

        Raises:
            NotImplementedError: always; scenarios are not sampled.
        """
        raise NotImplementedError

    def restart(self) -> None:
        """See Passes."""
        self._current[:], self._anchor[:] = self._stepped, self._stepped

    def iterate(self, count: int, program: ScaledProgram, dual: Dual, control: Control) -> None:
        """See Passes."""
        scratch = self._scratch
        for _ in range(count):
            is_restarting = kernels.before(program, dual, control, scratch, 1)
            self._step(self._block_ptr, is_restarting=is_restarting)
            scratch.block_load[0], scratch.block_sums[0] = self._loads.sum(0).reshape(-1), self._sums.sum(0)
            kernels.after(program, dual, control, scratch, 1)

    def _step(self, block_ptr: Int64Array, *, is_restarting: bool) -> None:
        scratch = self._scratch
        with threads_for(self._operations):
            scenario_kernels.step(
                self._scan, block_ptr, self._max_slots, self._rows, self._current, self._anchor, self._stepped,
                scratch.price.reshape(self._groups, -1), scratch.halpern, scratch.inverse_weight[0], is_restarting,
                self._loads, self._sums, self._lanes,
            )  # fmt: skip

    def certify(self, price_plus_cost: FloatArray, *, is_repairing: bool) -> tuple[FloatArray, FloatArray]:
        """See Passes; splits are always repaired."""
        with threads_for(self._operations):
            scenario_kernels.certify(
                self._scan, self._block_ptr, self._max_slots, self._rows, self._stepped,
                price_plus_cost.reshape(self._groups, -1), self._loads, self._profits, self._lanes,
            )  # fmt: skip
        return self._loads.sum(0).reshape(-1), self._profits.sum(keepdims=True)

    def project_round(
        self, load_ratio: FloatArray, unused: FloatArray, *, is_first: bool, is_last: bool
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Not for scenarios.

        Raises:
            NotImplementedError: always; all demand is carried, above the capacities too.
        """
        raise NotImplementedError

    def keep(self, lanes: list[int]) -> None:
        """See Passes."""
        if lanes or not self._is_kept:
            self._best[:], self._is_kept = self._stepped, True

    def recall(self) -> FloatArray:
        """Not for scenarios.

        Raises:
            NotImplementedError: always; nothing is projected.
        """
        raise NotImplementedError

    def best_splits(self) -> FloatArray:
        """See Passes."""
        return self._splits_of(self._best)

    def stepped_splits(self) -> FloatArray:
        """See Passes."""
        return self._splits_of(self._stepped)

    def _splits_of(self, rows: FloatArray) -> FloatArray:
        splits = np.empty((1, *self._problem.paths.leaf.shape))
        certificates.unpack_splits(self._scan, rows, np.zeros((1, 0)), splits, (0,))
        return splits
