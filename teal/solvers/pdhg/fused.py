"""The CPU engine: up to 16 matrices in SIMD lanes, one parallel loop over the source nodes for each iteration.

Symbols are those of the table in :mod:`teal.solvers.pdhg`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from teal.problem import Problem
from teal.runtime.arrays import AnyArray, FloatArray
from teal.runtime.parallel import threads_for
from teal.solvers.pdhg import certificates, kernels, sample
from teal.solvers.pdhg.engine import PdhgState, guess_dual, initial_primal_weight
from teal.solvers.pdhg.fused_state import Control, Dual, Primal, ScaledProgram, Scratch
from teal.solvers.pdhg.sample import Answer

MAX_LANES = 16  # largest number of matrices that are solved together; 16 float32 fill an AVX-512 register
LANES = (1, 8, MAX_LANES)  # numbers of lanes for which kernels are compiled; a batch is padded to the next of them
# Smallest number of trie nodes and paths in a block of sources, the unit of parallel work: smaller blocks cost more to
# schedule than to compute.
_MIN_BLOCK_WORK = 20_000
_MAX_BLOCKS = 64  # largest number of blocks; each has (E, L) loads of its own, which must be stored and added up
_OPERATIONS_PER_ENTRY = 4  # scalar operations that a trie node or path takes in an iteration; sets the threads
_NUMPY_DTYPE = {torch.float32: np.float32, torch.float64: np.float64}


class FusedEngine:
    """See :class:`teal.solvers.pdhg.engine.PdhgEngine`; computes the same as PlainEngine up to rounding.

    Memory for each path and lane: 12 bytes for the iteration in float32 (24 in float64) and 24 for gap checks; for each
    demand and lane 12 (16 in float64).

    Args:
        problem: at most MAX_LANES matrices.
        state: starting point; None for w = 0 and y = 0 (in a balanced program equal y on all live links).
        dtype: of the splits in the iteration, float32 or float64; gap checks are in float64.
    """

    def __init__(self, problem: Problem, state: PdhgState | None, dtype: torch.dtype) -> None:
        self._problem = problem = problem.to(torch.float64)
        packed = problem.paths.packed
        self._is_balanced = problem.objective.is_balanced
        width = next(width for width in LANES if width >= problem.batch)
        self._lanes = (0,) * width  # only its length L counts: kernels are compiled for each length of the tuple
        self._scan = packed.scan
        self._block_ptr, self._max_slots = packed.blocks(_MIN_BLOCK_WORK, _MAX_BLOCKS), packed.max_slots
        self._operations = _OPERATIONS_PER_ENTRY * width * (packed.num_nodes + packed.num_paths)
        blocks, links, real = len(self._block_ptr) - 1, packed.num_links, _NUMPY_DTYPE[dtype]
        self._block_loads, self._block_requested = np.zeros((2, blocks, links * width))  # Gbit/s
        # The bound's demand term after certify, the value of the flows after project_round.
        self._block_sums = np.zeros((blocks, width))
        self._capacity = self._rows_of(problem.capacity)
        self._cost = self._rows_of(problem.link_cost.expand(problem.batch, -1))
        value = problem.demand_value.numpy()
        # One entry if all demands have the same value: the kernels then read no value for each demand.
        self._demand_value = value[:1] if len(value) and (value == value[0]).all() else value
        program, primal_weight = self._scaled_program(real)
        self._program = program
        rows = packed.num_paths * width
        self._primal = Primal(*(np.zeros(rows, real) for _ in range(3)))
        self._dual = Dual(*(np.zeros(links * width) for _ in range(6)))
        self._control = Control(primal_weight, primal_weight.copy(), *(np.zeros(width) for _ in range(6)))
        self._control.first_error[:] = -1  # no error has been measured in this cycle
        self._scratch = Scratch(
            price=np.zeros(links * width, real),
            halpern=np.zeros(4 * width, real),
            inverse_weight=np.zeros(width, real),
            block_load=np.zeros((blocks, links * width), real),
            block_sums=np.zeros((blocks, 3 * width), real),
        )
        self._flows, self._requests = np.zeros((2, rows))
        self._best_flows: AnyArray | None = None
        self._best_prices = torch.zeros_like(problem.capacity)
        self._start(state)
        self._compile()

    def _compile(self) -> None:
        """Compile the kernels by calls without sources, so that compilation is not timed as part of an iteration."""
        kernels.iterate(
            0, self._scan, self._block_ptr, self._max_slots, self._program, self._primal, self._dual, self._control,
            self._scratch, self._lanes, self._h_lanes,
        )  # fmt: skip
        certificates.project_round(
            self._scan, self._block_ptr[:1], self._max_slots, self._live_demand, self._demand_value, self._cost,
            self._capacity, True, True, self._flows, self._requests, self._block_loads, self._block_requested,
            self._block_sums, self._lanes,
        )  # fmt: skip

    def _rows_of(self, values: Tensor) -> FloatArray:
        """(B, n) as flat rows of lanes, (n * L,); lanes past B repeat the first matrix (their demands are set to 0)."""
        width = len(self._lanes)
        padded = values if len(values) == width else torch.cat([values, values[:1].expand(width - len(values), -1)])
        return padded.to(torch.float64).t().contiguous().numpy().reshape(-1)

    def _matrices_of(self, rows: AnyArray) -> Tensor:
        """Flat rows of lanes (n * L,) as (B, n)."""
        return torch.from_numpy(rows.reshape(-1, len(self._lanes)).T[: self._problem.batch].astype(np.float64))

    def _scaled_program(self, real: Any) -> tuple[ScaledProgram, FloatArray]:
        """The scaled program, its arrays in the NumPy type ``real``, and the first primal weights (L,)."""
        problem, width, blocks = self._problem, len(self._lanes), len(self._block_ptr) - 1
        live = self._capacity > 0
        inverse = np.where(live, 1 / np.where(live, self._capacity, 1), 0.0)
        cost = np.where(live, self._cost, kernels.FAILED_PRICE)
        demand = np.zeros((problem.paths.num_demands, width))
        demand[:, : problem.batch] = problem.demand.numpy().T
        same_capacity = bool((problem.capacity == problem.capacity[:1]).all())
        self._h_lanes = (0,) if same_capacity else self._lanes  # h of all matrices is the same then
        measured = certificates.Measurements(
            inverse_capacity_sum=np.empty(len(demand) * len(self._h_lanes)),
            live_demand=np.empty(demand.size),
            full_load=np.zeros((blocks, live.size)),
            trial_load=np.zeros((blocks, live.size)),
            demand_value_sum=np.zeros((blocks, width)),
        )
        with threads_for(self._operations):
            certificates.measure(
                self._scan, self._block_ptr, self._max_slots, demand.reshape(-1), inverse, cost, self._demand_value,
                self._is_balanced, measured, self._lanes, self._h_lanes,
            )  # fmt: skip
        self._live_demand = measured.live_demand
        full_utilisation, trial_load = measured.full_load.sum(0) * inverse, measured.trial_load.sum(0)
        rates = measured.live_demand.reshape(-1, width)
        total = rates.sum(0)
        squared_primal_distance = (rates * measured.inverse_capacity_sum.reshape(len(rates), -1)).sum(0)
        scale = (
            (trial_load * inverse).reshape(-1, width).max(0) if self._is_balanced else measured.demand_value_sum.sum(0)
        )
        self._routable_value = np.zeros(width) if self._is_balanced else scale  # (L,) value of all routable demand
        scale = self._scale = np.where(scale > 0, scale, 1.0)  # (L,) S
        link_scale = np.tile(scale, live.size // width)  # (E * L,)
        load_factor = inverse
        mean_scaled_value: Tensor | None = None
        if self._is_balanced:
            full_utilisation, squared_primal_distance = full_utilisation / link_scale, squared_primal_distance / scale
            load_factor = inverse / link_scale
        else:
            # S is the value of all demand, so that the mean of v / S over demanded Gbit/s is 1 / total demand.
            mean_scaled_value = torch.from_numpy(1 / np.where(total > 0, total, 1.0))[:, None]
        capacity, trial, full = (
            torch.from_numpy(a.reshape(-1, width).T.copy()) for a in (self._capacity, trial_load, full_utilisation)
        )
        guess = guess_dual(capacity, trial, mean_scaled_value)
        primal_weight = initial_primal_weight(full, guess, torch.from_numpy(squared_primal_distance))
        program = ScaledProgram(
            demand=measured.live_demand.astype(real),
            inverse_capacity_sum=measured.inverse_capacity_sum.astype(real),
            demand_value=self._demand_value.astype(real),
            scaled_cost=self._cost / link_scale,
            inverse_capacity=inverse,
            load_factor=load_factor,
            live=live.astype(np.float64),
            full_path_utilisation=np.where(
                full_utilisation > 0, full_utilisation, 1e-30
            ),  # never 0: y is divided by it
            inverse_scale=1 / scale,
            is_balanced=self._is_balanced,
        )
        return program, primal_weight.numpy().copy()

    def _start(self, state: PdhgState | None) -> None:
        """Set the first iterate."""
        width, dual, links = len(self._lanes), self._dual, self._problem.topology.num_links
        if state is not None:
            splits = np.ascontiguousarray(state.splits.numpy())
            certificates.pack_splits(self._scan, splits, self._primal.stepped, self._lanes)
            prices = self._rows_of(state.prices.to(torch.float64).clamp(min=0))
            dual.stepped[:] = prices * self._capacity
            if not self._is_balanced:
                dual.stepped[:] *= np.tile(self._program.inverse_scale, links)
        if self._is_balanced:
            rows = dual.stepped.reshape(links, width)
            is_zero = rows.sum(0) <= 0
            rows[:, is_zero] = self._program.live.reshape(links, width)[:, is_zero]
            rows /= np.maximum(rows.sum(0), 1e-300)  # the sum is 0 where all links have failed
        if state is None and not self._is_balanced:  # w = 0: no flow to add up
            self._has_advanced = self._is_certified = False
            return
        # Scale the splits over live paths to sums of at most 1 (in a balanced program to 1, evenly if all are 0).
        self._begin(is_repairing=True)

    def _begin(self, *, is_repairing: bool) -> None:
        """Make ``stepped`` the first iterate."""
        dual = self._dual
        self._certify_splits(is_repairing=is_repairing)
        self._is_certified = True
        dual.stepped_load[:] = self._load * self._program.load_factor
        self._has_advanced = False
        dual.current[:], dual.anchor[:] = dual.stepped, dual.stepped
        dual.current_load[:], dual.anchor_load[:] = dual.stepped_load, dual.stepped_load

    def respond(self, answers: Sequence[Answer], corrections: int = 0) -> None:
        """Go on from the response of all demands to the prices of a sample's solution.

        Args:
            answers: of the sample of each matrix.
            corrections: Newton steps of the prices before the response; y stays that of ``answers``, since these steps
                improve the allocation and not the bound.
        """
        dual, width, links = self._dual, len(self._lanes), self._problem.topology.num_links
        for lane, given in enumerate(answers):
            answer, capacity = given, self._capacity[lane::width]
            for _ in range(corrections):
                sums = self._respond(answer, lane, is_summing=True).sum(0)
                answer = answer.corrected(sums[0::2], sums[1::2], capacity)
            self._respond(answer, lane, is_summing=False)
            dual.stepped[lane::width] = np.where(capacity > 0, given.prices * capacity, 0)
            if self._is_balanced:
                dual.stepped[lane::width] /= max(dual.stepped[lane::width].sum(), 1e-300)
        if not self._is_balanced:
            dual.stepped[:] *= np.tile(self._program.inverse_scale, links)
        self._begin(is_repairing=self._is_balanced)

    def _respond(self, answer: Answer, lane: int, *, is_summing: bool) -> FloatArray:
        """Write one matrix's response into ``stepped``; its loads and elasticities (blocks, 2 E) if asked for."""
        width, scan = len(self._lanes), self._scan
        live = self._capacity[lane::width] > 0
        cost = np.where(live, answer.prices + self._cost[lane::width], kernels.FAILED_PRICE)
        sums = np.zeros((len(self._block_ptr) - 1, 2 * len(live) if is_summing else 0), np.float32)
        with threads_for(self._operations):
            sample.respond(
                scan, self._block_ptr, self._max_slots, int(np.diff(scan.path_ptr + scan.demand_ptr).max(initial=0)),
                cost.astype(np.float32), np.zeros(1) if self._is_balanced else self._demand_value,
                np.float32(answer.sharpness), not self._is_balanced, answer.kept,
                np.searchsorted(answer.kept, scan.demand_ptr), answer.kept_splits, self._live_demand,
                self._primal.stepped, sums, lane, width, (0, 0),
            )  # fmt: skip
        return sums.astype(np.float64)

    def advance(self, count: int) -> Tensor:
        """See PdhgEngine."""
        if not self._has_advanced:  # not in _start: a gap check at the start may be all that is asked
            self._primal.current[:], self._primal.anchor[:] = self._primal.stepped, self._primal.stepped
            self._has_advanced = True
        with threads_for(self._operations):
            kernels.iterate(
                count, self._scan, self._block_ptr, self._max_slots, self._program, self._primal, self._dual,
                self._control, self._scratch, self._lanes, self._h_lanes,
            )  # fmt: skip
        self._is_certified = False
        return self._of_batch(self._control.bound)

    def _of_batch(self, lanes: FloatArray) -> Tensor:
        """(L,) as (B,)."""
        return torch.from_numpy(lanes[: self._problem.batch].copy())

    def _prices(self) -> FloatArray:
        """(E * L,) prices of the last step, value per Gbit/s."""
        prices = self._dual.stepped * self._program.inverse_capacity
        return prices if self._is_balanced else prices * np.tile(self._scale, len(prices) // len(self._scale))

    def _certify_splits(self, *, is_repairing: bool = False) -> None:
        """Compute the demand term of the bound and the flows and loads of the last step.

        Args:
            is_repairing: see :func:`teal.solvers.pdhg.certificates.certify`.
        """
        prices = np.where(self._program.live > 0, self._prices() + self._cost, kernels.FAILED_PRICE)
        value = np.zeros(1) if self._is_balanced else self._demand_value
        with threads_for(self._operations):
            certificates.certify(
                self._scan, self._block_ptr, self._max_slots, self._live_demand, value, prices, self._is_balanced,
                is_repairing, self._primal.stepped, self._flows, self._block_loads, self._block_sums, self._lanes,
            )  # fmt: skip
        self._load = self._block_loads.sum(0)

    def trivial_bound(self) -> Tensor:
        """See PdhgEngine."""
        return self._of_batch(self._routable_value)

    def certify(self) -> Tensor:
        """See PdhgEngine."""
        if not self._is_certified:
            self._certify_splits()
        self._is_certified = False  # a check overwrites the flows
        capacity_value = (self._prices() * self._capacity).reshape(-1, len(self._lanes)).sum(0)
        profit = self._block_sums.sum(0)
        if self._is_balanced:
            has_prices = capacity_value > 0
            return self._of_batch(np.where(has_prices, -profit / np.where(has_prices, capacity_value, 1), 0.0))
        return self._of_batch(capacity_value + profit)

    def check(self, refill: int = 0, enough: float = math.inf) -> tuple[Tensor, Tensor]:
        """See PdhgEngine."""
        bound = self.certify()
        live, width = self._program.live > 0, len(self._lanes)
        if self._is_balanced:
            utilisation = np.where(live, self._load, 0) * self._program.inverse_capacity
            return self._of_batch(utilisation.reshape(-1, width).max(0)), bound
        load_ratio = self._load * self._program.inverse_capacity  # in later rounds requested / residual capacity
        unused = np.maximum(self._capacity - self._load, 0)
        for number in range(refill + 1):
            with threads_for(self._operations):
                certificates.project_round(
                    self._scan, self._block_ptr, self._max_slots, self._live_demand, self._demand_value, load_ratio,
                    unused, number == 0, number == refill, self._flows, self._requests, self._block_loads,
                    self._block_requested, self._block_sums, self._lanes,
                )  # fmt: skip
            self._load, requested = self._block_loads.sum(0), self._block_requested.sum(0)
            residual = np.maximum(self._capacity - self._load, 0)
            load_ratio = np.where(requested > 0, requested / np.maximum(residual, 1e-300), 0.0)
            unused = np.maximum(residual - requested, 0)
            cost = (self._cost * self._load).reshape(-1, width).sum(0)
            value = self._of_batch(self._block_sums.sum(0) - cost)
            if bool((value >= enough * bound).all()):
                break
        return value, bound

    def keep(self, is_best_allocation: Tensor, is_best_prices: Tensor) -> None:
        """See PdhgEngine."""
        rows = is_best_prices.nonzero()[:, 0]
        self._best_prices[rows] = self._matrices_of(self._prices())[rows]
        if self._best_flows is None:
            self._best_flows, self._flows = self._flows, np.empty_like(self._flows)
        elif bool(is_best_allocation.all()):
            self._best_flows, self._flows = self._flows, self._best_flows
        else:
            width = len(self._lanes)
            for row in is_best_allocation.nonzero()[:, 0].tolist():
                self._best_flows[row::width] = self._flows[row::width]

    def best(self) -> tuple[Tensor, Tensor]:
        """See PdhgEngine."""
        if self._best_flows is None:
            raise RuntimeError("best() needs a call of keep() first")
        return self._splits_of(self._best_flows, self._problem.demand.numpy()), self._best_prices

    def state(self) -> PdhgState:
        """See PdhgEngine."""
        rows_are_splits = np.zeros((self._problem.batch, 0))
        splits = self._splits_of(self._primal.stepped, rows_are_splits)
        return PdhgState(splits, self._matrices_of(self._prices()))

    def _splits_of(self, rows: AnyArray, demand: FloatArray) -> Tensor:
        """(B, D, K) splits of path rows (P, L); see :func:`certificates.unpack_splits`."""
        splits = np.empty((self._problem.batch, *self._problem.paths.leaf.shape))
        certificates.unpack_splits(self._scan, rows, demand, splits, self._lanes)
        return torch.from_numpy(splits)
