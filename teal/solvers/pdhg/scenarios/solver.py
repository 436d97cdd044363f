"""Robust splits: one allocation for several traffic scenarios, by mean, CVaR or worst case.

:func:`solve_scenarios` is the entry point.  With S scenarios of demand D_s, shared splits x and
theta_s = max_e load_s[e](x) / c[e], the largest utilisation,

    min over x of  max over w of  sum_s w[s] theta_s,     0 <= w[s] <= limit[s],  sum_s w[s] = 1,

where limit[s] = weight[s] / (1 - tail): the weighted mean for tail = 0, the mean of the worst share
1 - tail of the scenarios (conditional value at risk; Rockafellar & Uryasev 2000) between, and the
worst scenario for tail = 1.  As a saddle point, with y >= 0 on every link of every scenario, sum_e
y_s[e] <= limit[s] and sum of all y = 1,

    min over x, max over y of  sum_s sum_e y_s[e] load_s[e](x) / c[e],

which is the program of :mod:`teal.solvers.pdhg` for max_link_utilisation with S E links.  Any
feasible y give the dual bound

    sum_d min_k sum_s D_s[d] price_s(d, k),
    price_s(d, k) = sum over the links e of the path of y_s[e] / c[e].

The engine and the search are those of one matrix; the passes over the paths process scenarios in
SIMD lanes (:class:`ScenarioPasses`). Under total_flow the dropped flow replaces theta_s, with a
separate engine (:mod:`teal.solvers.pdhg.scenarios.dropped_flow`).
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
from teal.solvers.pdhg.scenarios.dropped_flow import DroppedFlowEngine, dropped_flow, tail_mean
from teal.solvers.pdhg.search import LARGE_WORK, Search
from teal.solvers.result import ProgressCallback, Solution, SolveState


class ScenarioPasses:
    """Compiled passes over the paths and links of all scenarios, for :class:`ScenarioEngine`.

    Implements :class:`teal.solvers.pdhg.fused.passes.Passes` for one program of S E links, whose
    rows are flat (G, E, L): G groups of L scenarios.  Memory: 40 bytes per path, and 8 per demand
    and scenario.

    Args:
        problem: S matrices, float64.
        groups: number of groups of scenarios, G.
        width: number of lanes, L.
    """

    def __init__(self, problem: Problem, groups: int, width: int) -> None:
        packed = problem.paths.packed
        self._problem = problem
        self._scan = packed.scan
        self._max_trie_nodes = packed.max_trie_nodes
        self._groups = groups
        self._lanes = (0,) * width
        self._block_ptr = packed.blocks(MIN_BLOCK_WORK, MAX_BLOCKS)
        self._operations = operations(packed, groups * width)
        num_blocks = len(self._block_ptr) - 1
        # E * L, entries of the links of one group.
        self._group_entries = packed.num_links * width
        # (P,) splits of the iterate z, the Halpern anchor z_0, the step T(z) and the incumbent.
        self._current, self._anchor, self._stepped, self._incumbent_splits = np.zeros(
            (4, packed.num_paths)
        )
        # Results of the passes for each block of sources: link loads in Gbit/s; profit and squared
        # distances to z and z_0; demands' part of the dual bound.
        self._block_loads = np.zeros((num_blocks, groups, self._group_entries))
        self._block_sums = np.zeros((num_blocks, 3))
        self._profits = np.zeros(num_blocks)
        self._scratch = make_scratch(groups * self._group_entries, 1, 1, np.float64)
        self._has_incumbent = False

    def compile(self, program: ScaledProgram, dual: Dual, control: Control) -> None:
        """Compile the kernels by a step over no sources."""
        self._step(self._block_ptr[:1], is_restarting=False)

    def measure(self, inverse_capacity: FloatArray, cost: FloatArray) -> ProgramSums:
        """Compute the constants of the program from one pass over the paths for each group.

        Args:
            inverse_capacity: unused; capacities come from the problem.
            cost: unused; a failed link has ``FAILED_PRICE``.

        Returns:
            (G * E * L,) link loads with all demand on every live path and under even splits,
            Gbit/s; zero value of the demands; (1,) sums over demands and scenarios of the demand,
            and of demand times h.
        """
        problem = self._problem
        groups = self._groups
        lanes = self._lanes
        width = len(self._lanes)
        num_demands = problem.paths.num_demands
        num_blocks = len(self._block_ptr) - 1
        # Demand of each lane, 0 in lanes without a scenario; routable demand of each group, (D *
        # L,); loads of each group, (E * L,).
        demand = np.zeros((groups * width, num_demands))
        demand[: problem.batch] = problem.demand.numpy()
        routable_rates = np.empty((groups, num_demands * width))
        full_load, trial_load = np.empty((2, groups, self._group_entries))
        # Link arrays of one group, equal in all groups.
        capacity = problem.capacity[0].numpy()
        # (E * L,) whether each link works, also in lanes without a scenario.
        live = np.repeat(capacity > 0, width)
        inverse_capacity_rows = np.where(
            live, 1 / np.where(live, np.repeat(capacity, width), 1), 0.0
        )
        link_cost = np.where(live, 0.0, kernels.FAILED_PRICE)
        # (D * L,) h of each demand, equal in all lanes.
        h_rows = np.empty(num_demands * width)
        # Loads of the full and of the trial routing, per group.
        for g in range(groups):
            measurements = certificates.Measurements(
                inverse_capacity_sum=h_rows,
                live_demand=routable_rates[g],
                full_load=np.zeros((num_blocks, self._group_entries)),
                trial_load=np.zeros((num_blocks, self._group_entries)),
                demand_value_sum=np.zeros((num_blocks, width)),
            )
            # (D * L,) demands of the group, lanes side by side.
            group_demand = np.ascontiguousarray(demand[g * width : (g + 1) * width].T).reshape(-1)
            # Values of 0, no utility, and a trial routing of even splits, as all demand is carried.
            with threads_for(self._operations // groups):
                certificates.measure(
                    self._scan,
                    self._block_ptr,
                    self._max_trie_nodes,
                    group_demand,
                    inverse_capacity_rows,
                    link_cost,
                    one_step(np.zeros(1)),
                    None,
                    True,
                    measurements,
                    lanes,
                )
            full_load[g] = measurements.full_load.sum(0)
            trial_load[g] = measurements.trial_load.sum(0)
        # Regroup the demands from (G, D * L) to (D * G * L,).
        inverse_capacity_sum = h_rows[::width].copy()
        total_demand = routable_rates.reshape(groups, num_demands, width).sum((0, 2))
        self._demand_rows = scenario_kernels.ScenarioDemands(
            rate=np.ascontiguousarray(
                routable_rates.reshape(groups, num_demands, width).transpose(1, 0, 2)
            ).reshape(-1),
            total=total_demand,
            inverse_capacity_sum=inverse_capacity_sum,
            is_live=self._path_rows(problem.path_mask[:1].to(torch.float64).numpy()),
        )
        # Sums (1,): all scenarios are one program; its demands have no value.
        ones = np.ones(1)
        return ProgramSums(
            full_load.reshape(-1),
            trial_load.reshape(-1),
            0 * ones,
            total_demand.sum() * ones,
            (total_demand * inverse_capacity_sum).sum() * ones,
        )

    def _path_rows(self, values: FloatArray) -> FloatArray:
        """Convert values (1, D, K) of the paths of each demand to path rows (P,)."""
        rows = np.empty(len(self._scan.end_node))
        with threads_for(self._operations):
            certificates.pack_splits(self._scan, np.ascontiguousarray(values), rows, (0,))
        return rows

    def set_splits(self, splits: FloatArray) -> None:
        """Set the splits of T(z), the last PDHG step, to ``splits`` (1, D, K)."""
        self._stepped[:] = self._path_rows(splits)

    def respond(
        self,
        price_plus_cost: Float32Array,
        sharpness: float,
        fixed_demands: Int64Array,
        fixed_splits: FloatArray,
        lane: int,
        *,
        is_summing: bool,
    ) -> tuple[FloatArray, FloatArray]:
        """Raise an error: responses of a single matrix are not supported.

        Raises:
            NotImplementedError: always; scenarios are not sampled.
        """
        raise NotImplementedError

    def respond_to(
        self, price: FloatArray, value: float, fixed_demands: Int64Array, fixed_splits: FloatArray
    ) -> None:
        """Set the splits of the last step to the softmax response of all demands to link prices.

        Args:
            price: (G * E * L,) link prices, 1/(Gbit/s); ``FAILED_PRICE`` on a failed link.
            value: value of the program, the scale of the softmax temperature.
            fixed_demands: (n,) indices of the demands with fixed splits, ascending.
            fixed_splits: (n, K) splits of these demands.
        """
        # The mean price of a demanded Gbit/s is at most value / total demand.
        temperature = sample.TEMPERATURE * value / max(float(self._demand_rows.total.sum()), 1e-300)
        with threads_for(self._operations):
            scenario_kernels.respond(
                self._scan,
                self._block_ptr,
                self._max_trie_nodes,
                self._demand_rows,
                self._stepped,
                price.reshape(self._groups, -1),
                1 / max(temperature, 1e-300),
                fixed_demands,
                np.searchsorted(fixed_demands, self._scan.demand_ptr),
                np.ascontiguousarray(fixed_splits),
                self._lanes,
            )

    def restart(self) -> None:
        """Restart from the last PDHG step: copy its splits to the iterate and Halpern's anchor."""
        self._current[:] = self._stepped
        self._anchor[:] = self._stepped

    def iterate(
        self, num_iterations: int, program: ScaledProgram, dual: Dual, control: Control
    ) -> None:
        """Run PDHG iterations: primal step over the paths, then dual step over the links.

        Args:
            num_iterations: number of iterations.
            program: constants of the links, (G * E * L,).
            dual: dual variables and loads of the iterate z, Halpern's anchor z_0 and the step T(z),
                (G * E * L,) (written).
            control: primal weight and restart state, (1,) each (written).
        """
        scratch = self._scratch
        for _ in range(num_iterations):
            is_restarting = kernels.begin_iteration(program, dual, control, scratch, 1)
            self._step(self._block_ptr, is_restarting=is_restarting)
            # Loads and sums of all blocks, as those of a single block.
            scratch.block_load[0] = self._block_loads.sum(0).reshape(-1)
            scratch.block_sums[0] = self._block_sums.sum(0)
            scenario_kernels.end_iteration(program, dual, control, scratch)

    def _step(self, block_ptr: Int64Array, *, is_restarting: bool) -> None:
        """Compute the primal step of the sources in some blocks, and the link loads of its splits.

        Args:
            block_ptr: (blocks + 1,) first source of each block.
            is_restarting: whether this iteration restarts from the new splits.
        """
        scratch = self._scratch
        with threads_for(self._operations):
            # Inputs: paths, demands, splits of z, z_0 and T(z), link prices, Halpern's weights and
            # 1 / primal weight; outputs: T(z), and loads and sums for each block.
            scenario_kernels.step(
                self._scan,
                block_ptr,
                self._max_trie_nodes,
                self._demand_rows,
                self._current,
                self._anchor,
                self._stepped,
                scratch.price.reshape(self._groups, -1),
                scratch.halpern_weights,
                scratch.inverse_primal_weight[0],
                is_restarting,
                self._block_loads,
                self._block_sums,
                self._lanes,
            )

    def certify(
        self, price_plus_cost: FloatArray, *, is_repairing: bool
    ) -> tuple[FloatArray, FloatArray]:
        """Repair the splits of the last step to a sum of 1 over live paths; return their loads and
        the demands' part of the dual bound.

        Args:
            price_plus_cost: (G * E * L,) link prices, 1/(Gbit/s).
            is_repairing: ignored; splits are always repaired.

        Returns:
            (G * E * L,) loads in Gbit/s, and (1,) minus the sum over demands of the lowest path
            price.
        """
        with threads_for(self._operations):
            scenario_kernels.certify(
                self._scan,
                self._block_ptr,
                self._max_trie_nodes,
                self._demand_rows,
                self._stepped,
                price_plus_cost.reshape(self._groups, -1),
                self._block_loads,
                self._profits,
                self._lanes,
            )
        return self._block_loads.sum(0).reshape(-1), self._profits.sum(keepdims=True)

    def project_round(
        self, load_ratio: FloatArray, unused_capacity: FloatArray, *, is_first: bool, is_last: bool
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Raise an error: flows are not projected onto the capacities.

        Raises:
            NotImplementedError: always; all demand is served, possibly above the capacities.
        """
        raise NotImplementedError

    def keep(self, matrices: list[int]) -> None:
        """Store the splits of the last step as the incumbent.

        Args:
            matrices: [0] if they are better than the incumbent, else []; the first call stores them
            anyway.
        """
        if matrices or not self._has_incumbent:
            self._incumbent_splits[:] = self._stepped
            self._has_incumbent = True

    def reload_incumbent(self) -> FloatArray:
        """Raise an error: flows are not projected onto the capacities, so none are reloaded.

        Raises:
            NotImplementedError: always; all demand is served, possibly above the capacities.
        """
        raise NotImplementedError

    def best_splits(self) -> FloatArray:
        """Return the incumbent splits, (1, D, K)."""
        return self._unpacked_splits(self._incumbent_splits)

    def stepped_splits(self) -> FloatArray:
        """Return the (1, D, K) splits of T(z), the last PDHG step."""
        return self._unpacked_splits(self._stepped)

    def _unpacked_splits(self, rows: FloatArray) -> FloatArray:
        """Convert path rows (P,) to splits (1, D, K)."""
        splits = np.empty((1, *self._problem.paths.leaf.shape))
        with threads_for(self._operations):
            certificates.unpack_splits(self._scan, rows, np.zeros((1, 0)), splits, (0,))
        return splits


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ScenarioResult(Solution):
    """Incumbent of a scenario program; the value is the mean, tail mean or maximum of the costs.

    Attributes:
        splits: (D, K) share of the demand on each path, in every scenario.
        prices: (S, E) 1/(Gbit/s), y / c; value per Gbit/s under total_flow.
        costs: (S,) cost of each scenario: the largest link utilisation; under total_flow the
            dropped flow, Gbit/s.
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
    """Optimise shared splits over all scenarios, to a certified gap.

    Args:
        problem: S matrices under max_link_utilisation or total_flow, on the CPU, all with the same
            capacities.
        weights: (S,) weights >= 0 of the scenarios; None for equal weights.
        tail: risk level in [0, 1]: 0 for the mean, 1 for the worst scenario, else the mean of the
            worst share 1 - tail (CVaR).
        gap: target gap: (value - bound) / value.
        deadline: seconds from now.
        max_iterations: iteration limit.
        warm_start: splits (D, K) and prices (S, E), from an earlier result, for example.
        report: progress callback, called after each full gap check.

    Raises:
        InputError: another objective or device; side conditions or value steps; different
            capacities; options out of range.
    """
    begin = time.perf_counter()
    _check_supported(problem, tail, gap)
    # Largest weight of each scenario in the risk measure.
    limits = _limits(problem.batch, weights, tail)
    # Drop scenarios without weight, which would affect the step sizes.
    weighted_rows = torch.from_numpy(np.flatnonzero(limits))
    weighted_scenarios = problem.rows(weighted_rows)
    limits = limits[limits > 0]
    # Search to the target gap, from the warm start or from sampled demands.
    state = None
    if warm_start is not None:
        state = _warm_start_state(problem, warm_start, weighted_rows)
    engine, sampled = _make_engine(weighted_scenarios, limits, state, gap)
    search = Search(
        _minimisation(weighted_scenarios.row(0)),
        engine,
        gap,
        max_iterations,
        report,
        begin,
        may_stall=False,
        sampled=sampled,
        is_large=_is_large(weighted_scenarios),
    )
    iterations, stop = complete(search.iterate(Deadline(begin + deadline), warm=state is not None))
    # Prices of all scenarios; 0 for those without weight.
    best_splits, best_prices = engine.incumbent()
    prices = torch.zeros_like(problem.capacity, dtype=torch.float64)
    prices[weighted_rows] = _prices_by_scenario(engine, best_prices)
    return ScenarioResult(
        splits=best_splits[0],
        prices=prices,
        costs=_costs(problem, best_splits),
        value=float(search.value),
        bound=float(search.bound),
        sense=-1.0,
        iterations=iterations,
        solve_s=time.perf_counter() - begin,
        stopped_by=stop,
    )


def _check_supported(problem: Problem, tail: float, gap: float) -> None:
    """Validate problem and options of :func:`solve_scenarios`.

    Raises:
        InputError: unsupported objective, side condition, value steps or device; different
            capacities; a number out of range.
    """
    objective = problem.objective.name
    if objective not in (ObjectiveName.MAX_LINK_UTILISATION, ObjectiveName.TOTAL_FLOW):
        raise InputError("scenarios", "objective", "max_link_utilisation or total_flow", objective)
    for condition in problem.conditions:
        raise InputError.invalid(
            "scenarios",
            condition.name,
            "shared splits of several scenarios do not support this condition",
            "remove the condition",
        )
    if problem.steps is not None:
        raise InputError.invalid(
            "scenarios",
            "steps",
            "shared splits of several scenarios do not support value steps",
            "give each demand one value",
        )
    if problem.ops.device.type != "cpu":
        raise InputError("scenarios", "device", "cpu", problem.ops.device)
    if not problem.batch or not bool((problem.capacity == problem.capacity[:1]).all()):
        raise InputError.invalid(
            "scenarios",
            "capacity",
            "there is no scenario, or the scenarios have different capacities",
            "give at least one scenario, and the same capacities for all",
        )
    if not 0 <= tail <= 1:
        raise InputError("scenarios", "tail", "a number in [0, 1]", tail)
    if not 0 <= gap < math.inf:
        raise InputError("scenarios", "gap", "a number >= 0", gap)


def _warm_start_state(
    problem: Problem, warm_start: tuple[Tensor, Tensor], weighted_rows: Tensor
) -> SolveState:
    """Return the engine's start from the splits and prices of an earlier result.

    Args:
        problem: all S scenarios.
        warm_start: splits (D, K) and prices (S, E).
        weighted_rows: indices of the scenarios with weight.

    Raises:
        InputError: splits or prices have another shape.
    """
    splits, prices = warm_start
    expected_shapes = tuple(problem.paths.leaf.shape), tuple(problem.capacity.shape)
    if (tuple(splits.shape), tuple(prices.shape)) != expected_shapes:
        raise InputError(
            "scenarios",
            "warm_start",
            f"splits and prices of the shapes {expected_shapes[0]} and {expected_shapes[1]}",
            f"{tuple(splits.shape)} and {tuple(prices.shape)}",
        )
    return SolveState(splits[None].to(torch.float64), prices[weighted_rows])


def _make_engine(
    weighted_scenarios: Problem, limits: FloatArray, state: SolveState | None, gap: float
) -> tuple[ScenarioEngine | DroppedFlowEngine, SampledScenarios | None]:
    """Return the engine of the objective, and its start from sampled demands on large networks.

    Args:
        weighted_scenarios: scenarios with weight.
        limits: (S,) largest weight of each of them in the risk measure, positive.
        state: warm start; None for a cold start.
        gap: target gap.
    """
    if weighted_scenarios.objective.name is ObjectiveName.TOTAL_FLOW:
        return DroppedFlowEngine(weighted_scenarios, limits, state), None
    engine = ScenarioEngine(weighted_scenarios, limits, state)
    if not sampled_start.is_faster(weighted_scenarios.paths, gap):
        return engine, None
    return engine, SampledScenarios(weighted_scenarios, limits, engine, gap)


def _is_large(weighted_scenarios: Problem) -> bool:
    """Whether an iteration over the scenarios takes longer than a test of its bound."""
    if weighted_scenarios.objective.name is ObjectiveName.TOTAL_FLOW:
        return False
    return weighted_scenarios.batch * weighted_scenarios.paths.scan_size > LARGE_WORK


def _prices_by_scenario(engine: ScenarioEngine | DroppedFlowEngine, best_prices: Tensor) -> Tensor:
    """Return (S, E) prices of the scenarios with weight from the engine's incumbent prices."""
    if isinstance(engine, DroppedFlowEngine):
        return best_prices[0]
    return engine.split_scenarios(best_prices[0].numpy())


def _costs(problem: Problem, best_splits: Tensor) -> Tensor:
    """Return (S,) costs of shared splits (1, D, K) in all scenarios."""
    if problem.objective.name is ObjectiveName.TOTAL_FLOW:
        return dropped_flow(problem, best_splits)
    all_splits = best_splits.expand(problem.batch, -1, -1).to(problem.demand)
    return problem.utilisation(all_splits).amax(1)


def _minimisation(problem: Problem) -> Problem:
    """Return the problem under max_link_utilisation, an objective that the search minimises."""
    return dataclasses.replace(problem, objective=Objective(ObjectiveName.MAX_LINK_UTILISATION))


def _limits(num_scenarios: int, weights: FloatArray | None, tail: float) -> FloatArray:
    """Return (S,) the largest weight of each scenario in the risk measure.

    For ``tail`` below 1 it is the scenario's weight over 1 - tail, at most 1.  For ``tail`` 1, the
    worst case, it is 1 for a positive weight and 0 otherwise.

    Args:
        num_scenarios: S.
        weights: (S,) weights >= 0 of the scenarios, not all 0; None for equal weights.
        tail: risk level in [0, 1].

    Raises:
        InputError: wrong number of weights, or weights out of range.
    """
    weights = np.ones(num_scenarios) if weights is None else np.asarray(weights, dtype=np.float64)
    if (
        weights.shape != (num_scenarios,)
        or not bool((np.isfinite(weights) & (weights >= 0)).all())
        or not weights.sum() > 0
    ):
        raise InputError(
            "scenarios", "weights", f"{num_scenarios} numbers >= 0, not all 0", weights
        )
    # Weights with the sum 1, over the worst share 1 - tail.
    weights = weights / weights.sum()
    return np.minimum(weights / (1 - tail), 1.0) if tail < 1 else (weights > 0).astype(np.float64)


class ScenarioEngine(FusedEngine):
    """CPU engine of shared splits over the S E links of all scenarios.

    Args:
        problem: S matrices.
        limits: (S,) largest weight of each scenario, positive.
        state: warm start, splits (1, D, K) and prices (S, E); None for even splits.
    """

    def __init__(self, problem: Problem, limits: FloatArray, state: SolveState | None) -> None:
        self._scenarios = problem.to(torch.float64)
        self._all_limits = limits
        # Groups of the largest width, or one group of the smallest width for all scenarios.
        widths = lanes_of(torch.float64)
        self._group_width = next((width for width in widths if width >= problem.batch), widths[-1])
        self._groups = math.ceil(problem.batch / self._group_width)
        passes = ScenarioPasses(self._scenarios, self._groups, self._group_width)
        # Prices of the warm start in groups, as the engine stores link arrays.
        if state is not None:
            state = SolveState(
                state.splits, torch.from_numpy(self._group_scenarios(state.prices.numpy())[None])
            )
        super().__init__(problem.row(0), state, torch.float64, passes)

    def _group_scenarios(self, values: FloatArray) -> FloatArray:
        """Convert link values (S, E) to groups (G * E * L,), 0 in lanes without a scenario."""
        lane_values = np.zeros((self._groups * self._group_width, values.shape[1]))
        lane_values[: len(values)] = values
        return (
            lane_values.reshape(self._groups, self._group_width, -1).transpose(0, 2, 1).reshape(-1)
        )

    def split_scenarios(self, values: FloatArray) -> Tensor:
        """Convert link values in groups (G * E * L,) to one row per scenario, (S, E)."""
        lane_values = values.reshape(self._groups, -1, self._group_width).transpose(0, 2, 1)
        return torch.from_numpy(
            lane_values.reshape(self._groups * self._group_width, -1)[
                : self._scenarios.batch
            ].copy()
        )

    def respond_to(
        self, prices: FloatArray, value: float, fixed_demands: Int64Array, fixed_splits: FloatArray
    ) -> None:
        """Restart from the response of all demands to the prices of a sample's solution.

        Args:
            prices: (G * E * L,) prices of the sample, 1/(Gbit/s).
            value: value of the sample's solution, a utilisation.
            fixed_demands: (n,) indices of the demands that keep the sample's splits, ascending.
            fixed_splits: (n, K) splits of these demands.
        """
        passes = self._passes
        assert isinstance(passes, ScenarioPasses)
        passes.respond_to(
            np.where(self._program.live > 0, prices, kernels.FAILED_PRICE),
            value,
            fixed_demands,
            fixed_splits,
        )
        self._dual.stepped[:] = prices * self._capacity
        self._normalise_dual()
        self._init_iterates(is_repairing=True)

    def _link_rows(self) -> tuple[FloatArray, FloatArray]:
        """Return (G * E * L,) capacities, and zero costs."""
        # Lanes without a scenario have no links.
        capacity = self._group_scenarios(self._scenarios.capacity.numpy())
        return capacity, np.zeros_like(capacity)

    def _limits(self) -> tuple[FloatArray, int]:
        """Return the limits (S,) of the scenario weights, and the number of lanes of a group."""
        return self._all_limits, self._group_width

    def _normalise_dual(self) -> None:
        """Project the dual variables y of the last step onto their feasible set.

        It is {y >= 0, sum of y = 1, sum of y of scenario s <= limit[s]}.  The y of a warm start may
        belong to another program and exceed the limits.
        """
        super()._normalise_dual()
        dual = self._dual.stepped
        limited_simplex(
            dual, np.ones_like(dual), self._program.live, self._all_limits, self._group_width
        )

    def _dual_size(self, capacity_value: FloatArray) -> FloatArray:
        """Return (1,) the smallest number by which y must be divided to meet the scenario limits
        and a sum of at most 1.

        The quotients prove a bound, since utilisations are not negative.

        Args:
            capacity_value: (G * E * L,) y of each link and scenario, price times capacity.
        """
        # Sum of y in each scenario, which must not exceed its limit.
        scenario_dual_sum = self.split_scenarios(capacity_value).sum(1).numpy()
        return np.array(
            [
                max(
                    float(scenario_dual_sum.sum()),
                    float((scenario_dual_sum / self._all_limits).max()),
                )
            ]
        )

    def _max_utilisation(self, utilisation: FloatArray) -> FloatArray:
        """Return (1,) the tail mean of the scenarios' largest utilisations.

        Args:
            utilisation: (G * E * L,) utilisation of each link in each scenario.
        """
        scenario_max_utilisation = self.split_scenarios(utilisation).amax(1)
        return tail_mean(scenario_max_utilisation, torch.from_numpy(self._all_limits)).numpy()[None]


class SampledScenarios:
    """Starts of the engine from sampled demands, the same sample in all scenarios.

    A demand is drawn in proportion to its mean over the scenarios, and every demand responds to the
    prices of the sample's solution.

    Args:
        problem: S matrices.
        limits: (S,) largest weight of each scenario.
        engine: engine of these matrices.
        gap: target gap of the search.
    """

    def __init__(
        self, problem: Problem, limits: FloatArray, engine: ScenarioEngine, gap: float
    ) -> None:
        self._problem = problem
        self._scenario_limits = limits
        self._engine = engine
        self._gap = gap
        self._sample_size = sampled_start.first_size(problem.paths, gap)

    def respond(self, unfinished: Tensor, deadline: Deadline) -> Steps[bool]:
        """Solve the next, larger sample and restart the engine at the response to its prices.

        Args:
            unfinished: (1,) bool, unused: the engine has one program.
            deadline: time limit of the sample.

        Returns:
            Whether the engine restarted: False, without effect, if the sample would be empty or
            too large.
        """
        problem = self._problem
        sample_size = self._sample_size
        if sample_size > sampled_start.MAX_SHARE * problem.paths.num_demands:
            return False
        self._sample_size = sampled_start.SAMPLE_GROWTH * sample_size
        begin = time.perf_counter()
        # Draw demands by their mean over the scenarios.
        demand = problem.demand.to(torch.float64)
        drawn_demands, probability = sample.draw_demands(demand.mean(0).numpy(), sample_size)
        if not len(drawn_demands):
            return False
        # Program of these demands, at demand / probability, so that expected loads are unchanged.
        paths = subset.of_demands(problem.paths, drawn_demands)
        sampled_problem = dataclasses.replace(
            problem,
            paths=paths,
            ops=make_path_ops(paths, problem.ops.device),
            demand=demand[:, torch.from_numpy(drawn_demands)] / torch.from_numpy(probability),
            demand_value=problem.demand_value[: len(drawn_demands)],
        )
        # Solve the sample from a cold start, without progress reports; respond to its prices.
        sample_engine = ScenarioEngine(sampled_problem, self._scenario_limits, None)
        sample_search = Search(
            sampled_problem.row(0),
            sample_engine,
            sampled_start.SAMPLE_GAP * self._gap,
            sampled_start.MAX_ITERATIONS,
            None,
            begin,
            may_stall=False,
            is_large=False,
        )
        yield from sample_search.iterate(deadline, warm=False)
        splits, prices = sample_engine.incumbent()
        # Demands that were certain to be drawn keep their splits.
        is_certain = probability >= 1
        self._engine.respond_to(
            prices[0].numpy(),
            float(sample_search.value),
            drawn_demands[is_certain],
            splits[0].numpy()[is_certain],
        )
        return True

    def correct(self) -> bool:
        """Return False: all demand is served, so that prices need no correction."""
        return False
