"""Passes over all paths: the path-sized work of the CPU engine behind a link-sized interface.

A pass takes rows of links, (E, L) as flat (E * L,) arrays, visits the paths of all sources, and
returns sums over the paths through each link and over the demands.  :class:`Passes` is the
interface, :class:`PathPasses` the implementation in memory or mapped files; in :mod:`shards` the
paths are on disk or in other processes.  Symbols: table in :mod:`teal.solvers.pdhg`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from teal.network.packed import PackedPaths
from teal.runtime.arrays import AnyArray, Float32Array, FloatArray, Int64Array
from teal.runtime.parallel import threads_for
from teal.solvers.pdhg.fused import certificates, kernels
from teal.solvers.pdhg.fused.curves import CurveRows
from teal.solvers.pdhg.fused.demand_value import DemandValue, one_step
from teal.solvers.pdhg.fused.share_metric import update_share_scale
from teal.solvers.pdhg.fused.simplex import Lanes
from teal.solvers.pdhg.fused.state import (
    NO_UTILISATION,
    Control,
    DemandRows,
    Dual,
    Primal,
    ScaledProgram,
    Scratch,
)
from teal.solvers.pdhg.samples import sample

# Smallest number of trie nodes and paths in a block of sources, the unit of parallel work: smaller
# blocks cost more to schedule than to compute.
MIN_BLOCK_WORK = 20_000
# Largest number of blocks: each stores (E, L) loads, which are added up.
MAX_BLOCKS = 64
# Scalar operations per trie node or path in an iteration; determines the number of threads.
OPERATIONS_PER_ENTRY = 4


class ProgramSums(NamedTuple):
    """Constants of a program, summed over the demands.

    Attributes:
        full_load: (E * L,) load with all of its demand on every live path, Gbit/s.
        trial_load: (E * L,) load of a trial routing (see :func:`certificates.measure`), Gbit/s.
        demand_value_sum: (L,) value of all routable demand.
        total: (L,) demand that has a live path, Gbit/s.
        squared_primal_distance: (L,) sum of demand * h.
    """

    full_load: FloatArray
    trial_load: FloatArray
    demand_value_sum: FloatArray
    total: FloatArray
    squared_primal_distance: FloatArray


class Passes(Protocol):
    """Interface of the passes over the paths that
    :class:`teal.solvers.pdhg.fused.engine.FusedEngine` calls.
    """

    def compile(self, program: ScaledProgram, dual: Dual, control: Control) -> None:
        """Compile the kernels of :meth:`iterate` and :meth:`project_round`, by calls without
        effect.
        """

    def measure(self, inverse_capacity: FloatArray, cost: FloatArray) -> ProgramSums:
        """Compute the constants of the program; the first pass.

        Args:
            inverse_capacity: (E * L,) 1 / c, 0 for a failed link.
            cost: (E * L,) value per Gbit/s; ``FAILED_PRICE`` for a failed link.
        """
        ...

    def set_splits(self, splits: FloatArray) -> None:
        """Set the splits of T(z) to (B, D, K)."""

    def respond(
        self,
        price_plus_cost: Float32Array,
        sharpness: float,
        fixed_demands: Int64Array,
        fixed_splits: AnyArray,
        lane: int,
        *,
        is_summing: bool,
    ) -> tuple[FloatArray, FloatArray]:
        """Set one matrix's splits of T(z) to its response to prices; arguments as in
        :func:`sample.respond`.

        Returns:
            (E,) loads and (E,) elasticities; of length 0 if not ``is_summing``.
        """
        ...

    def restart(self) -> None:
        """Restart the splits from the last PDHG step: set those of z and z_0 to those of T(z)."""

    def iterate(
        self, num_iterations: int, program: ScaledProgram, dual: Dual, control: Control
    ) -> None:
        """Run ``num_iterations`` iterations (:func:`kernels.iterate`)."""

    def certify(
        self, price_plus_cost: FloatArray, *, is_repairing: bool
    ) -> tuple[FloatArray, FloatArray]:
        """Compute the demands' part of the dual bound (:func:`certificates.certify`).

        Returns:
            (E * L,) loads of the splits of T(z), and (L,) the demands' part of the dual bound.
        """
        ...

    def project_round(
        self, load_ratio: FloatArray, unused: FloatArray, *, is_first: bool, is_last: bool
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Run one round of the projection onto the capacities (:func:`certificates.project_round`).

        Returns:
            (E * L,) loads, (E * L,) requested loads, and (L,) value of the flows without link
            costs.
        """
        ...

    def keep(self, lanes: list[int]) -> None:
        """Make the flows of the last certificate or projection the incumbent of some matrices; the
        first call stores all.
        """

    def recall(self) -> FloatArray:
        """Reload the incumbent flows for another projection; returns their loads, (E * L,)."""
        ...

    def best_splits(self) -> FloatArray:
        """Return (B, D, K) splits of the incumbent flows."""
        ...

    def stepped_splits(self) -> FloatArray:
        """Return (B, D, K) splits of T(z)."""
        ...


