"""Splits for several traffic matrices at once: which of them comes is not known when the splits are
installed.

With S scenarios of demand D_s, shared splits x and theta_s = max_e load_s[e](x) / c[e], the largest
utilisation,

    min over x of  max over w of  sum_s w[s] theta_s,     0 <= w[s] <= limit[s],  sum_s w[s] = 1,

where limit[s] = weight[s] / (1 - tail): the weighted mean for tail = 0, the mean of the worst share
1 - tail of the scenarios (conditional value at risk; Rockafellar & Uryasev 2000) between, and the
worst scenario for tail = 1.  As a saddle point, with y >= 0 on every link of every scenario, sum_e
y_s[e] <= limit[s] and sum of all y = 1,

    min over x, max over y of  sum_s sum_e y_s[e] load_s[e](x) / c[e],

which is the program of :mod:`teal.solvers.pdhg` for max_link_utilisation with S E links.  Any such
y prove the bound

    sum_d min_k sum_s D_s[d] price_s(d, k),
    price_s(d, k) = sum over the links e of the path of y_s[e] / c[e].

The engine and the search are those of one matrix; passes over the paths serve up to 16 scenarios in
SIMD lanes. Under total_flow, in the place of theta_s stands what is lost, and an engine of its own
computes (:mod:`teal.solvers.pdhg.scenarios.dropped_flow`).
"""

from __future__ import annotations

import dataclasses
import math
import time

import numpy as np
import torch
from torch import Tensor

from teal.errors import InputError
from teal.network import subset
from teal.objectives import Objective, ObjectiveName
from teal.pathops import make_path_ops
from teal.problem import Problem
from teal.runtime.arrays import Float32Array, FloatArray, Int64Array
from teal.runtime.interruptible import Deadline, Steps, complete
from teal.runtime.parallel import threads_for
from teal.runtime.shapes import Float
from teal.solvers.pdhg.fused import certificates, kernels
from teal.solvers.pdhg.fused.demand_value import one_step
from teal.solvers.pdhg.fused.engine import FusedEngine, lanes_of
from teal.solvers.pdhg.fused.passes import (
    MAX_BLOCKS,
    MIN_BLOCK_WORK,
    ProgramSums,
    make_scratch,
    operations,
)
from teal.solvers.pdhg.fused.simplex import limited_simplex
from teal.solvers.pdhg.fused.state import Control, Dual, ScaledProgram
from teal.solvers.pdhg.samples import sample
from teal.solvers.pdhg.samples import start as sampled_start
from teal.solvers.pdhg.scenarios import kernels as scenario_kernels
from teal.solvers.pdhg.scenarios.dropped_flow import DroppedFlowEngine, lost, tail_mean
from teal.solvers.pdhg.search import LARGE_WORK, Search
from teal.solvers.result import PdhgState, ProgressCallback, Solution


