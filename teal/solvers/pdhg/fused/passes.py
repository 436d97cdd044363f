"""Passes over all paths: what the CPU engine needs from demands and paths, in return for numbers of
links.

Symbols are those of the table in :mod:`teal.solvers.pdhg`.  A pass takes rows of links, (E, L) as
flat (E * L,) arrays, visits the paths of all sources, and returns sums over the paths through each
link and over the demands.  All that has the size of the paths stays with the passes, so that the
paths may be elsewhere: in :mod:`shards` they are on disk or in other processes.
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
from teal.solvers.pdhg.fused.share_metric import follow_shares
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
# largest number of blocks; each has (E, L) loads of its own, which must be stored and added up
MAX_BLOCKS = 64
OPERATIONS_PER_ENTRY = (
    4  # scalar operations that a trie node or path takes in an iteration; sets the threads
)


class ProgramSums(NamedTuple):
    """Constants of a program, summed over the demands.

    Attributes:
        full_load: (E * L,) load if every live path carried all of its demand, Gbit/s.
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
    """The passes over the paths that :class:`teal.solvers.pdhg.fused.engine.FusedEngine` asks
    for.
    """

    def compile(self, program: ScaledProgram, dual: Dual, control: Control) -> None:
        """Compile what :meth:`iterate` and :meth:`project_round` run, by calls that change
        nothing.
        """

    def measure(self, inverse_capacity: FloatArray, cost: FloatArray) -> ProgramSums:
        """Compute the constants; the first pass.

        Args:
            inverse_capacity: (E * L,) 1 / c, 0 for a failed link.
            cost: (E * L,) value per Gbit/s; ``FAILED_PRICE`` for a failed link.
        """
        ...

    def put_splits(self, splits: FloatArray) -> None:
        """Make splits (B, D, K) those of T(z)."""

    def respond(
        self,
        price_plus_cost: Float32Array,
        sharpness: float,
        kept: Int64Array,
        kept_splits: AnyArray,
        lane: int,
        *,
        is_summing: bool,
    ) -> tuple[FloatArray, FloatArray]:
        """Make one matrix's response to prices its splits of T(z); arguments as in
        :func:`sample.respond`.

        Returns:
            (E,) loads and (E,) elasticities; of length 0 if not ``is_summing``.
        """
        ...

    def restart(self) -> None:
        """Make the splits of T(z) those of z and z_0 too."""

    def iterate(self, count: int, program: ScaledProgram, dual: Dual, control: Control) -> None:
        """``count`` iterations; see :func:`kernels.iterate`."""

    def certify(
        self, price_plus_cost: FloatArray, *, is_repairing: bool
    ) -> tuple[FloatArray, FloatArray]:
        """Certify a block of demands (:func:`certificates.certify`).

        Returns:
            (E * L,) loads of the splits of T(z), and (L,) the demands' part of the dual bound.
        """
        ...

    def project_round(
        self, load_ratio: FloatArray, unused: FloatArray, *, is_first: bool, is_last: bool
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Refill a block of demands (:func:`certificates.project_round`).

        Returns:
            (E * L,) loads, (E * L,) requested loads, and (L,) value of the flows without link
            costs.
        """
        ...

    def keep(self, lanes: list[int]) -> None:
        """Keep the flows of the last certificate or projection for these matrices; the first call
        keeps all.
        """

    def recall(self) -> FloatArray:
        """Take the flows that were kept for another projection; returns their loads, (E * L,)."""
        ...

    def best_splits(self) -> FloatArray:
        """(B, D, K) splits of the flows that were kept."""
        ...

    def stepped_splits(self) -> FloatArray:
        """(B, D, K) splits of T(z)."""
        ...


class Arrays(Protocol):
    """Where arrays are kept."""

    def __call__(self, name: str, size: int, dtype: Any) -> AnyArray:
        """The array (size,) of that name; zeros when it is asked for first."""
        ...


class InMemory:
    """Arrays in main memory."""

    def __init__(self) -> None:
        self._arrays: dict[str, AnyArray] = {}

    def __call__(self, name: str, size: int, dtype: Any) -> AnyArray:
        """Make an array (:class:`Arrays`)."""
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
        best: number, 0 or 1, of the flows that were kept by an earlier object with the same
            ``arrays``; -1 for none.
        curve: utility of the demands, for an iteration in float64; None for none.
    """

    def __init__(
        self,
        packed: PackedPaths,
        num_paths: int,
        batch: int,
        lanes: Lanes,
        demand_value: DemandValue,
        carries_all: bool,
        real: Any,
        arrays: Arrays,
        best: int = -1,
        curve: CurveRows | None = None,
    ) -> None:
        self._scan, self._max_slots = packed.scan, packed.max_slots
        self._num_paths, self._batch, self._lanes = num_paths, batch, lanes
        self._value, self._carries_all, self._arrays, self.best = (
            demand_value,
            carries_all,
            arrays,
            best,
        )
        self._curve = curve
        self._block_ptr = packed.blocks(MIN_BLOCK_WORK, MAX_BLOCKS)
        width, blocks, demands = len(lanes), len(self._block_ptr) - 1, len(packed.scan.path_count)
        self._operations = operations(packed, width)
        self._links, self._rows, self._real = packed.num_links, packed.num_paths * width, real
        self._block_loads, self._block_requested = np.zeros(
            (2, blocks, self._links * width)
        )  # Gbit/s
        self._block_sums = np.zeros((blocks, width))
        self._live_demand = arrays("live_demand", demands * width, np.float64)
        self._demands = DemandRows(
            demand=arrays("demand", demands * width, real),
            inverse_capacity_sum=arrays("inverse_capacity_sum", demands * width, real),
        )
        self._iteration_value = demand_value.astype(real)  # the values in the iteration
        self._primal = Primal(*(arrays(name, self._rows, real) for name in Primal._fields))
        self._requests = arrays("requests", self._rows, np.float64)
        self._flows = arrays("flows1" if best == 0 else "flows0", self._rows, np.float64)
        self._scratch: Scratch | None = None
        # Of a utility: h of the first iteration, and r; (D, L).
        self._first_h: FloatArray | None = None
        self._unit: FloatArray | None = None

    def put_demand(self, demand: FloatArray) -> None:
        """Set the demands (B, D), Gbit/s, before :meth:`measure`."""
        rows = self._live_demand.reshape(-1, len(self._lanes))
        rows[:, : self._batch] = demand.T

    def scratch(self) -> Scratch:
        """Memory of an iteration."""
        if self._scratch is None:
            width, blocks, real = len(self._lanes), len(self._block_ptr) - 1, self._real
            self._scratch = make_scratch(self._links, blocks, width, real)
        return self._scratch

    def compile(self, program: ScaledProgram, dual: Dual, control: Control) -> None:
        """Compile by calls without iterations and without sources (:meth:`Passes.compile`)."""
        self.iterate(0, program, dual, control)
        nothing = program.inverse_capacity
        with threads_for(self._operations):
            certificates.project_round(
                self._scan,
                self._block_ptr[:1],
                self._max_slots,
                self._live_demand,
                self._value,
                self._curve,
                nothing,
                nothing,
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
        """Measure the splits (:meth:`Passes.measure`)."""
        width, blocks = len(self._lanes), len(self._block_ptr) - 1
        demands = len(self._live_demand) // width
        out = certificates.Measurements(
            inverse_capacity_sum=np.empty(demands * width),
            live_demand=self._live_demand,  # in place: each entry is read before it is written
            full_load=np.zeros((blocks, self._links * width)),
            trial_load=np.zeros((blocks, self._links * width)),
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
        rates, h = (
            self._live_demand.reshape(-1, width),
            out.inverse_capacity_sum.reshape(demands, -1),
        )
        return ProgramSums(
            out.full_load.sum(0),
            out.trial_load.sum(0),
            out.demand_value_sum.sum(0),
            rates.sum(0),
            (rates * h).sum(0),
        )

    def put_splits(self, splits: FloatArray) -> None:
        """Put splits in place (:meth:`Passes.put_splits`)."""
        with threads_for(self._operations):
            certificates.pack_splits(self._scan, splits, self._primal.stepped, self._lanes)

    def respond(
        self,
        price_plus_cost: Float32Array,
        sharpness: float,
        kept: Int64Array,
        kept_splits: AnyArray,
        lane: int,
        *,
        is_summing: bool,
    ) -> tuple[FloatArray, FloatArray]:
        """Put the response to prices in place (:meth:`Passes.respond`)."""
        scan, width = self._scan, len(self._lanes)
        sums = np.zeros(
            (len(self._block_ptr) - 1, 2 * self._links if is_summing else 0), np.float32
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
                kept,
                np.searchsorted(kept, scan.demand_ptr),
                kept_splits,
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
        """Begin anew at the last step (:meth:`Passes.restart`)."""
        self._primal.current[:], self._primal.anchor[:] = self._primal.stepped, self._primal.stepped

    def iterate(self, count: int, program: ScaledProgram, dual: Dual, control: Control) -> None:
        """The paths' part of an iteration (:meth:`Passes.iterate`)."""
        done = 0
        with threads_for(self._operations):
            while True:  # once at least: without iterations the kernels are compiled
                if self._curve is not None and control.restart_due.any():
                    self._follow_shares(program, control.restart_due)
                done += kernels.iterate(
                    count - done,
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
                if done >= count:
                    return

    def _follow_shares(self, program: ScaledProgram, restarts: FloatArray) -> None:
        """Make the step sizes those of the present shares
        (:mod:`teal.solvers.pdhg.fused.share_metric`).
        """
        h = self._demands.inverse_capacity_sum
        if self._unit is None:
            self._first_h, self._unit = h.copy(), np.ones_like(h)
        follow_shares(
            self._scan,
            self._block_ptr,
            self._max_slots,
            self._primal.current,
            self._live_demand,
            self._first_h,
            restarts,
            self._unit,
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
        """The paths' part of one iteration, for prices and weights from elsewhere (see
        :func:`kernels.step`).

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
        """The paths' part of a certificate (:meth:`Passes.certify`)."""
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
        """A round of refilling (:meth:`Passes.project_round`)."""
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
        """Keep the better splits (:meth:`Passes.keep`)."""
        width = len(self._lanes)
        if self.best < 0 or len(lanes) == self._batch:
            self.best = 0 if self.best != 0 else 1
            self._flows = self._arrays(f"flows{1 - self.best}", self._rows, np.float64)
            return
        best = self._arrays(f"flows{self.best}", self._rows, np.float64)
        for lane in lanes:
            best[lane::width] = self._flows[lane::width]

    def recall(self) -> FloatArray:
        """Take back the splits that were kept (:meth:`Passes.recall`)."""
        self._flows[:] = self._arrays(f"flows{self.best}", self._rows, np.float64)
        nothing = np.zeros(self._links * len(self._lanes))
        return self.project_round(nothing, nothing, is_first=True, is_last=True)[0]

    def best_splits(self) -> FloatArray:
        """The best splits (:meth:`Passes.best_splits`)."""
        if self.best < 0:
            raise RuntimeError("best_splits() needs a call of keep() first")
        demand = self._live_demand.reshape(-1, len(self._lanes)).T[: self._batch]
        return self._splits_of(
            self._arrays(f"flows{self.best}", self._rows, np.float64), np.ascontiguousarray(demand)
        )

    def stepped_splits(self) -> FloatArray:
        """The splits after the last step (:meth:`Passes.stepped_splits`)."""
        return self._splits_of(self._primal.stepped, np.zeros((self._batch, 0)))

    def _splits_of(self, rows: AnyArray, demand: FloatArray) -> FloatArray:
        """(B, D, K) splits of path rows (P, L); see :func:`certificates.unpack_splits`."""
        splits = np.empty((self._batch, len(self._scan.path_count), self._num_paths))
        with threads_for(self._operations):
            certificates.unpack_splits(self._scan, rows, demand, splits, self._lanes)
        return splits


def operations(packed: PackedPaths, width: int) -> int:
    """Scalar operations of an iteration, approximately, with ``width`` lanes."""
    return OPERATIONS_PER_ENTRY * width * (packed.num_nodes + packed.num_paths)


def make_scratch(links: int, blocks: int, width: int, real: Any) -> Scratch:
    """Memory of an iteration with ``width`` lanes whose loads are added up in ``blocks``."""
    return Scratch(
        price=np.zeros(links * width, real),
        halpern=np.zeros(4 * width, real),
        inverse_weight=np.zeros(width, real),
        block_load=np.zeros((blocks, links * width), real),
        block_sums=np.zeros((blocks, 3 * width), real),
    )