class ArrayStorage(Protocol):
    """Storage of named arrays."""

    def __call__(self, name: str, size: int, dtype: Any) -> AnyArray:
        """Return the array (size,) of a name; zeros at the first call."""
        ...


class InMemory:
    """Array storage in main memory."""

    def __init__(self) -> None:
        self._arrays: dict[str, AnyArray] = {}

    def __call__(self, name: str, size: int, dtype: Any) -> AnyArray:
        """Return or create an array (:class:`ArrayStorage`)."""
        if name not in self._arrays:
            self._arrays[name] = np.zeros(size, dtype)
        return self._arrays[name]


class PathPasses:
    """Passes over paths in memory, or in mapped files.

    Memory for each path and lane: 12 bytes for the iteration in float32 (24 in float64) and 24 for
    gap checks; for each demand and lane 16 (24 in float64).

    Args:
        packed: the paths of D demands.
        num_paths: K.
        batch: B.
        lanes: a tuple of length L; lanes past B hold no demand.
        demand_value: values of the demands, in float64.
        carries_all: whether all demand must be carried.
        real: NumPy type of the iteration.
        arrays: storage of all that has the size of the paths or demands.
        best: buffer, 0 or 1, of the incumbent flows of an earlier object with the same ``arrays``;
            -1 without an incumbent.
        curve: utility of the demands, for an iteration in float64; None for linear values.
    """

    def __init__(
        self,
        packed: PackedPaths,
        num_paths: int,
        batch: int,
        lanes: Lanes,
        demand_value: DemandValue,
        carries_all: bool,
        dtype: Any,
        arrays: ArrayStorage,
        incumbent_buffer: int = -1,
        curve: CurveRows | None = None,
    ) -> None:
        self._scan = packed.scan
        self._max_slots = packed.max_slots
        self._num_paths = num_paths
        self._batch = batch
        self._lanes = lanes
        self._value = demand_value
        self._carries_all = carries_all
        self._arrays = arrays
        self.incumbent_buffer = incumbent_buffer
        self._curve = curve
        self._block_ptr = packed.blocks(MIN_BLOCK_WORK, MAX_BLOCKS)
        width = len(lanes)
        blocks = len(self._block_ptr) - 1
        demands = len(packed.scan.path_count)
        self._operations = operations(packed, width)
        self._num_links = packed.num_links
        self._num_entries = packed.num_paths * width
        self._dtype = dtype
        # Loads of each block, Gbit/s.
        self._block_loads, self._block_requested = np.zeros((2, blocks, self._num_links * width))
        self._block_sums = np.zeros((blocks, width))
        self._live_demand = arrays("live_demand", demands * width, np.float64)
        self._demands = DemandRows(
            demand=arrays("demand", demands * width, dtype),
            inverse_capacity_sum=arrays("inverse_capacity_sum", demands * width, dtype),
        )
        self._iteration_value = demand_value.astype(dtype)
        self._primal = Primal(*(arrays(name, self._num_entries, dtype) for name in Primal._fields))
        self._requests = arrays("requests", self._num_entries, np.float64)
        self._flows = arrays(
            "flows1" if incumbent_buffer == 0 else "flows0", self._num_entries, np.float64
        )
        self._scratch: Scratch | None = None
        # Share metric of a utility: h of the first iteration, and r; (D, L).
        self._initial_inverse_capacity_sum: FloatArray | None = None
        self._share_scale: FloatArray | None = None

    def set_demand(self, demand: FloatArray) -> None:
        """Set the demands (B, D), Gbit/s, before :meth:`measure`."""
        rows = self._live_demand.reshape(-1, len(self._lanes))
        rows[:, : self._batch] = demand.T

    def scratch(self) -> Scratch:
        """Return the work arrays of an iteration; allocated at the first call."""
        if self._scratch is None:
            width = len(self._lanes)
            blocks = len(self._block_ptr) - 1
            real = self._dtype
            self._scratch = make_scratch(self._num_links, blocks, width, real)
        return self._scratch

    def compile(self, program: ScaledProgram, dual: Dual, control: Control) -> None:
        """Compile by calls without iterations and without sources (:meth:`Passes.compile`)."""
        self.iterate(0, program, dual, control)
        zeros = program.inverse_capacity
        with threads_for(self._operations):
            certificates.project_round(
                self._scan,
                self._block_ptr[:1],
                self._max_slots,
                self._live_demand,
                self._value,
                self._curve,
                zeros,
                zeros,
                True,
                True,
                self._flows,
                self._requests,
                self._block_loads,
                self._block_requested,
                self._block_sums,
                self._lanes,
            )

    def measure(self, inverse_capacity: FloatArray, cost: FloatArray) -> ProgramSums:
        """Compute the constants of the program (:meth:`Passes.measure`)."""
        width = len(self._lanes)
        blocks = len(self._block_ptr) - 1
        demands = len(self._live_demand) // width
        # In place: each entry is read before it is written.
        out = certificates.Measurements(
            inverse_capacity_sum=np.empty(demands * width),
            live_demand=self._live_demand,
            full_load=np.zeros((blocks, self._num_links * width)),
            trial_load=np.zeros((blocks, self._num_links * width)),
            demand_value_sum=np.zeros((blocks, width)),
        )
        with threads_for(self._operations):
            certificates.measure(
                self._scan,
                self._block_ptr,
                self._max_slots,
                self._live_demand,
                inverse_capacity,
                cost,
                self._value,
                self._curve,
                self._carries_all,
                out,
                self._lanes,
            )
        self._demands.demand[:] = self._live_demand
        self._demands.inverse_capacity_sum[:] = out.inverse_capacity_sum
        rates = self._live_demand.reshape(-1, width)
        h = out.inverse_capacity_sum.reshape(demands, -1)
        return ProgramSums(
            out.full_load.sum(0),
            out.trial_load.sum(0),
            out.demand_value_sum.sum(0),
            rates.sum(0),
            (rates * h).sum(0),
        )

    def set_splits(self, splits: FloatArray) -> None:
        """Set the splits of T(z) (:meth:`Passes.set_splits`)."""
        with threads_for(self._operations):
            certificates.pack_splits(self._scan, splits, self._primal.stepped, self._lanes)

    def respond(
        self,
        price_plus_cost: Float32Array,
        sharpness: float,
        fixed_demands: Int64Array,
        fixed_splits: AnyArray,
        lane: int,
        *,
        is_summing: bool,
    ) -> tuple[FloatArray, FloatArray]:
        """Set splits to the response to prices (:meth:`Passes.respond`)."""
        scan = self._scan
        width = len(self._lanes)
        sums = np.zeros(
            (len(self._block_ptr) - 1, 2 * self._num_links if is_summing else 0), np.float32
        )
        max_shares = np.diff(scan.path_ptr + self._value.drop.shape[1] * scan.demand_ptr).max(
            initial=0
        )
        with threads_for(self._operations):
            sample.respond(
                scan,
                self._block_ptr,
                self._max_slots,
                int(max_shares),
                price_plus_cost,
                one_step(np.zeros(1)) if self._carries_all else self._value,
                self._curve,
                np.float32(sharpness),
                not self._carries_all,
                fixed_demands,
                np.searchsorted(fixed_demands, scan.demand_ptr),
                fixed_splits,
                self._live_demand,
                self._primal.stepped,
                sums,
                lane,
                width,
                (0, 0),
            )
        total = sums.astype(np.float64).sum(0)
        return total[0::2], total[1::2]

    def clear(self) -> None:
        """Set the splits of T(z) to 0, before another search."""
        self._primal.stepped[:] = 0

    def restart(self) -> None:
        """Restart the splits from the last PDHG step (:meth:`Passes.restart`)."""
        self._primal.current[:] = self._primal.stepped
        self._primal.anchor[:] = self._primal.stepped

    def iterate(
        self, num_iterations: int, program: ScaledProgram, dual: Dual, control: Control
    ) -> None:
        """Iterate all paths (:meth:`Passes.iterate`)."""
        num_done = 0
        with threads_for(self._operations):
            # At least once: a call without iterations compiles the kernels.
            while True:
                if self._curve is not None and control.restart_due.any():
                    self._update_share_scale(program, control.restart_due)
                num_done += kernels.iterate(
                    num_iterations - num_done,
                    self._scan,
                    self._block_ptr,
                    self._max_slots,
                    program,
                    self._demands,
                    self._iteration_value,
                    self._curve,
                    self._primal,
                    dual,
                    control,
                    self.scratch(),
                    self._lanes,
                )
                if num_done >= num_iterations:
                    return

    def _update_share_scale(self, program: ScaledProgram, restarts: FloatArray) -> None:
        """Scale step sizes by the current shares (:mod:`teal.solvers.pdhg.fused.share_metric`)."""
        h = self._demands.inverse_capacity_sum
        if self._share_scale is None:
            self._initial_inverse_capacity_sum = h.copy()
            self._share_scale = np.ones_like(h)
        update_share_scale(
            self._scan,
            self._block_ptr,
            self._max_slots,
            self._primal.current,
            self._live_demand,
            self._initial_inverse_capacity_sum,
            restarts,
            self._share_scale,
            h,
            self._block_loads,
            self._lanes,
        )
        load = self._block_loads.sum(0) * program.inverse_capacity
        program.full_path_utilisation[:] = np.where(load > 0, load, NO_UTILISATION)

    def step(
        self,
        price: AnyArray,
        halpern: AnyArray,
        inverse_weight: AnyArray,
        inverse_scale: AnyArray,
        *,
        is_restarting: bool,
        is_storing: bool,
    ) -> tuple[FloatArray, FloatArray]:
        """Compute the paths' part of one iteration, for given prices and weights
        (:func:`kernels.step`).

        Returns:
            (E * L,) loads of the new splits, and (3 * L,) the sums of ``Scratch.block_sums``.
        """
        memory = self.scratch()
        scratch = Scratch(price, halpern, inverse_weight, memory.block_load, memory.block_sums)
        with threads_for(self._operations):
            kernels.step(
                self._scan,
                self._block_ptr,
                self._max_slots,
                self._demands,
                self._iteration_value,
                self._curve,
                self._primal,
                scratch,
                inverse_scale,
                self._carries_all,
                is_restarting,
                is_storing,
                self._lanes,
            )
        return memory.block_load.sum(0, dtype=np.float64), memory.block_sums.sum(
            0, dtype=np.float64
        )

    def certify(
        self, price_plus_cost: FloatArray, *, is_repairing: bool
    ) -> tuple[FloatArray, FloatArray]:
        """Compute the paths' part of a certificate (:meth:`Passes.certify`)."""
        with threads_for(self._operations):
            certificates.certify(
                self._scan,
                self._block_ptr,
                self._max_slots,
                self._live_demand,
                self._value,
                self._curve,
                price_plus_cost,
                self._carries_all,
                is_repairing,
                self._primal.stepped,
                self._flows,
                self._block_loads,
                self._block_sums,
                self._lanes,
            )
        return self._block_loads.sum(0), self._block_sums.sum(0)

    def project_round(
        self, load_ratio: FloatArray, unused: FloatArray, *, is_first: bool, is_last: bool
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Run a round of the projection (:meth:`Passes.project_round`)."""
        with threads_for(self._operations):
            certificates.project_round(
                self._scan,
                self._block_ptr,
                self._max_slots,
                self._live_demand,
                self._value,
                self._curve,
                load_ratio,
                unused,
                is_first,
                is_last,
                self._flows,
                self._requests,
                self._block_loads,
                self._block_requested,
                self._block_sums,
                self._lanes,
            )
        return self._block_loads.sum(0), self._block_requested.sum(0), self._block_sums.sum(0)

    def keep(self, lanes: list[int]) -> None:
        """Update the incumbent flows (:meth:`Passes.keep`)."""
        width = len(self._lanes)
        if self.incumbent_buffer < 0 or len(lanes) == self._batch:
            self.incumbent_buffer = 0 if self.incumbent_buffer != 0 else 1
            self._flows = self._arrays(
                f"flows{1 - self.incumbent_buffer}", self._num_entries, np.float64
            )
            return
        best = self._arrays(f"flows{self.incumbent_buffer}", self._num_entries, np.float64)
        for lane in lanes:
            best[lane::width] = self._flows[lane::width]

    def recall(self) -> FloatArray:
        """Reload the incumbent flows (:meth:`Passes.recall`)."""
        self._flows[:] = self._arrays(
            f"flows{self.incumbent_buffer}", self._num_entries, np.float64
        )
        zeros = np.zeros(self._num_links * len(self._lanes))
        return self.project_round(zeros, zeros, is_first=True, is_last=True)[0]

    def best_splits(self) -> FloatArray:
        """Return the incumbent splits (:meth:`Passes.best_splits`)."""
        if self.incumbent_buffer < 0:
            raise RuntimeError("best_splits() needs a call of keep() first")
        demand = self._live_demand.reshape(-1, len(self._lanes)).T[: self._batch]
        return self._unpacked_splits(
            self._arrays(f"flows{self.incumbent_buffer}", self._num_entries, np.float64),
            np.ascontiguousarray(demand),
        )

    def stepped_splits(self) -> FloatArray:
        """Return the splits of T(z) (:meth:`Passes.stepped_splits`)."""
        return self._unpacked_splits(self._primal.stepped, np.zeros((self._batch, 0)))

    def _unpacked_splits(self, rows: AnyArray, demand: FloatArray) -> FloatArray:
        """Convert path rows (P, L) to splits (B, D, K) (:func:`certificates.unpack_splits`)."""
        splits = np.empty((self._batch, len(self._scan.path_count), self._num_paths))
        with threads_for(self._operations):
            certificates.unpack_splits(self._scan, rows, demand, splits, self._lanes)
        return splits


def operations(packed: PackedPaths, num_lanes: int) -> int:
    """Estimate the scalar operations of an iteration with ``num_lanes`` lanes."""
    return OPERATIONS_PER_ENTRY * num_lanes * (packed.num_nodes + packed.num_paths)


def make_scratch(num_links: int, num_blocks: int, num_lanes: int, dtype: Any) -> Scratch:
    """Allocate the work arrays of an iteration whose loads are summed in ``num_blocks`` blocks."""
    return Scratch(
        price=np.zeros(num_links * num_lanes, dtype),
        halpern=np.zeros(4 * num_lanes, dtype),
        inverse_weight=np.zeros(num_lanes, dtype),
        block_load=np.zeros((num_blocks, num_links * num_lanes), dtype),
        block_sums=np.zeros((num_blocks, 3 * num_lanes), dtype),
    )