class ScenarioPasses:
    """Passes over scenarios: :class:`teal.solvers.pdhg.fused.passes.Passes` for B = 1, and S E
    links in rows (G, E, L).

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
        self._operations = operations(packed, groups * width)
        blocks, self._row = len(self._block_ptr) - 1, packed.num_links * width
        self._current, self._anchor, self._stepped, self._best = np.zeros((4, packed.num_paths))
        self._loads, self._sums = np.zeros((blocks, groups, self._row)), np.zeros((blocks, 3))
        self._profits = np.zeros(blocks)
        self._scratch = make_scratch(groups * self._row, 1, 1, np.float64)
        self._is_kept = False

    def compile(self, program: ScaledProgram, dual: Dual, control: Control) -> None:
        """Compile the kernels (:meth:`Passes.compile`)."""
        self._step(self._block_ptr[:1], is_restarting=False)

    def measure(self, inverse_capacity: FloatArray, cost: FloatArray) -> ProgramSums:
        """Measure the splits (:meth:`Passes.measure`)."""
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
        h_rows = np.empty(demands * width)  # the same in all lanes
        for g in range(groups):
            out = certificates.Measurements(
                inverse_capacity_sum=h_rows,
                live_demand=rate[g],
                full_load=np.zeros((blocks, self._row)),
                trial_load=np.zeros((blocks, self._row)),
                demand_value_sum=np.zeros((blocks, width)),
            )
            of_group = np.ascontiguousarray(demand[g * width : (g + 1) * width].T).reshape(-1)
            with threads_for(self._operations // groups):
                certificates.measure(
                    self._scan,
                    self._block_ptr,
                    self._max_slots,
                    of_group,
                    inverse,
                    path_cost,
                    one_step(np.zeros(1)),
                    None,
                    True,
                    out,
                    lanes,
                )
            full[g], trial[g] = out.full_load.sum(0), out.trial_load.sum(0)
        h = h_rows[::width].copy()
        total = rate.reshape(groups, demands, width).sum((0, 2))
        self._rows = scenario_kernels.ScenarioRows(
            rate=np.ascontiguousarray(
                rate.reshape(groups, demands, width).transpose(1, 0, 2)
            ).reshape(-1),
            total=total,
            inverse_capacity_sum=h,
            is_live=self._path_rows(problem.path_mask[:1].to(torch.float64).numpy()),
        )
        one = np.ones(1)
        return ProgramSums(
            full.reshape(-1), trial.reshape(-1), 0 * one, total.sum() * one, (total * h).sum() * one
        )

    def _path_rows(self, values: FloatArray) -> FloatArray:
        """(1, D, K) as (P,)."""
        rows = np.empty(len(self._scan.end_node))
        with threads_for(self._operations):
            certificates.pack_splits(self._scan, np.ascontiguousarray(values), rows, (0,))
        return rows

    def put_splits(self, splits: FloatArray) -> None:
        """Put splits in place (:meth:`Passes.put_splits`)."""
        self._stepped[:] = self._path_rows(splits)

    def respond(
        self,
        price_plus_cost: Float32Array,
        sharpness: float,
        kept: Int64Array,
        kept_splits: FloatArray,
        lane: int,
        *,
        is_summing: bool,
    ) -> tuple[FloatArray, FloatArray]:
        """Not for scenarios.

        Raises:
            NotImplementedError: always; scenarios are not sampled.
        """
        raise NotImplementedError

    def respond_to(
        self, price: FloatArray, value: float, kept: Int64Array, kept_splits: FloatArray
    ) -> None:
        """Make the response of all demands to prices (G * E * L,) the splits of T(z); see
        ScenarioEngine.
        """
        # The mean price of a demanded Gbit/s is at most value / total demand.
        size = sample.TEMPERATURE * value / max(float(self._rows.total.sum()), 1e-300)
        with threads_for(self._operations):
            scenario_kernels.respond(
                self._scan,
                self._block_ptr,
                self._max_slots,
                self._rows,
                self._stepped,
                price.reshape(self._groups, -1),
                1 / max(size, 1e-300),
                kept,
                np.searchsorted(kept, self._scan.demand_ptr),
                np.ascontiguousarray(kept_splits),
                self._lanes,
            )

    def restart(self) -> None:
        """Begin anew at the last step (:meth:`Passes.restart`)."""
        self._current[:], self._anchor[:] = self._stepped, self._stepped

    def iterate(self, count: int, program: ScaledProgram, dual: Dual, control: Control) -> None:
        """The paths' part of an iteration (:meth:`Passes.iterate`)."""
        scratch = self._scratch
        for _ in range(count):
            is_restarting = kernels.before(program, dual, control, scratch, 1)
            self._step(self._block_ptr, is_restarting=is_restarting)
            scratch.block_load[0], scratch.block_sums[0] = (
                self._loads.sum(0).reshape(-1),
                self._sums.sum(0),
            )
            scenario_kernels.after(program, dual, control, scratch)

    def _step(self, block_ptr: Int64Array, *, is_restarting: bool) -> None:
        scratch = self._scratch
        with threads_for(self._operations):
            scenario_kernels.step(
                self._scan,
                block_ptr,
                self._max_slots,
                self._rows,
                self._current,
                self._anchor,
                self._stepped,
                scratch.price.reshape(self._groups, -1),
                scratch.halpern,
                scratch.inverse_weight[0],
                is_restarting,
                self._loads,
                self._sums,
                self._lanes,
            )

    def certify(
        self, price_plus_cost: FloatArray, *, is_repairing: bool
    ) -> tuple[FloatArray, FloatArray]:
        """The paths' part of a certificate (:meth:`Passes.certify`); splits are always repaired."""
        with threads_for(self._operations):
            scenario_kernels.certify(
                self._scan,
                self._block_ptr,
                self._max_slots,
                self._rows,
                self._stepped,
                price_plus_cost.reshape(self._groups, -1),
                self._loads,
                self._profits,
                self._lanes,
            )
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
        """Keep the better splits (:meth:`Passes.keep`)."""
        if lanes or not self._is_kept:
            self._best[:], self._is_kept = self._stepped, True

    def recall(self) -> FloatArray:
        """Not for scenarios.

        Raises:
            NotImplementedError: always; nothing is projected.
        """
        raise NotImplementedError

    def best_splits(self) -> FloatArray:
        """The best splits (:meth:`Passes.best_splits`)."""
        return self._splits_of(self._best)

    def stepped_splits(self) -> FloatArray:
        """The splits after the last step (:meth:`Passes.stepped_splits`)."""
        return self._splits_of(self._stepped)

    def _splits_of(self, rows: FloatArray) -> FloatArray:
        splits = np.empty((1, *self._problem.paths.leaf.shape))
        with threads_for(self._operations):
            certificates.unpack_splits(self._scan, rows, np.zeros((1, 0)), splits, (0,))
        return splits


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ScenarioResult(Solution):
    """The best splits and the best prices that were found; the value is the mean, tail mean or
    maximum of the costs.

    Attributes:
        splits: (D, K) share of the demand on each path, in every scenario.
        prices: (S, E) 1/(Gbit/s), y / c; value per Gbit/s under total_flow.
        costs: (S,) cost of each scenario: the largest link utilisation; under total_flow Gbit/s
            that are lost.
    """

    splits: Float[Tensor, "D K"]
    prices: Float[Tensor, "S E"]
    costs: Float[Tensor, " S"]


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
        problem: S matrices under max_link_utilisation or total_flow, on the CPU, all with the same
            capacities.
        weights: (S,) >= 0, of the scenarios; None for equal ones.
        tail: in [0, 1]: 0 for the mean, 1 for the worst scenario, between for the mean of the worst
            share 1 - tail.
        gap: target: (value - bound) / value.
        deadline: seconds from now.
        max_iterations: largest number of iterations.
        warm_start: splits (D, K) and prices (S, E), such as those of an earlier result.
        report: called after each full gap check between iterations.

    Raises:
        InputError: another objective or device; a limit on churn, promises or steps of value;
            capacities that differ; settings out of range.
    """
    begin = time.perf_counter()
    objective = problem.objective.name
    if objective not in (ObjectiveName.MAX_LINK_UTILISATION, ObjectiveName.TOTAL_FLOW):
        raise InputError("scenarios", "objective", "max_link_utilisation or total_flow", objective)
    for condition in problem.conditions:
        raise InputError(
            "scenarios",
            condition.name,
            "a problem without it: shared splits do not take it",
            "one with it",
        )
    if problem.steps is not None:
        raise InputError("scenarios", "steps", "a problem without steps of value", "one with steps")
    if problem.ops.device.type != "cpu":
        raise InputError("scenarios", "device", "cpu", problem.ops.device)
    if not problem.batch or not bool((problem.capacity == problem.capacity[:1]).all()):
        raise InputError(
            "scenarios",
            "capacity",
            "the same in at least one scenario",
            f"{problem.batch} matrices",
        )
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
            raise InputError(
                "scenarios",
                "warm_start",
                f"splits and prices {expected}",
                (splits.shape, prices.shape),
            )
        state = PdhgState(splits[None].to(torch.float64), prices[counted])
    engine: ScenarioEngine | DroppedFlowEngine
    sampled, is_large = None, False
    if objective is ObjectiveName.TOTAL_FLOW:
        engine = DroppedFlowEngine(some, limits, state)
    else:
        engine = ScenarioEngine(some, limits, state)
        is_large = some.batch * problem.paths.scan_size > LARGE_WORK
        sampled = (
            SampledScenarios(some, limits, engine, gap)
            if sampled_start.is_faster(problem.paths, gap)
            else None
        )
    search = Search(
        _minimised(some.row(0)),
        engine,
        gap,
        max_iterations,
        report,
        begin,
        may_stall=False,
        sampled=sampled,
        is_large=is_large,
    )
    iterations, stop = complete(
        search.iterating(Deadline(begin + deadline), warm=state is not None)
    )
    kept, rows = engine.best()
    prices = torch.zeros_like(problem.capacity, dtype=torch.float64)
    if isinstance(engine, DroppedFlowEngine):
        prices[counted], costs = rows[0], lost(problem, kept)
    else:
        prices[counted] = engine.of_scenarios(rows[0].numpy())
        several = kept.expand(problem.batch, -1, -1).to(problem.demand)
        costs = problem.utilisation(several).amax(1)
    value, bound = float(search.value), float(search.bound)
    return ScenarioResult(
        splits=kept[0],
        prices=prices,
        costs=costs,
        value=value,
        bound=bound,
        sense=-1.0,
        iterations=iterations,
        solve_s=time.perf_counter() - begin,
        stopped_by=stop,
    )


def _minimised(problem: Problem) -> Problem:
    """The problem under an objective whose values are costs, which the search minimises."""
    return dataclasses.replace(problem, objective=Objective(ObjectiveName.MAX_LINK_UTILISATION))


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
        # Whole groups of the largest width, or one group of the least width that holds all
        # scenarios.
        widths = lanes_of(torch.float64)
        self._group_width = next((width for width in widths if width >= problem.batch), widths[-1])
        self._groups = math.ceil(problem.batch / self._group_width)
        passes = ScenarioPasses(self._scenarios, self._groups, self._group_width)
        if state is not None:
            state = PdhgState(
                state.splits, torch.from_numpy(self._of_groups(state.prices.numpy())[None])
            )
        super().__init__(problem.row(0), state, torch.float64, passes)

    def _of_groups(self, values: FloatArray) -> FloatArray:
        """(S, E) as (G * E * L,), 0 in lanes without a scenario."""
        padded = np.zeros((self._groups * self._group_width, values.shape[1]))
        padded[: len(values)] = values
        return padded.reshape(self._groups, self._group_width, -1).transpose(0, 2, 1).reshape(-1)

    def of_scenarios(self, values: FloatArray) -> Tensor:
        """(G * E * L,) as (S, E)."""
        grouped = values.reshape(self._groups, -1, self._group_width).transpose(0, 2, 1)
        return torch.from_numpy(
            grouped.reshape(self._groups * self._group_width, -1)[: self._scenarios.batch].copy()
        )

    def respond_to(
        self, prices: FloatArray, value: float, kept: Int64Array, kept_splits: FloatArray
    ) -> None:
        """Go on from the response of all demands to the prices of a sample's solution.

        Args:
            prices: (G * E * L,) of the sample.
            value: value of the sample's solution.
            kept: numbers of the demands that keep its splits, ascending.
            kept_splits: (n, K) these splits.
        """
        passes = self._passes
        assert isinstance(passes, ScenarioPasses)
        passes.respond_to(
            np.where(self._program.live > 0, prices, kernels.FAILED_PRICE), value, kept, kept_splits
        )
        self._dual.stepped[:] = prices * self._capacity
        self._to_simplex()
        self._begin(is_repairing=True)

    def _link_rows(self) -> tuple[FloatArray, FloatArray]:
        capacity = self._of_groups(
            self._scenarios.capacity.numpy()
        )  # lanes without a scenario have no links
        return capacity, np.zeros_like(capacity)

    def _limits(self) -> tuple[FloatArray, int]:
        return self._all_limits, self._group_width

    def _to_simplex(self) -> None:
        """The nearest y within the limits: those of another program, such as an earlier window's,
        may exceed them.
        """
        super()._to_simplex()
        dual = self._dual.stepped
        limited_simplex(
            dual, np.ones_like(dual), self._program.live, self._all_limits, self._group_width
        )

    def _dual_size(self, capacity_value: FloatArray) -> FloatArray:
        """(1,) the least number by which y must be divided so that they are within the limits and
        sum to at most 1.

        Such y prove a bound, since utilisations are not negative.
        """
        of_scenario = self.of_scenarios(capacity_value).sum(1).numpy()
        return np.array(
            [max(float(of_scenario.sum()), float((of_scenario / self._all_limits).max()))]
        )

    def _worst(self, utilisation: FloatArray) -> FloatArray:
        """(1,) sum of the scenarios' largest utilisations, weighted for the worst within the
        limits.
        """
        theta = self.of_scenarios(utilisation).amax(1)
        return tail_mean(theta, torch.from_numpy(self._all_limits)).numpy()[None]


class SampledScenarios:
    """Starts the engine from samples of the demands (see :mod:`samples.sample`), the same in all
    scenarios.

    A demand is drawn in proportion to its mean over the scenarios.

    Args:
        problem: S matrices.
        limits: (S,) largest weight of each scenario.
        engine: engine of these matrices.
        gap: target of the search.
    """

    def __init__(
        self, problem: Problem, limits: FloatArray, engine: ScenarioEngine, gap: float
    ) -> None:
        self._problem, self._limits_of, self._engine, self._gap = problem, limits, engine, gap
        self._size = sampled_start.first_size(problem.paths, gap)

    def respond(self, unfinished: Tensor, deadline: Deadline) -> Steps[bool]:
        """Begin at the answer of a sample (:meth:`teal.solvers.pdhg.search.Sampled.respond`)."""
        problem, size = self._problem, self._size
        if size > sampled_start.MAX_SHARE * problem.paths.num_demands:
            return False
        self._size = sampled_start.SAMPLE_GROWTH * size
        begin = time.perf_counter()
        demand = problem.demand.to(torch.float64)
        chosen, chance = sample.choose(demand.mean(0).numpy(), size)
        if not len(chosen):
            return False
        paths = subset.of_demands(problem.paths, chosen)
        part = dataclasses.replace(
            problem,
            paths=paths,
            ops=make_path_ops(paths, problem.ops.device),
            demand=demand[:, torch.from_numpy(chosen)] / torch.from_numpy(chance),
            demand_value=problem.demand_value[: len(chosen)],
        )
        engine = ScenarioEngine(part, self._limits_of, None)
        search = Search(
            part.row(0),
            engine,
            sampled_start.SAMPLE_GAP * self._gap,
            sampled_start.MAX_ITERATIONS,
            None,
            begin,
            may_stall=False,
            is_large=False,
        )
        yield from search.iterating(deadline, warm=False)
        splits, prices = engine.best()
        is_certain = chance >= 1
        self._engine.respond_to(
            prices[0].numpy(),
            float(search.value),
            chosen[is_certain],
            splits[0].numpy()[is_certain],
        )
        return True

    def correct(self) -> bool:
        """Correct nothing, since all demand is carried
        (:meth:`teal.solvers.pdhg.search.Sampled.correct`).
        """
        return False
