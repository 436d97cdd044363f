"""Passes over the paths of S matrices with shared splits: the paths' side of the scenario engine."""

from __future__ import annotations

import numpy as np
import torch

from teal.problem import Problem
from teal.runtime.arrays import Float32Array, FloatArray, Int64Array
from teal.runtime.parallel import threads_for
from teal.solvers.pdhg.fused import certificates, kernels
from teal.solvers.pdhg.fused.demand_value import one_step
from teal.solvers.pdhg.fused.passes import MAX_BLOCKS, MIN_BLOCK_WORK, ProgramSums, make_scratch, operations
from teal.solvers.pdhg.fused.state import Control, Dual, ScaledProgram
from teal.solvers.pdhg.samples import sample
from teal.solvers.pdhg.scenarios import kernels as scenario_kernels


class ScenarioPasses:
    """See :class:`teal.solvers.pdhg.fused.passes.Passes`: for B = 1, and S E links in rows (G, E, L).

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
        """See Passes."""
        self._step(self._block_ptr[:1], is_restarting=False)

    def measure(self, inverse_capacity: FloatArray, cost: FloatArray) -> ProgramSums:
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
            of_group = np.ascontiguousarray(demand[g * width : (g + 1) * width].T).reshape(-1)
            with threads_for(self._operations // groups):
                certificates.measure(
                    self._scan, self._block_ptr, self._max_slots, of_group, inverse, path_cost, one_step(np.zeros(1)),
                    None, True, out, lanes, (0,),
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
        return ProgramSums(full.reshape(-1), trial.reshape(-1), 0 * one, total.sum() * one, (total * h).sum() * one)

    def _path_rows(self, values: FloatArray) -> FloatArray:
        """(1, D, K) as (P,)."""
        rows = np.empty(len(self._scan.end_node))
        with threads_for(self._operations):
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

    def respond_to(self, price: FloatArray, value: float, kept: Int64Array, kept_splits: FloatArray) -> None:
        """Make the response of all demands to prices (G * E * L,) the splits of T(z); see ScenarioEngine."""
        # The mean price of a demanded Gbit/s is at most value / total demand.
        size = sample.TEMPERATURE * value / max(float(self._rows.total.sum()), 1e-300)
        with threads_for(self._operations):
            scenario_kernels.respond(
                self._scan, self._block_ptr, self._max_slots, self._rows, self._stepped,
                price.reshape(self._groups, -1), 1 / max(size, 1e-300), kept,
                np.searchsorted(kept, self._scan.demand_ptr), np.ascontiguousarray(kept_splits), self._lanes,
            )  # fmt: skip

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
            scenario_kernels.after(program, dual, control, scratch)

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
        with threads_for(self._operations):
            certificates.unpack_splits(self._scan, rows, np.zeros((1, 0)), splits, (0,))
        return splits
