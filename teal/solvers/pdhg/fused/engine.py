"""CPU engine of PDHG: up to 16 matrices in SIMD lanes, a parallel loop over sources per iteration.

:class:`FusedEngine` holds the arrays over links and delegates all work over paths to
:class:`teal.solvers.pdhg.fused.passes.Passes`; it also starts from sampled demands
(:meth:`FusedEngine.respond`) and from a model (:meth:`FusedEngine.restart`). Symbols: table in
:mod:`teal.solvers.pdhg`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from teal.problem import Problem
from teal.runtime.arrays import AnyArray, FloatArray
from teal.solvers.pdhg.engine import guess_dual, initial_primal_weight
from teal.solvers.pdhg.fused import kernels
from teal.solvers.pdhg.fused.curves import curve_rows
from teal.solvers.pdhg.fused.demand_value import DemandValue, demand_value_rows
from teal.solvers.pdhg.fused.passes import InMemory, Passes, PathPasses
from teal.solvers.pdhg.fused.state import NO_UTILISATION, Control, Dual, ScaledProgram
from teal.solvers.pdhg.samples.sample import SampleAnswer
from teal.solvers.result import SolveState

# Largest number of matrices that are solved together.
MAX_LANES = 16
# Lane counts for which kernels are compiled; a batch is padded to the next one.
LANES = (
    1,
    8,
    MAX_LANES,
)
# Bytes of an AVX-512 register: more lanes gain nothing on large networks, and take seconds to
# compile.
_REGISTER_BYTES = 64
_NUMPY_DTYPE = {torch.float32: np.float32, torch.float64: np.float64}


def lanes_of(dtype: torch.dtype) -> tuple[int, ...]:
    """Return the lane counts (:data:`LANES`) for an iteration in ``dtype``: 16 float32 or 8 float64
    fill a register.
    """
    return tuple(num_lanes for num_lanes in LANES if num_lanes * dtype.itemsize <= _REGISTER_BYTES)


class FusedEngine:
    """CPU engine of PDHG in compiled kernels, a :class:`teal.solvers.pdhg.engine.PdhgEngine`.

    Its iterates equal those of PlainEngine up to rounding.  The engine holds arrays over links, the
    passes those over paths.  Link arrays are flat, (E * L,), with the L lanes of a link side by
    side; lane b holds matrix b, lanes past B no demand.  z is the iterate (splits w, dual variables
    y), T(z) the result of a PDHG step from z.

    Args:
        problem: at most as many matrices as ``lanes_of(dtype)`` has lanes.
        state: warm start; None for w = 0 and y = 0 (in a min-max program equal y on all live
            links).  w are the splits, y the dual variables.
        dtype: type of the splits in the iteration, float32 or float64; gap checks are in float64.
        passes: passes over other paths than those of ``problem``, which then has no demands and
            B = 1; None for passes over the paths of ``problem``.
    """

    @staticmethod
    def accepts(problem: Problem) -> bool:
        """Whether the kernels support a program: its columns are paths, it is on the CPU, and a
        utility has no path caps.
        """
        # The CUDA backend may be simulated on the CPU.
        is_on_cpu = problem.ops.device.type == "cpu" and problem.ops.backend.name != "cuda"
        has_capped_utility = problem.utility is not None and problem.max_share is not None
        return problem.ops.is_over_paths and is_on_cpu and not has_capped_utility

    def __init__(
        self,
        problem: Problem,
        state: SolveState | None,
        dtype: torch.dtype,
        passes: Passes | None = None,
    ) -> None:
        self._problem = problem = problem.to(torch.float64)
        self._on_simplex = problem.price_set.on_simplex
        num_lanes = next(num_lanes for num_lanes in lanes_of(dtype) if num_lanes >= problem.batch)
        # Only its length L counts: kernels are compiled for each length of the tuple.
        self._lanes = (0,) * num_lanes
        self._capacity, self._cost = self._link_rows()
        self._passes = passes or self._make_passes(dtype)
        self._program, primal_weight = self._scaled_program()
        # Zero arrays: six of the links, and six counters of each matrix beside the primal weights.
        self._dual = Dual(*(np.zeros_like(self._capacity) for _ in range(6)))
        self._control = Control(
            primal_weight, primal_weight.copy(), *(np.zeros(num_lanes) for _ in range(6))
        )
        # -1: no fixed-point error has been measured in this restart cycle.
        self._control.first_error[:] = -1
        self._incumbent_prices = torch.zeros(
            problem.batch, len(self._capacity) // num_lanes, dtype=torch.float64
        )
        self._start(state)
        # Compile before the first timed iteration.
        self._passes.compile(self._program, self._dual, self._control)

    def _link_rows(self) -> tuple[FloatArray, FloatArray]:
        """Return (E * L,) capacities in Gbit/s, and (E * L,) costs in value per Gbit/s."""
        problem = self._problem
        return self._lane_rows(problem.capacity), self._lane_rows(
            problem.link_cost.expand(problem.batch, -1)
        )

    def _limits(self) -> tuple[FloatArray, int]:
        """Return the limits of the scenarios and the number of scenarios side by side in a row.

        They are (0,) and 1, since this program has no scenarios.
        """
        return np.zeros(0), 1

    def _make_passes(self, dtype: torch.dtype) -> PathPasses:
        """Create passes over the paths of the problem, in memory."""
        problem = self._problem
        passes = PathPasses(
            problem.paths.packed,
            problem.paths.num_paths,
            problem.batch,
            self._lanes,
            self._demand_value(),
            problem.demand_set.carries_all,
            _NUMPY_DTYPE[dtype],
            InMemory(),
            curve=curve_rows(problem, self._lane_rows),
        )
        passes.set_demand(problem.demand.numpy())
        return passes

    def _demand_value(self) -> DemandValue:
        """Return the values of the demands, with the largest share of each path where limited."""
        problem = self._problem
        value = demand_value_rows(problem, self._lane_rows)
        path_share_limit = problem.max_share
        if path_share_limit is None:
            return value
        # Existing paths, demand by demand, in the order of scans.
        return value._replace(
            cap=self._lane_rows(path_share_limit.to(torch.float64)[:, problem.ops.mask])
        )

    def _lane_rows(self, values: Tensor) -> FloatArray:
        """Convert (B, n) to flat rows of lanes, (n * L,), in float64.

        Lanes past B repeat the first matrix; the passes give them no demand.
        """
        num_lanes = len(self._lanes)
        lane_values = (
            values
            if len(values) == num_lanes
            else torch.cat([values, values[:1].expand(num_lanes - len(values), -1)])
        )
        return lane_values.to(torch.float64).t().contiguous().numpy().reshape(-1)

    def _matrices_from_lanes(self, rows: AnyArray) -> Tensor:
        """Convert flat rows of lanes (n * L,) to (B, n), in float64."""
        return torch.from_numpy(
            rows.reshape(-1, len(self._lanes)).T[: self._problem.batch].astype(np.float64)
        )

    def _scaled_program(self) -> tuple[ScaledProgram, FloatArray]:
        """Return the scaled program, and the first primal weight of each matrix, (L,).

        The scale S makes the objective of order 1: the value of all routable demand (under a
        utility times a factor), or in a min-max program the largest utilisation of the even
        splits.  The first primal weight is omega = |y| / |w| for y estimated from a trial routing.
        """
        num_lanes = len(self._lanes)
        # Inverse capacities, 0 for failed links, and sums over the demands.
        live = self._capacity > 0
        inverse_capacity = np.where(live, 1 / np.where(live, self._capacity, 1), 0.0)
        program_sums = self._passes.measure(
            inverse_capacity, np.where(live, self._cost, kernels.FAILED_PRICE)
        )
        # S, m and the squared primal distance |w|^2.
        full_utilisation = program_sums.full_load * inverse_capacity
        total_demand = program_sums.total_demand
        squared_primal_distance = program_sums.squared_primal_distance
        # S: largest utilisation under even splits, or value of all demand.
        objective_scale = (
            (program_sums.trial_load * inverse_capacity).reshape(-1, num_lanes).max(0)
            if self._on_simplex
            else program_sums.demand_value_sum
        )
        # (L,) value of all routable demand.
        self._routable_value = np.zeros(num_lanes) if self._on_simplex else objective_scale
        # Under a utility marginal values exceed those at share 1: a factor from the utilisation of
        # the trial routing.  Lanes past B hold no demands.
        if self._problem.utility is not None:
            batch = self._problem.batch
            trial_utilisation = (
                (program_sums.trial_load * inverse_capacity).reshape(-1, num_lanes).max(0)[:batch]
            )
            objective_scale = objective_scale.copy()
            objective_scale[:batch] *= self._problem.utility.value_scale(
                torch.from_numpy(trial_utilisation)
            ).numpy()
        # S of each matrix, (L,) and repeated for every link, (E * L,).
        objective_scale = self._scale = np.where(objective_scale > 0, objective_scale, 1.0)
        link_objective_scale = self._per_link(objective_scale)
        load_factor = inverse_capacity
        mean_scaled_value: Tensor | None = None
        # In a min-max program loads, and with them utilisations, are over S.
        if self._on_simplex:
            full_utilisation = full_utilisation / link_objective_scale
            squared_primal_distance = squared_primal_distance / objective_scale
            load_factor = inverse_capacity / link_objective_scale
        else:
            # S is the value of all demand, so that the mean of v / S over demanded Gbit/s is 1 /
            # total demand.
            mean_scaled_value = torch.from_numpy(1 / np.where(total_demand > 0, total_demand, 1.0))[
                :, None
            ]
        # The same link arrays with one row for each matrix, (L, E), as guess_dual expects.
        capacity_by_matrix, trial_load_by_matrix, utilisation_by_matrix = (
            torch.from_numpy(link_array.reshape(-1, num_lanes).T.copy())
            for link_array in (self._capacity, program_sums.trial_load, full_utilisation)
        )
        # First primal weight |y| / |w|, with y guessed from the loads of the trial routing.
        dual_guess = guess_dual(capacity_by_matrix, trial_load_by_matrix, mean_scaled_value)
        primal_weight = initial_primal_weight(
            utilisation_by_matrix, dual_guess, torch.from_numpy(squared_primal_distance)
        )
        # Constants of the iteration.
        limits, scenario_width = self._limits()
        program = ScaledProgram(
            scaled_cost=self._cost / link_objective_scale,
            inverse_capacity=inverse_capacity,
            load_factor=load_factor,
            live=live.astype(np.float64),
            full_path_utilisation=np.where(full_utilisation > 0, full_utilisation, NO_UTILISATION),
            inverse_scale=1 / objective_scale,
            carries_all=self._problem.demand_set.carries_all,
            on_simplex=self._on_simplex,
            limits=limits,
            scenario_width=scenario_width,
        )
        return program, primal_weight.numpy().copy()

    def _start(self, state: SolveState | None) -> None:
        """Set the point from which the first iteration restarts to ``state``, or to zeros.

        Its splits w and dual variables y take the place of the last step T(z).

        In a min-max program y is scaled to the sum 1; a matrix whose y are all 0 gets equal y on
        all live links.

        Args:
            state: splits (B, D, K) and prices (B, E); None for w = 0 and y = 0.
        """
        num_lanes = len(self._lanes)
        dual = self._dual
        if state is not None:
            self._passes.set_splits(np.ascontiguousarray(state.splits.numpy()))
            # y = price * capacity, over S except in a min-max program.
            prices = self._lane_rows(state.prices.to(torch.float64).clamp(min=0))
            dual.stepped[:] = prices * self._capacity
            if not self._on_simplex:
                dual.stepped[:] *= self._per_link(self._program.inverse_scale)
        # Min-max program: y with the sum 1, equal on all live links where all y are 0.
        if self._on_simplex:
            dual_rows = dual.stepped.reshape(-1, num_lanes)
            is_zero = dual_rows.sum(0) <= 0
            dual_rows[:, is_zero] = self._program.live.reshape(-1, num_lanes)[:, is_zero]
            self._normalise_dual()
        # w = 0: all loads are 0.
        if state is None and not self._on_simplex:
            self._has_advanced = self._is_certified = False
            return
        # Scale the splits on live paths to sums of at most 1 (in a min-max program to 1, evenly
        # where all are 0).
        self._init_iterates(is_repairing=True)

    def restart(self, state: SolveState, weight_factor: float = 1.0, iterations: int = 0) -> None:
        """Restart the iteration from another state; the incumbent stays.

        Args:
            state: splits (B, D, K) and prices (B, E), on the CPU.
            weight_factor: factor on the first primal weight.
            iterations: initial value of the count of all iterations.  Since a restart cycle lasts
                at most a share of this count, a higher value allows longer cycles.
        """
        control = self._control
        control.primal_weight[:] = control.first_primal_weight * weight_factor
        control.first_error[:] = -1
        control.total_iterations[:] = iterations
        for counters in (control.cycle_iterations, control.last_error, control.restart_due):
            counters[:] = 0
        self._start(state)

    def _normalise_dual(self) -> None:
        """Scale the last step's dual variables of each matrix to the sum 1 (min-max program)."""
        dual_rows = self._dual.stepped.reshape(-1, len(self._lanes))
        # The sum is 0 where all links have failed.
        dual_rows /= np.maximum(dual_rows.sum(0), 1e-300)

    def _dual_size(self, capacity_value: FloatArray) -> FloatArray:
        """Return (L,) sums over the links of price times capacity.

        They are a term of the dual bound, and in a min-max program its divisor.

        Args:
            capacity_value: (E * L,) price times capacity of each link.
        """
        return capacity_value.reshape(-1, len(self._lanes)).sum(0)

    def _init_iterates(self, *, is_repairing: bool) -> None:
        """Certify T(z), the last step, and copy its dual variables and loads to iterate and anchor.

        Args:
            is_repairing: whether to overwrite the splits with repaired ones: 0 on paths
                with a failed link, sums of at most 1, in a min-max program of exactly 1.
        """
        dual = self._dual
        self._certify_splits(is_repairing=is_repairing)
        self._is_certified = True
        dual.stepped_load[:] = self._load * self._program.load_factor
        self._has_advanced = False
        dual.current[:] = dual.stepped
        dual.anchor[:] = dual.stepped
        dual.current_load[:] = dual.stepped_load
        dual.anchor_load[:] = dual.stepped_load

    def respond(self, answers: Sequence[SampleAnswer], corrections: int = 0) -> None:
        """Restart from the response of all demands to the prices of sampled programs.

        Each demand is divided over its paths by a softmax of their profits at these prices.

        Args:
            answers: prices of the solved sample of each matrix, and fixed splits.
            corrections: number of Newton steps on the prices before the response.  The dual
                variables keep the prices of ``answers``, since these steps improve the allocation
                but not the bound.
        """
        dual = self._dual
        num_lanes = len(self._lanes)
        for lane, sample_answer in enumerate(answers):
            corrected_answer = sample_answer
            capacity = self._capacity[lane::num_lanes]
            # Newton steps on the prices, towards loads equal to the capacities.
            for _ in range(corrections):
                load, elasticity = self._respond(corrected_answer, lane, is_summing=True)
                corrected_answer = corrected_answer.corrected(load, elasticity, capacity)
            # Splits of the last step at the corrected prices, dual variables at the first ones.
            self._respond(corrected_answer, lane, is_summing=False)
            dual.stepped[lane::num_lanes] = np.where(
                capacity > 0, sample_answer.prices * capacity, 0
            )
        # Scale y: to the sum 1 in a min-max program, else over S.
        if self._on_simplex:
            self._normalise_dual()
        else:
            dual.stepped[:] *= self._per_link(self._program.inverse_scale)
        self._init_iterates(is_repairing=self._problem.demand_set.carries_all)

    def _respond(
        self, answer: SampleAnswer, lane: int, *, is_summing: bool
    ) -> tuple[FloatArray, FloatArray]:
        """Set one matrix's splits of the last step to the response to the prices of ``answer``.

        Returns:
            (E,) link loads, Gbit/s, and (E,) elasticities, minus the derivatives of the loads by
            the prices; of length 0 if not ``is_summing``.
        """
        num_lanes = len(self._lanes)
        live = self._capacity[lane::num_lanes] > 0
        # A failed link costs so much that its paths get no flow.
        price_plus_cost = np.where(
            live, answer.prices + self._cost[lane::num_lanes], kernels.FAILED_PRICE
        ).astype(np.float32)
        return self._passes.respond(
            price_plus_cost,
            answer.sharpness,
            answer.fixed_demands,
            answer.fixed_splits,
            lane,
            is_summing=is_summing,
        )

    def advance(self, num_iterations: int) -> Tensor:
        """Run ``num_iterations`` iterations; return (B,) dual bounds before the last one.

        The bounds have rounding errors, so that they are not certified.
        """
        # Not in _start: the search may stop after a gap check of the start.
        if not self._has_advanced:
            self._passes.restart()
            self._has_advanced = True
        self._passes.iterate(num_iterations, self._program, self._dual, self._control)
        self._is_certified = False
        return self._as_value(self._per_matrix(self._control.bound))

    def _per_link(self, lane_values: FloatArray) -> FloatArray:
        """Repeat (L,) values of the matrices for every link: (E * L,)."""
        return np.tile(lane_values, len(self._capacity) // len(lane_values))

    def _per_matrix(self, lane_values: FloatArray) -> Tensor:
        """Return the values of the B matrices, (B,), from those of all L lanes, (L,)."""
        return torch.from_numpy(lane_values[: self._problem.batch].copy())

    def _as_value(self, score: Tensor) -> Tensor:
        """Convert scores (B,), the sums that the engine maximises, to objective values.

        Under a utility the score is the sum of demand weight times (utility + 1), and the value is
        the common share: the share of all demands at which the score is the same.  For other
        programs the score is the value.
        """
        utility = self._problem.utility
        return score if utility is None else utility.equivalent(score)

    def _prices(self) -> FloatArray:
        """Return the (E * L,) link prices of the last PDHG step.

        With dual variables y and the scale S of the objective: S y / capacity, value per Gbit/s;
        where the maximum utilisation is minimised, y / capacity, 1/(Gbit/s).
        """
        prices = self._dual.stepped * self._program.inverse_capacity
        return prices if self._on_simplex else prices * self._per_link(self._scale)

    def _certify_splits(self, *, is_repairing: bool = False) -> None:
        """Compute the demands' part of the dual bound, and the loads of the last step's splits.

        Args:
            is_repairing: whether to overwrite the splits with repaired ones: 0 on paths
                with a failed link, sums of at most 1, in a min-max program of exactly 1.
        """
        price_plus_cost = np.where(
            self._program.live > 0, self._prices() + self._cost, kernels.FAILED_PRICE
        )
        self._load, self._profit = self._passes.certify(price_plus_cost, is_repairing=is_repairing)

    def trivial_bound(self) -> Tensor:
        """Return (B,) the dual bound at zero prices: the value of all routable demand; 0 for a
        min-max program.
        """
        return self._as_value(self._per_matrix(self._routable_value))

    def certify(self) -> Tensor:
        """Return (B,) certified dual bounds at the prices of the last PDHG step.

        A bound is sum_e price * capacity + sum_d demand max(0, best profit); in a min-max program
        -(sum_d demand * best profit) / (sum_e price * capacity).
        """
        # At the start of a search this is already done.
        if not self._is_certified:
            self._certify_splits()
        # The next check overwrites the flows.
        self._is_certified = False
        # Links' part of the bound; in a min-max program the divisor.
        capacity_value_sum = self._dual_size(self._prices() * self._capacity)
        if self._on_simplex:
            # Where all prices are 0, the bound is 0.
            has_prices = capacity_value_sum > 0
            return self._per_matrix(
                np.where(
                    has_prices, -self._profit / np.where(has_prices, capacity_value_sum, 1), 0.0
                )
            )
        return self._as_value(self._per_matrix(capacity_value_sum + self._profit))

    def check(self, refill: int = 0, sufficient_ratio: float = math.inf) -> tuple[Tensor, Tensor]:
        """Run a gap check; return (B,) values of the last step's splits, and (B,) dual bounds.

        The flows are projected onto the capacities; in a min-max program the value is the largest
        utilisation.

        Args:
            refill: largest number of rounds that allocate unused capacity to unserved demand.
            sufficient_ratio: value over bound of all matrices at which the rounds end early.
        """
        bound = self.certify()
        live = self._program.live > 0
        # Min-max program: all demand is carried, and no flow is projected.
        if self._on_simplex:
            utilisation = np.where(live, self._load, 0) * self._program.inverse_capacity
            return self._per_matrix(self._max_utilisation(utilisation)), bound
        # Project round by round, until every value is near enough to its bound.
        value = torch.zeros_like(bound)
        for value in self._projected(refill):
            if bool((value >= sufficient_ratio * bound).all()):
                break
        return value, bound

    def _max_utilisation(self, utilisation: FloatArray) -> FloatArray:
        """Return the largest utilisation of each matrix, (L,), from that of all links, (E * L,)."""
        return utilisation.reshape(-1, len(self._lanes)).max(0)

    def _projected(self, refill: int) -> Iterator[Tensor]:
        """Project the flows onto the capacities; yield their values (B,) after each round.

        Round 0 scales the flows down; the ``refill`` further rounds allocate unused capacity to
        unserved demand.
        """
        # First round: load over capacity; later rounds: requested load over residual capacity.
        load_ratio = self._load * self._program.inverse_capacity
        unused_capacity = np.maximum(self._capacity - self._load, 0)
        for round_index in range(refill + 1):
            self._load, requested_load, flow_value = self._passes.project_round(
                load_ratio,
                unused_capacity,
                is_first=round_index == 0,
                is_last=round_index == refill,
            )
            # Ratios and unused capacity of the next round.
            residual_capacity = np.maximum(self._capacity - self._load, 0)
            load_ratio = np.where(
                requested_load > 0, requested_load / np.maximum(residual_capacity, 1e-300), 0.0
            )
            unused_capacity = np.maximum(residual_capacity - requested_load, 0)
            link_cost_sum = (self._cost * self._load).reshape(-1, len(self._lanes)).sum(0)
            yield self._as_value(self._per_matrix(flow_value - link_cost_sum))

    def shed(self, refill: int) -> None:
        """Project the incumbent flows onto the capacities, and make the result the incumbent.

        Used for max_concurrent_flow, after the search.

        Args:
            refill: number of rounds that allocate unused capacity to unserved demand.
        """
        self._load = self._passes.reload_incumbent()
        # Run all rounds; the values are not needed.
        for _ in self._projected(refill):
            pass
        self._passes.keep(list(range(self._problem.batch)))

    def keep(self, has_new_allocation: Tensor, has_new_prices: Tensor) -> None:
        """Replace the incumbent by results of the last check.

        Args:
            has_new_allocation: (B,) bool, matrices with a new incumbent allocation.
            has_new_prices: (B,) bool, matrices with new incumbent prices.
        """
        # Prices of the last step, for the matrices whose bound has improved.
        new_price_rows = has_new_prices.nonzero()[:, 0]
        self._incumbent_prices[new_price_rows] = self._matrices_from_lanes(self._prices())[
            new_price_rows
        ]
        self._passes.keep(has_new_allocation.nonzero()[:, 0].tolist())

    def incumbent(self) -> tuple[Tensor, Tensor]:
        """Return the incumbent splits (B, D, K) and prices (B, E), in float64."""
        return torch.from_numpy(self._passes.best_splits()), self._incumbent_prices

    def state(self) -> SolveState:
        """Return splits (B, D, K) and prices (B, E) of the last PDHG step, feasible or not."""
        return SolveState(
            torch.from_numpy(self._passes.stepped_splits()),
            self._matrices_from_lanes(self._prices()),
        )
