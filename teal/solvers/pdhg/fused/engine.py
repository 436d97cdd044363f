"""The CPU engine: up to 16 matrices in SIMD lanes, one parallel loop over the source nodes for each
iteration.

Symbols are those of the table in :mod:`teal.solvers.pdhg`.
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
from teal.solvers.pdhg.fused.demand_value import DemandValue, of_problem
from teal.solvers.pdhg.fused.passes import InMemory, Passes, PathPasses
from teal.solvers.pdhg.fused.state import NO_UTILISATION, Control, Dual, ScaledProgram
from teal.solvers.pdhg.samples.sample import SampleAnswer
from teal.solvers.result import PdhgState

MAX_LANES = 16  # largest number of matrices that are solved together
LANES = (
    1,
    8,
    MAX_LANES,
)  # numbers of lanes for which kernels are compiled; a batch is padded to the next of them
_REGISTER_BYTES = (
    64  # AVX-512: more lanes gain nothing on large networks, and take seconds to compile
)
_NUMPY_DTYPE = {torch.float32: np.float32, torch.float64: np.float64}


def lanes_of(dtype: torch.dtype) -> tuple[int, ...]:
    """Numbers of lanes, of :data:`LANES`, for an iteration in ``dtype``: 16 float32 or 8 float64
    fill a register.
    """
    return tuple(width for width in LANES if width * dtype.itemsize <= _REGISTER_BYTES)


class FusedEngine:
    """PDHG in compiled kernels: a :class:`teal.solvers.pdhg.engine.PdhgEngine`; computes the same
    as PlainEngine up to rounding.

    It holds what has the size of the links; what has the size of the paths stays with the passes.

    Args:
        problem: at most as many matrices as ``lanes_of(dtype)`` has lanes.
        state: starting point; None for w = 0 and y = 0 (in a balanced program equal y on all live
            links).
        dtype: type of the splits in the iteration, float32 or float64; gap checks are in float64.
        passes: over paths that are not those of ``problem``, which then has no demands and B = 1.
    """

    @staticmethod
    def accepts(problem: Problem) -> bool:
        """Whether the kernels take the program: columns that are paths, without limits under a
        utility, on the CPU.
        """
        is_on_cpu = (
            problem.ops.device.type == "cpu" and problem.ops.backend.name != "cuda"
        )  # which may be simulated
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
        self._lanes = (
            0,
        ) * width  # only its length L counts: kernels are compiled for each length of the tuple
        self._capacity, self._cost = self._link_rows()
        self._passes = passes or self._own_passes(dtype)
        self._program, primal_weight = self._scaled_program()
        self._dual = Dual(*(np.zeros_like(self._capacity) for _ in range(6)))
        self._control = Control(
            primal_weight, primal_weight.copy(), *(np.zeros(width) for _ in range(6))
        )
        self._control.first_error[:] = -1  # no error has been measured in this cycle
        self._best_prices = torch.zeros(
            problem.batch, len(self._capacity) // width, dtype=torch.float64
        )
        self._start(state)
        self._passes.compile(
            self._program, self._dual, self._control
        )  # now, so that no iteration is timed with it

    def _link_rows(self) -> tuple[FloatArray, FloatArray]:
        """(E * L,) capacities, and costs of links."""
        problem = self._problem
        return self._rows_of(problem.capacity), self._rows_of(
            problem.link_cost.expand(problem.batch, -1)
        )

    def _limits(self) -> tuple[FloatArray, int]:
        """The limits of the links in the units of :class:`ScaledProgram`."""
        return np.zeros(0), 1

    def _own_passes(self, dtype: torch.dtype) -> PathPasses:
        """Passes over the paths of the problem, in memory."""
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
            curve=curve_rows(problem, self._rows_of),
        )
        passes.put_demand(problem.demand.numpy())
        return passes

    def _demand_value(self) -> DemandValue:
        """Values and caps of the demands."""
        problem = self._problem
        value, largest = of_problem(problem, self._rows_of), problem.largest_share
        if largest is None:
            return value
        # Paths in the order of scans: demand by demand, those that exist.
        return value._replace(cap=self._rows_of(largest.to(torch.float64)[:, problem.ops.mask]))

    def _rows_of(self, values: Tensor) -> FloatArray:
        """(B, n) as flat rows of lanes, (n * L,); lanes past B repeat the first matrix (their
        demands are set to 0).
        """
        width = len(self._lanes)
        padded = (
            values
            if len(values) == width
            else torch.cat([values, values[:1].expand(width - len(values), -1)])
        )
        return padded.to(torch.float64).t().contiguous().numpy().reshape(-1)

    def _matrices_of(self, rows: AnyArray) -> Tensor:
        """Flat rows of lanes (n * L,) as (B, n)."""
        return torch.from_numpy(
            rows.reshape(-1, len(self._lanes)).T[: self._problem.batch].astype(np.float64)
        )

    def _scaled_program(self) -> tuple[ScaledProgram, FloatArray]:
        """The scaled program, and the first primal weights (L,)."""
        width = len(self._lanes)
        live = self._capacity > 0
        inverse = np.where(live, 1 / np.where(live, self._capacity, 1), 0.0)
        measured = self._passes.measure(inverse, np.where(live, self._cost, kernels.FAILED_PRICE))
        full_utilisation, total = measured.full_load * inverse, measured.total
        squared_primal_distance = measured.squared_primal_distance
        scale = (
            (measured.trial_load * inverse).reshape(-1, width).max(0)
            if self._on_simplex
            else measured.demand_value_sum
        )
        self._routable_value = (
            np.zeros(width) if self._on_simplex else scale
        )  # (L,) value of all routable demand
        if self._problem.utility is not None:
            batch = self._problem.batch  # lanes past it hold no demands
            utilisation = (measured.trial_load * inverse).reshape(-1, width).max(0)[:batch]
            scale = scale.copy()
            scale[:batch] *= self._problem.utility.value_scale(
                torch.from_numpy(utilisation)
            ).numpy()
        scale = self._scale = np.where(scale > 0, scale, 1.0)  # (L,) S
        link_scale = self._of_links(scale)
        load_factor = inverse
        mean_scaled_value: Tensor | None = None
        if self._on_simplex:
            full_utilisation, squared_primal_distance = (
                full_utilisation / link_scale,
                squared_primal_distance / scale,
            )
            load_factor = inverse / link_scale
        else:
            # S is the value of all demand, so that the mean of v / S over demanded Gbit/s is 1 /
            # total demand.
            mean_scaled_value = torch.from_numpy(1 / np.where(total > 0, total, 1.0))[:, None]
        capacity, trial, full = (
            torch.from_numpy(a.reshape(-1, width).T.copy())
            for a in (self._capacity, measured.trial_load, full_utilisation)
        )
        guess = guess_dual(capacity, trial, mean_scaled_value)
        primal_weight = initial_primal_weight(
            full, guess, torch.from_numpy(squared_primal_distance)
        )
        limits, scenario_width = self._limits()
        program = ScaledProgram(
            scaled_cost=self._cost / link_scale,
            inverse_capacity=inverse,
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
        """Set the first iterate."""
        width, dual = len(self._lanes), self._dual
        if state is not None:
            self._passes.put_splits(np.ascontiguousarray(state.splits.numpy()))
            prices = self._rows_of(state.prices.to(torch.float64).clamp(min=0))
            dual.stepped[:] = prices * self._capacity
            if not self._on_simplex:
                dual.stepped[:] *= self._of_links(self._program.inverse_scale)
        if self._on_simplex:
            rows = dual.stepped.reshape(-1, width)
            is_zero = rows.sum(0) <= 0
            rows[:, is_zero] = self._program.live.reshape(-1, width)[:, is_zero]
            self._to_simplex()
        if state is None and not self._on_simplex:  # w = 0: no flow to add up
            self._has_advanced = self._is_certified = False
            return
        # Scale the splits over live paths to sums of at most 1 (in a balanced program to 1, evenly
        # if all are 0).
        self._begin(is_repairing=True)

    def restart(self, state: PdhgState, weight_factor: float = 1.0, iterations: int = 0) -> None:
        """Go on from another state, as if the engine had started from it; what was kept stays.

        Args:
            state: splits (B, D, K) and prices (B, E), on the CPU.
            weight_factor: factor on the first primal weight.
            iterations: number that counts as done; a cycle lasts at most a share of all, so that
                more make it longer.
        """
        control = self._control
        control.primal_weight[:] = control.first_primal_weight * weight_factor
        control.first_error[:] = -1
        control.total_iterations[:] = iterations
        for numbers in (control.cycle_iterations, control.last_error, control.restart_due):
            numbers[:] = 0
        self._start(state)

    def _to_simplex(self) -> None:
        """Bring the y of T(z), in a balanced program, to where they may be."""
        rows = self._dual.stepped.reshape(-1, len(self._lanes))
        rows /= np.maximum(rows.sum(0), 1e-300)  # the sum is 0 where all links have failed

    def _dual_size(self, capacity_value: FloatArray) -> FloatArray:
        """(L,) sum of price times capacity (E * L,), by which a balanced program's bound is
        divided.
        """
        return capacity_value.reshape(-1, len(self._lanes)).sum(0)

    def _begin(self, *, is_repairing: bool) -> None:
        """Make ``stepped`` the first iterate."""
        dual = self._dual
        self._certify_splits(is_repairing=is_repairing)
        self._is_certified = True
        dual.stepped_load[:] = self._load * self._program.load_factor
        self._has_advanced = False
        dual.current[:], dual.anchor[:] = dual.stepped, dual.stepped
        dual.current_load[:], dual.anchor_load[:] = dual.stepped_load, dual.stepped_load

    def respond(self, answers: Sequence[SampleAnswer], corrections: int = 0) -> None:
        """Go on from the response of all demands to the prices of a sample's solution.

        Args:
            answers: answers of the sample of each matrix.
            corrections: Newton steps of the prices before the response; y stays that of
                ``answers``, since these steps improve the allocation and not the bound.
        """
        dual, width = self._dual, len(self._lanes)
        for lane, first_answer in enumerate(answers):
            answer, capacity = first_answer, self._capacity[lane::width]
            for _ in range(corrections):
                load, elasticity = self._respond(answer, lane, is_summing=True)
                answer = answer.corrected(load, elasticity, capacity)
            self._respond(answer, lane, is_summing=False)
            dual.stepped[lane::width] = np.where(capacity > 0, first_answer.prices * capacity, 0)
        if self._on_simplex:
            self._to_simplex()
        else:
            dual.stepped[:] *= self._of_links(self._program.inverse_scale)
        self._begin(is_repairing=self._problem.demand_set.carries_all)

    def _respond(
        self, answer: SampleAnswer, lane: int, *, is_summing: bool
    ) -> tuple[FloatArray, FloatArray]:
        """One matrix's response, with loads and elasticities (E,) if asked for."""
        width = len(self._lanes)
        live = self._capacity[lane::width] > 0
        cost = np.where(live, answer.prices + self._cost[lane::width], kernels.FAILED_PRICE).astype(
            np.float32
        )
        return self._passes.respond(
            cost, answer.sharpness, answer.kept, answer.kept_splits, lane, is_summing=is_summing
        )

    def advance(self, count: int) -> Tensor:
        """Iterate (:meth:`PdhgEngine.advance`)."""
        if (
            not self._has_advanced
        ):  # not in _start: a gap check at the start may be all that is asked
            self._passes.restart()
            self._has_advanced = True
        self._passes.iterate(count, self._program, self._dual, self._control)
        self._is_certified = False
        return self._as_value(self._of_batch(self._control.bound))

    def _of_links(self, lanes: FloatArray) -> FloatArray:
        """(L,) as (E * L,)."""
        return np.tile(lanes, len(self._capacity) // len(lanes))

    def _of_batch(self, lanes: FloatArray) -> Tensor:
        """(L,) as (B,)."""
        return torch.from_numpy(lanes[: self._problem.batch].copy())

    def _as_value(self, score: Tensor) -> Tensor:
        """(B,) figures of the objective, of those of its program as a maximum: equivalent shares
        under a utility.
        """
        utility = self._problem.utility
        return score if utility is None else utility.equivalent(score)

    def _prices(self) -> FloatArray:
        """(E * L,) prices of the last step, value per Gbit/s."""
        prices = self._dual.stepped * self._program.inverse_capacity
        return prices if self._on_simplex else prices * self._of_links(self._scale)

    def _certify_splits(self, *, is_repairing: bool = False) -> None:
        """Compute the demands' part of the bound and the flows and loads of the last step.

        Args:
            is_repairing: see :func:`teal.solvers.pdhg.fused.certificates.certify`.
        """
        prices = np.where(self._program.live > 0, self._prices() + self._cost, kernels.FAILED_PRICE)
        self._load, self._profit = self._passes.certify(prices, is_repairing=is_repairing)

    def trivial_bound(self) -> Tensor:
        """The bound at prices of 0 (:meth:`PdhgEngine.trivial_bound`)."""
        return self._as_value(self._of_batch(self._routable_value))

    def certify(self) -> Tensor:
        """Certify given prices and splits (:meth:`PdhgEngine.certify`)."""
        if not self._is_certified:
            self._certify_splits()
        self._is_certified = False  # a check overwrites the flows
        capacity_value = self._dual_size(self._prices() * self._capacity)
        if self._on_simplex:
            has_prices = capacity_value > 0
            return self._of_batch(
                np.where(has_prices, -self._profit / np.where(has_prices, capacity_value, 1), 0.0)
            )
        return self._as_value(self._of_batch(capacity_value + self._profit))

    def check(self, refill: int = 0, enough: float = math.inf) -> tuple[Tensor, Tensor]:
        """Certify the present point (:meth:`PdhgEngine.check`)."""
        bound = self.certify()
        live = self._program.live > 0
        if self._on_simplex:
            utilisation = np.where(live, self._load, 0) * self._program.inverse_capacity
            return self._of_batch(self._worst(utilisation)), bound
        value = torch.zeros_like(bound)
        for value in self._projected(refill):
            if bool((value >= enough * bound).all()):
                break
        return value, bound

    def _worst(self, utilisation: FloatArray) -> FloatArray:
        """(L,) value of a balanced program, of the utilisation of all links (E * L,)."""
        return utilisation.reshape(-1, len(self._lanes)).max(0)

    def _projected(self, refill: int) -> Iterator[Tensor]:
        """Project the flows, whose loads are known; yields their values (B,) after each round."""
        load_ratio = (
            self._load * self._program.inverse_capacity
        )  # in later rounds requested / residual capacity
        unused = np.maximum(self._capacity - self._load, 0)
        for number in range(refill + 1):
            self._load, requested, flow_value = self._passes.project_round(
                load_ratio, unused, is_first=number == 0, is_last=number == refill
            )
            residual = np.maximum(self._capacity - self._load, 0)
            load_ratio = np.where(requested > 0, requested / np.maximum(residual, 1e-300), 0.0)
            unused = np.maximum(residual - requested, 0)
            cost = (self._cost * self._load).reshape(-1, len(self._lanes)).sum(0)
            yield self._as_value(self._of_batch(flow_value - cost))

    def shed(self, refill: int) -> None:
        """Project the flows that were kept: for max_concurrent_flow, after the search."""
        self._load = self._passes.recall()
        for _ in self._projected(refill):
            pass
        self._passes.keep(list(range(self._problem.batch)))

    def keep(self, is_best_allocation: Tensor, is_best_prices: Tensor) -> None:
        """Keep the better results (:meth:`PdhgEngine.keep`)."""
        rows = is_best_prices.nonzero()[:, 0]
        self._best_prices[rows] = self._matrices_of(self._prices())[rows]
        self._passes.keep(is_best_allocation.nonzero()[:, 0].tolist())

    def best(self) -> tuple[Tensor, Tensor]:
        """The best results so far (:meth:`PdhgEngine.best`)."""
        return torch.from_numpy(self._passes.best_splits()), self._best_prices

    def state(self) -> PdhgState:
        """The state for a later start (:meth:`PdhgEngine.state`)."""
        return PdhgState(
            torch.from_numpy(self._passes.stepped_splits()), self._matrices_of(self._prices())
        )
