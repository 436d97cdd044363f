"""CPU engine of PDHG: up to 16 matrices in SIMD lanes, one parallel loop over sources per
iteration.

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
from teal.solvers.result import PdhgState

MAX_LANES = 16  # largest number of matrices that are solved together
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
    return tuple(width for width in LANES if width * dtype.itemsize <= _REGISTER_BYTES)


class FusedEngine:
    """PDHG in compiled kernels, a :class:`teal.solvers.pdhg.engine.PdhgEngine`; equals PlainEngine
    up to rounding.

    The engine holds arrays over links; the passes hold arrays over paths.

    Args:
        problem: at most as many matrices as ``lanes_of(dtype)`` has lanes.
        state: warm start; None for w = 0 and y = 0 (in a balanced program equal y on all live
            links).
        dtype: type of the splits in the iteration, float32 or float64; gap checks are in float64.
        passes: passes over other paths than those of ``problem``, which then has no demands and
            B = 1; None for passes over the paths of ``problem``.
    """

    @staticmethod
    def accepts(problem: Problem) -> bool:
        """Whether the kernels support the program: columns are paths, no bounds under a utility, on
        the CPU.
        """
        # The CUDA backend may be simulated on the CPU.
        is_on_cpu = problem.ops.device.type == "cpu" and problem.ops.backend.name != "cuda"
        has_limits = problem.utility is not None and problem.largest_share is not None
        return problem.ops.is_over_paths and is_on_cpu and not has_limits

    def __init__(
        self,
        problem: Problem,
        state: PdhgState | None,
        dtype: torch.dtype,
        passes: Passes | None = None,
    ) -> None:
        self._problem = problem = problem.to(torch.float64)
        self._on_simplex = problem.price_set.on_simplex
        width = next(width for width in lanes_of(dtype) if width >= problem.batch)
        # Only its length L counts: kernels are compiled for each length of the tuple.
        self._lanes = (0,) * width
        self._capacity, self._cost = self._link_rows()
        self._passes = passes or self._make_passes(dtype)
        self._program, primal_weight = self._scaled_program()
        self._dual = Dual(*(np.zeros_like(self._capacity) for _ in range(6)))
        self._control = Control(
            primal_weight, primal_weight.copy(), *(np.zeros(width) for _ in range(6))
        )
        self._control.first_error[:] = -1  # no error has been measured in this cycle
        self._incumbent_prices = torch.zeros(
            problem.batch, len(self._capacity) // width, dtype=torch.float64
        )
        self._start(state)
        # Compile before the first timed iteration.
        self._passes.compile(self._program, self._dual, self._control)

    def _link_rows(self) -> tuple[FloatArray, FloatArray]:
        """Return (E * L,) capacities and costs of the links."""
        problem = self._problem
        return self._lane_rows(problem.capacity), self._lane_rows(
            problem.link_cost.expand(problem.batch, -1)
        )

    def _limits(self) -> tuple[FloatArray, int]:
        """Return scenario limits and scenario width of :class:`ScaledProgram`; none here."""
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
        """Return values and caps of the demands."""
        problem = self._problem
        value = demand_value_rows(problem, self._lane_rows)
        largest = problem.largest_share
        if largest is None:
            return value
        # Existing paths, demand by demand, in the order of scans.
        return value._replace(cap=self._lane_rows(largest.to(torch.float64)[:, problem.ops.mask]))

    def _lane_rows(self, values: Tensor) -> FloatArray:
        """Convert (B, n) to flat rows of lanes, (n * L,); lanes past B repeat the first matrix
        (without demand).
        """
        width = len(self._lanes)
        padded = (
            values
            if len(values) == width
            else torch.cat([values, values[:1].expand(width - len(values), -1)])
        )
        return padded.to(torch.float64).t().contiguous().numpy().reshape(-1)

    def _matrices_from_lanes(self, rows: AnyArray) -> Tensor:
        """Convert flat rows of lanes (n * L,) to (B, n)."""
        return torch.from_numpy(
            rows.reshape(-1, len(self._lanes)).T[: self._problem.batch].astype(np.float64)
        )

    def _scaled_program(self) -> tuple[ScaledProgram, FloatArray]:
        """Return the scaled program and the first primal weights (L,)."""
        width = len(self._lanes)
        live = self._capacity > 0
        inverse_capacity = np.where(live, 1 / np.where(live, self._capacity, 1), 0.0)
        sums = self._passes.measure(
            inverse_capacity, np.where(live, self._cost, kernels.FAILED_PRICE)
        )
        # S, and distances for the first primal weight.
        full_utilisation = sums.full_load * inverse_capacity
        total = sums.total
        squared_primal_distance = sums.squared_primal_distance
        scale = (
            (sums.trial_load * inverse_capacity).reshape(-1, width).max(0)
            if self._on_simplex
            else sums.demand_value_sum
        )
        # (L,) value of all routable demand.
        self._routable_value = np.zeros(width) if self._on_simplex else scale
        if self._problem.utility is not None:
            batch = self._problem.batch  # lanes past it hold no demands
            utilisation = (sums.trial_load * inverse_capacity).reshape(-1, width).max(0)[:batch]
            scale = scale.copy()
            scale[:batch] *= self._problem.utility.value_scale(
                torch.from_numpy(utilisation)
            ).numpy()
        scale = self._scale = np.where(scale > 0, scale, 1.0)  # (L,) S
        link_scale = self._per_link(scale)
        load_factor = inverse_capacity
        mean_scaled_value: Tensor | None = None
        if self._on_simplex:
            full_utilisation = full_utilisation / link_scale
            squared_primal_distance = squared_primal_distance / scale
            load_factor = inverse_capacity / link_scale
        else:
            # S is the value of all demand, so that the mean of v / S over demanded Gbit/s is 1 /
            # total demand.
            mean_scaled_value = torch.from_numpy(1 / np.where(total > 0, total, 1.0))[:, None]
        capacity, trial, full_path_utilisation = (
            torch.from_numpy(a.reshape(-1, width).T.copy())
            for a in (self._capacity, sums.trial_load, full_utilisation)
        )
        # First primal weight, from a trial routing.
        guess = guess_dual(capacity, trial, mean_scaled_value)
        primal_weight = initial_primal_weight(
            full_path_utilisation, guess, torch.from_numpy(squared_primal_distance)
        )
        limits, scenario_width = self._limits()
        program = ScaledProgram(
            scaled_cost=self._cost / link_scale,
            inverse_capacity=inverse_capacity,
            load_factor=load_factor,
            live=live.astype(np.float64),
            full_path_utilisation=np.where(full_utilisation > 0, full_utilisation, NO_UTILISATION),
            inverse_scale=1 / scale,
            carries_all=self._problem.demand_set.carries_all,
            on_simplex=self._on_simplex,
            limits=limits,
            scenario_width=scenario_width,
        )
        return program, primal_weight.numpy().copy()

    def _start(self, state: PdhgState | None) -> None:
        """Set the first iterate from ``state``, or to zero splits and prices."""
        width = len(self._lanes)
        dual = self._dual
        if state is not None:
            self._passes.set_splits(np.ascontiguousarray(state.splits.numpy()))
            prices = self._lane_rows(state.prices.to(torch.float64).clamp(min=0))
            dual.stepped[:] = prices * self._capacity
            if not self._on_simplex:
                dual.stepped[:] *= self._per_link(self._program.inverse_scale)
        if self._on_simplex:
            rows = dual.stepped.reshape(-1, width)
            is_zero = rows.sum(0) <= 0
            rows[:, is_zero] = self._program.live.reshape(-1, width)[:, is_zero]
            self._normalise_dual()
        # w = 0: all loads are 0.
        if state is None and not self._on_simplex:
            self._has_advanced = self._is_certified = False
            return
        # Scale the splits on live paths to sums of at most 1 (in a balanced program to 1, evenly
        # where all are 0).
        self._init_iterates(is_repairing=True)

    def restart(self, state: PdhgState, weight_factor: float = 1.0, iterations: int = 0) -> None:
        """Restart from another state; the incumbent stays.

        Args:
            state: splits (B, D, K) and prices (B, E), on the CPU.
            weight_factor: factor on the first primal weight.
            iterations: iterations credited to the restart schedule; since a cycle lasts at most a
                share of all iterations, a credit allows longer cycles.
        """
        control = self._control
        control.primal_weight[:] = control.first_primal_weight * weight_factor
        control.first_error[:] = -1
        control.total_iterations[:] = iterations
        for counters in (control.cycle_iterations, control.last_error, control.restart_due):
            counters[:] = 0
        self._start(state)

    def _normalise_dual(self) -> None:
        """Scale the y of T(z) to a sum of 1, in a balanced program."""
        rows = self._dual.stepped.reshape(-1, len(self._lanes))
        rows /= np.maximum(rows.sum(0), 1e-300)  # a sum is 0 where all links have failed

    def _dual_size(self, capacity_value: FloatArray) -> FloatArray:
        """Return (L,) sums of price times capacity (E * L,), the divisor of a balanced program's
        bound.
        """
        return capacity_value.reshape(-1, len(self._lanes)).sum(0)

    def _init_iterates(self, *, is_repairing: bool) -> None:
        """Make T(z) the first iterate and anchor."""
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
        """Restart from the response of all demands to the prices of a sample's solution.

        Args:
            answers: sample solution of each matrix.
            corrections: Newton steps on the prices before the response; y keeps the prices of
                ``answers``, since these steps improve the allocation but not the bound.
        """
        dual = self._dual
        width = len(self._lanes)
        for lane, first_answer in enumerate(answers):
            answer = first_answer
            capacity = self._capacity[lane::width]
            for _ in range(corrections):
                load, elasticity = self._respond(answer, lane, is_summing=True)
                answer = answer.corrected(load, elasticity, capacity)
            self._respond(answer, lane, is_summing=False)
            dual.stepped[lane::width] = np.where(capacity > 0, first_answer.prices * capacity, 0)
        if self._on_simplex:
            self._normalise_dual()
        else:
            dual.stepped[:] *= self._per_link(self._program.inverse_scale)
        self._init_iterates(is_repairing=self._problem.demand_set.carries_all)

    def _respond(
        self, answer: SampleAnswer, lane: int, *, is_summing: bool
    ) -> tuple[FloatArray, FloatArray]:
        """Compute one matrix's response, with loads and elasticities (E,) where ``is_summing``."""
        width = len(self._lanes)
        live = self._capacity[lane::width] > 0
        cost = np.where(live, answer.prices + self._cost[lane::width], kernels.FAILED_PRICE).astype(
            np.float32
        )
        return self._passes.respond(
            cost,
            answer.sharpness,
            answer.fixed_demands,
            answer.fixed_splits,
            lane,
            is_summing=is_summing,
        )

    def advance(self, num_iterations: int) -> Tensor:
        """Iterate (:meth:`PdhgEngine.advance`)."""
        # Not in _start: the search may stop after a gap check of the start.
        if not self._has_advanced:
            self._passes.restart()
            self._has_advanced = True
        self._passes.iterate(num_iterations, self._program, self._dual, self._control)
        self._is_certified = False
        return self._as_value(self._per_matrix(self._control.bound))

    def _per_link(self, lanes: FloatArray) -> FloatArray:
        """Repeat (L,) for every link: (E * L,)."""
        return np.tile(lanes, len(self._capacity) // len(lanes))

    def _per_matrix(self, lanes: FloatArray) -> Tensor:
        """Return (L,) values as (B,)."""
        return torch.from_numpy(lanes[: self._problem.batch].copy())

    def _as_value(self, score: Tensor) -> Tensor:
        """Convert scores (B,) of the maximisation to objective values: equivalent shares under a
        utility.
        """
        utility = self._problem.utility
        return score if utility is None else utility.equivalent(score)

    def _prices(self) -> FloatArray:
        """Return (E * L,) prices of T(z), value per Gbit/s."""
        prices = self._dual.stepped * self._program.inverse_capacity
        return prices if self._on_simplex else prices * self._per_link(self._scale)

    def _certify_splits(self, *, is_repairing: bool = False) -> None:
        """Compute the demands' part of the bound, and flows and loads of T(z).

        Args:
            is_repairing: see :func:`teal.solvers.pdhg.fused.certificates.certify`.
        """
        prices = np.where(self._program.live > 0, self._prices() + self._cost, kernels.FAILED_PRICE)
        self._load, self._profit = self._passes.certify(prices, is_repairing=is_repairing)

    def trivial_bound(self) -> Tensor:
        """Return the bound at zero prices (:meth:`PdhgEngine.trivial_bound`)."""
        return self._as_value(self._per_matrix(self._routable_value))

    def certify(self) -> Tensor:
        """Return the bound of the last iteration (:meth:`PdhgEngine.certify`)."""
        if not self._is_certified:
            self._certify_splits()
        self._is_certified = False  # a check overwrites the flows
        capacity_value = self._dual_size(self._prices() * self._capacity)
        if self._on_simplex:
            has_prices = capacity_value > 0
            return self._per_matrix(
                np.where(has_prices, -self._profit / np.where(has_prices, capacity_value, 1), 0.0)
            )
        return self._as_value(self._per_matrix(capacity_value + self._profit))

    def check(self, refill: int = 0, sufficient_ratio: float = math.inf) -> tuple[Tensor, Tensor]:
        """Compute value and bound of the last iteration (:meth:`PdhgEngine.check`)."""
        bound = self.certify()
        live = self._program.live > 0
        if self._on_simplex:
            utilisation = np.where(live, self._load, 0) * self._program.inverse_capacity
            return self._per_matrix(self._max_utilisation(utilisation)), bound
        value = torch.zeros_like(bound)
        for value in self._projected(refill):
            if bool((value >= sufficient_ratio * bound).all()):
                break
        return value, bound

    def _max_utilisation(self, utilisation: FloatArray) -> FloatArray:
        """Return (L,) values of a balanced program, from the utilisation of all links (E * L,)."""
        return utilisation.reshape(-1, len(self._lanes)).max(0)

    def _projected(self, refill: int) -> Iterator[Tensor]:
        """Project the flows onto the capacities; yields their values (B,) after each refill
        round.
        """
        # First round: load over capacity; later rounds: requested load over residual capacity.
        load_ratio = self._load * self._program.inverse_capacity
        unused = np.maximum(self._capacity - self._load, 0)
        for round_index in range(refill + 1):
            self._load, requested, flow_value = self._passes.project_round(
                load_ratio, unused, is_first=round_index == 0, is_last=round_index == refill
            )
            residual = np.maximum(self._capacity - self._load, 0)
            load_ratio = np.where(requested > 0, requested / np.maximum(residual, 1e-300), 0.0)
            unused = np.maximum(residual - requested, 0)
            cost = (self._cost * self._load).reshape(-1, len(self._lanes)).sum(0)
            yield self._as_value(self._per_matrix(flow_value - cost))

    def shed(self, refill: int) -> None:
        """Project the incumbent flows onto the capacities: for max_concurrent_flow, after the
        search.
        """
        self._load = self._passes.recall()
        for _ in self._projected(refill):
            pass
        self._passes.keep(list(range(self._problem.batch)))

    def keep(self, is_best_allocation: Tensor, is_best_prices: Tensor) -> None:
        """Update the incumbent (:meth:`PdhgEngine.keep`)."""
        rows = is_best_prices.nonzero()[:, 0]
        self._incumbent_prices[rows] = self._matrices_from_lanes(self._prices())[rows]
        self._passes.keep(is_best_allocation.nonzero()[:, 0].tolist())

    def incumbent(self) -> tuple[Tensor, Tensor]:
        """Return the incumbent (:meth:`PdhgEngine.incumbent`)."""
        return torch.from_numpy(self._passes.best_splits()), self._incumbent_prices

    def state(self) -> PdhgState:
        """Return T(z) of the last iteration (:meth:`PdhgEngine.state`)."""
        return PdhgState(
            torch.from_numpy(self._passes.stepped_splits()),
            self._matrices_from_lanes(self._prices()),
        )
