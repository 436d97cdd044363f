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
from teal.solvers.pdhg.fused.curves import UtilityRows
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
    """Constants of a program of L matrices, summed over the demands.

    Attributes:
        full_load: (E * L,) load if every live path carried all of its demand, Gbit/s.
        trial_load: (E * L,) load of a trial routing, Gbit/s: each demand on its first path if that
            is live; in a min-max program, split evenly over its live paths.
        demand_value_sum: (L,) value of all routable demand.
        total_demand: (L,) sum of the demands with a live path, Gbit/s.
        squared_primal_distance: (L,) sum_d demand[d] h[d], the squared distance from 0 to splits
            that send each demand on one path.
    """

    full_load: FloatArray
    trial_load: FloatArray
    demand_value_sum: FloatArray
    total_demand: FloatArray
    squared_primal_distance: FloatArray


class Passes(Protocol):
    """Path-sized work of :class:`teal.solvers.pdhg.fused.engine.FusedEngine`, behind link arrays.

    E links, L matrices in SIMD lanes, B matrices of the batch, D demands with at most K paths.
    T(z) is the result of the last PDHG step.
    """

    def compile(self, program: ScaledProgram, dual: Dual, control: Control) -> None:
        """Compile the kernels of :meth:`iterate` and :meth:`project_round`, by calls without
        effect on the iterates.
        """

    def measure(self, inverse_capacity: FloatArray, cost: FloatArray) -> ProgramSums:
        """Compute the constants of the program; must precede all other passes.

        Args:
            inverse_capacity: (E * L,) 1 / capacity, 1/(Gbit/s); 0 for a failed link.
            cost: (E * L,) link costs, value per Gbit/s; ``FAILED_PRICE`` for a failed link.
        """
        ...

    def set_splits(self, splits: FloatArray) -> None:
        """Set the splits of T(z), the last PDHG step.

        Args:
            splits: (B, D, K) share of each demand on each path.
        """

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
        """Set one matrix's splits of T(z), the last PDHG step, to its response to prices.

        Each demand is divided over its paths by a softmax of their profits.

        Args:
            price_plus_cost: (E,) price plus cost of each link, value per Gbit/s; ``FAILED_PRICE``
                for a failed link.
            sharpness: q, inverse temperature of the softmax, 1/(value per Gbit/s).
            fixed_demands: (n,) indices of the demands with fixed splits, ascending.
            fixed_splits: (n, K) splits of these demands.
            lane: index of the matrix.
            is_summing: whether to return loads and elasticities.

        Returns:
            (E,) link loads, Gbit/s, and (E,) elasticities, minus the derivatives of the loads by
            the prices; of length 0 if not ``is_summing``.
        """
        ...

    def restart(self) -> None:
        """Restart from the last PDHG step: copy its splits to the iterate and Halpern's anchor."""

    def iterate(
        self, num_iterations: int, program: ScaledProgram, dual: Dual, control: Control
    ) -> None:
        """Run PDHG iterations on links and paths.

        Args:
            num_iterations: number of iterations.
            program: scaled program, arrays (E, L).
            dual: dual variables and loads of the iterate z, Halpern's anchor z_0 and the step T(z),
                (E, L) each (written).
            control: (L,) state of each matrix (written).
        """

    def certify(
        self, price_plus_cost: FloatArray, *, is_repairing: bool
    ) -> tuple[FloatArray, FloatArray]:
        """Compute the demands' part of the dual bound, and flows and loads of T(z), the last step.

        The part is sum_d demand[d] max(0, best profit of a path), without the max with 0 in a
        min-max program, which must carry all demand.

        Args:
            price_plus_cost: (E * L,) price plus cost of each link, value per Gbit/s;
                ``FAILED_PRICE`` for a failed link.
            is_repairing: whether to repair the splits of T(z): 0 on paths with a failed link, then
                scaled to sums of at most 1, in a min-max program to exactly 1.

        Returns:
            (E * L,) loads of the repaired splits, Gbit/s, and (L,) the demands' part of the bound.
        """
        ...

    def project_round(
        self, load_ratio: FloatArray, unused_capacity: FloatArray, *, is_first: bool, is_last: bool
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Run one round of the projection of the flows onto the capacities.

        The first round scales the flows down so that no link is overloaded.  Later rounds grant the
        requests of the last round, scaled down to the residual capacities.  Each round but the last
        then requests unused capacity for unserved demand.

        Args:
            load_ratio: (E * L,) load over capacity in the first round, requested load over residual
                capacity in the others; 0 on links without load.
            unused_capacity: (E * L,) capacity open to requests, Gbit/s.
            is_first: whether this is the first round.
            is_last: whether this is the last round.

        Returns:
            (E * L,) loads and (E * L,) requested loads, Gbit/s, and (L,) value of the flows without
            link costs.
        """
        ...

    def keep(self, matrices: list[int]) -> None:
        """Store the flows of the last certify() or project_round() as incumbents of some matrices.

        Args:
            matrices: indices of the matrices; the first call stores all matrices.
        """

    def reload_incumbent(self) -> FloatArray:
        """Reload the incumbent flows to project them again; return (E * L,) loads, Gbit/s."""
        ...

    def best_splits(self) -> FloatArray:
        """Return the (B, D, K) splits of the incumbent flows, as shares of the demands."""
        ...

    def stepped_splits(self) -> FloatArray:
        """Return the (B, D, K) splits of T(z), the last PDHG step."""
        ...


class ArrayStorage(Protocol):
    """Function that returns the array of a name, and creates it at the first call."""

    def __call__(self, name: str, size: int, dtype: Any) -> AnyArray:
        """Return the array (size,) of a name, which is filled with zeros at its first call."""
        ...


class InMemory:
    """Array storage in main memory."""

    def __init__(self) -> None:
        self._arrays: dict[str, AnyArray] = {}

    def __call__(self, name: str, size: int, dtype: Any) -> AnyArray:
        """Return the array (size,) of a name; create it, filled with zeros, at its first call."""
        if name not in self._arrays:
            self._arrays[name] = np.zeros(size, dtype)
        return self._arrays[name]


class PathPasses:
    """Passes over paths whose arrays are in memory, or in mapped files.

    Memory for each path and lane: 12 bytes for the iteration in float32 (24 in float64) and 24 for
    gap checks; for each demand and lane 16 (24 in float64).  The flows of the last check and of the
    incumbent are in two buffers, "flows0" and "flows1", which swap when the incumbent changes.

    Args:
        packed: candidate paths of D demands.
        num_paths: K, largest number of paths of a demand.
        batch: B, number of matrices.
        lanes: tuple of length L; lanes past B hold no demand.
        demand_value: values of the demands, in float64.
        carries_all: whether all demand must be carried.
        dtype: NumPy type of the iteration.
        arrays: storage of the arrays over paths and demands.
        incumbent_buffer: buffer, 0 or 1, of the incumbent flows of an earlier object with the same
            ``arrays``; -1 without an incumbent.
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
        curve: UtilityRows | None = None,
    ) -> None:
        self._scan = packed.scan
        self._max_trie_nodes = packed.max_trie_nodes
        self._num_paths = num_paths
        self._batch = batch
        self._lanes = lanes
        self._demand_value = demand_value
        self._carries_all = carries_all
        self._arrays = arrays
        self.incumbent_buffer = incumbent_buffer
        self._utility = curve
        self._block_ptr = packed.blocks(MIN_BLOCK_WORK, MAX_BLOCKS)
        # Numbers of lanes L, blocks of sources, and demands D.
        num_lanes = len(lanes)
        num_blocks = len(self._block_ptr) - 1
        num_demands = len(packed.scan.path_count)
        self._operations_per_pass = operations(packed, num_lanes)
        self._num_links = packed.num_links
        self._num_splits = packed.num_paths * num_lanes
        self._dtype = dtype
        # (blocks, E * L) loads of the flows and of the requests, Gbit/s; (blocks, L) sums over
        # demands.
        self._block_loads, self._block_requested_loads = np.zeros(
            (2, num_blocks, self._num_links * num_lanes)
        )
        self._block_sums = np.zeros((num_blocks, num_lanes))
        # (D, L) demands with a live path, Gbit/s, and the same in the type of the iteration.
        self._live_demand = arrays("live_demand", num_demands * num_lanes, np.float64)
        self._demands = DemandRows(
            demand=arrays("demand", num_demands * num_lanes, dtype),
            inverse_capacity_sum=arrays("inverse_capacity_sum", num_demands * num_lanes, dtype),
        )
        self._iteration_value = demand_value.astype(dtype)
        # (P, L) splits; for the projection, flows and requested additional flows, Gbit/s.
        self._primal = Primal(*(arrays(name, self._num_splits, dtype) for name in Primal._fields))
        self._requests = arrays("requests", self._num_splits, np.float64)
        # Flows of the last check: the buffer that does not hold the incumbent.
        self._flows = arrays(
            "flows1" if incumbent_buffer == 0 else "flows0", self._num_splits, np.float64
        )
        self._scratch: Scratch | None = None
        # Under a utility the step sizes change: (D, L) h at first, the largest sum of 1 / capacity
        # along a path, and the divisor r of h since then; None until the first restart.
        self._initial_inverse_capacity_sum: FloatArray | None = None
        self._share_scale: FloatArray | None = None

    def set_demand(self, demand: FloatArray) -> None:
        """Set the demands (B, D), Gbit/s, before :meth:`measure`."""
        rows = self._live_demand.reshape(-1, len(self._lanes))
        rows[:, : self._batch] = demand.T

    def scratch(self) -> Scratch:
        """Return the work arrays of an iteration, which the first call allocates."""
        if self._scratch is None:
            num_lanes = len(self._lanes)
            num_blocks = len(self._block_ptr) - 1
            real = self._dtype
            self._scratch = make_scratch(self._num_links, num_blocks, num_lanes, real)
        return self._scratch

    def compile(self, program: ScaledProgram, dual: Dual, control: Control) -> None:
        """Compile the kernels by calls with no iterations and no sources."""
        self.iterate(0, program, dual, control)
        # The range of blocks is empty, so that the values of the (E * L,) arrays do not matter.
        # The two flags: a first and last round.
        unread_link_array = program.inverse_capacity
        with threads_for(self._operations_per_pass):
            certificates.project_round(
                self._scan,
                self._block_ptr[:1],
                self._max_trie_nodes,
                self._live_demand,
                self._demand_value,
                self._utility,
                unread_link_array,
                unread_link_array,
                True,
                True,
                self._flows,
                self._requests,
                self._block_loads,
                self._block_requested_loads,
                self._block_sums,
                self._lanes,
            )

    def measure(self, inverse_capacity: FloatArray, cost: FloatArray) -> ProgramSums:
        """Compute the constants of the program, and store the live demands and their step sizes.

        Args:
            inverse_capacity: (E * L,) 1 / capacity, 1/(Gbit/s); 0 for a failed link.
            cost: (E * L,) link costs, value per Gbit/s; ``FAILED_PRICE`` for a failed link.
        """
        num_lanes = len(self._lanes)
        num_blocks = len(self._block_ptr) - 1
        num_demands = len(self._live_demand) // num_lanes
        # The kernel reads each demand before it writes the live demand to the same array.
        measurements = certificates.Measurements(
            inverse_capacity_sum=np.empty(num_demands * num_lanes),
            live_demand=self._live_demand,
            full_load=np.zeros((num_blocks, self._num_links * num_lanes)),
            trial_load=np.zeros((num_blocks, self._num_links * num_lanes)),
            demand_value_sum=np.zeros((num_blocks, num_lanes)),
        )
        # Constants by block of sources.
        with threads_for(self._operations_per_pass):
            certificates.measure(
                self._scan,
                self._block_ptr,
                self._max_trie_nodes,
                self._live_demand,
                inverse_capacity,
                cost,
                self._demand_value,
                self._utility,
                self._carries_all,
                measurements,
                self._lanes,
            )
        # Demands and step sizes in the type of the iteration, and sums over the blocks and demands.
        self._demands.demand[:] = self._live_demand
        self._demands.inverse_capacity_sum[:] = measurements.inverse_capacity_sum
        # (D, L) live demands and h: the sum of their products is the squared primal distance.
        demand_rates = self._live_demand.reshape(-1, num_lanes)
        h = measurements.inverse_capacity_sum.reshape(num_demands, -1)
        return ProgramSums(
            measurements.full_load.sum(0),
            measurements.trial_load.sum(0),
            measurements.demand_value_sum.sum(0),
            demand_rates.sum(0),
            (demand_rates * h).sum(0),
        )

    def set_splits(self, splits: FloatArray) -> None:
        """Set the splits of T(z), the last PDHG step, from (B, D, K).

        Negative, infinite and NaN entries become 0.
        """
        with threads_for(self._operations_per_pass):
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
        """Set one matrix's splits of T(z), the last step, to its softmax response to prices (E,).

        Args:
            price_plus_cost: (E,) price plus cost of each link, value per Gbit/s; ``FAILED_PRICE``
                for a failed link.
            sharpness: inverse temperature of the softmax, 1/(value per Gbit/s).
            fixed_demands: (n,) indices of the demands with fixed splits, ascending.
            fixed_splits: (n, K) splits of these demands.
            lane: index of the matrix.
            is_summing: whether to compute loads and elasticities.

        Returns:
            (E,) loads, Gbit/s, and (E,) elasticities, minus the derivatives of the loads by the
            prices; of length 0 if not ``is_summing``.
        """
        scan = self._scan
        num_lanes = len(self._lanes)
        # (blocks, 2 E): load and elasticity of each link, side by side.
        block_link_sums = np.zeros(
            (len(self._block_ptr) - 1, 2 * self._num_links if is_summing else 0), np.float32
        )
        # Scratch size: paths plus value steps of all demands of a source, at most.
        max_softmax_weights = np.diff(
            scan.path_ptr + self._demand_value.drop.shape[1] * scan.demand_ptr
        ).max(initial=0)
        # Where all demand must be carried, its value is 0 and it may not be rejected.  The tuple
        # (0, 0) stands for two SIMD lanes, load and elasticity.
        with threads_for(self._operations_per_pass):
            sample.respond(
                scan,
                self._block_ptr,
                self._max_trie_nodes,
                int(max_softmax_weights),
                price_plus_cost,
                one_step(np.zeros(1)) if self._carries_all else self._demand_value,
                self._utility,
                np.float32(sharpness),
                not self._carries_all,
                fixed_demands,
                np.searchsorted(fixed_demands, scan.demand_ptr),
                fixed_splits,
                self._live_demand,
                self._primal.stepped,
                block_link_sums,
                lane,
                num_lanes,
                (0, 0),
            )
        # Sum over the blocks; entry 2 e is the load of link e, entry 2 e + 1 its elasticity.
        link_sums = block_link_sums.astype(np.float64).sum(0)
        return link_sums[0::2], link_sums[1::2]

    def clear(self) -> None:
        """Set the splits of T(z), the last PDHG step, to 0, before another search."""
        self._primal.stepped[:] = 0

    def restart(self) -> None:
        """Copy the splits of the last PDHG step to the iterate and to Halpern's anchor."""
        self._primal.current[:] = self._primal.stepped
        self._primal.anchor[:] = self._primal.stepped

    def iterate(
        self, num_iterations: int, program: ScaledProgram, dual: Dual, control: Control
    ) -> None:
        """Run PDHG iterations; under a utility, update the step sizes before each restart.

        Args:
            num_iterations: number of iterations.
            program: scaled program, arrays (E, L).
            dual: dual variables and loads of the iterate, Halpern's anchor and the step, (E, L)
                each (written).
            control: (L,) primal weight and restart state of each matrix (written).
        """
        num_done = 0
        with threads_for(self._operations_per_pass):
            # At least one call: without iterations it compiles the kernels.
            while True:
                if self._utility is not None and control.restart_due.any():
                    self._update_share_scale(program, control.restart_due)
                num_done += kernels.iterate(
                    num_iterations - num_done,
                    self._scan,
                    self._block_ptr,
                    self._max_trie_nodes,
                    program,
                    self._demands,
                    self._iteration_value,
                    self._utility,
                    self._primal,
                    dual,
                    control,
                    self.scratch(),
                    self._lanes,
                )
                if num_done >= num_iterations:
                    return

    def _update_share_scale(self, program: ScaledProgram, restart_due: FloatArray) -> None:
        """Scale the step sizes of the matrices that restart by the served shares of their demands.

        A demand's step size is inversely proportional to h, in the first iteration h_1, the largest
        sum of 1 / capacity along a path: h <- h_1 / r, where r, at first 1, follows the served
        share: r <- sqrt(r share).  A link's step size
        is inversely proportional to m <- sum of demand r / capacity over the paths through it.

        Args:
            program: scaled program (``full_path_utilisation``, m, is written).
            restart_due: (L,) above 0 for the matrices that restart.
        """
        h = self._demands.inverse_capacity_sum
        # First restart: r = 1, and h is h_1.
        if self._share_scale is None:
            self._initial_inverse_capacity_sum = h.copy()
            self._share_scale = np.ones_like(h)
        update_share_scale(
            self._scan,
            self._block_ptr,
            self._max_trie_nodes,
            self._primal.current,
            self._live_demand,
            self._initial_inverse_capacity_sum,
            restart_due,
            self._share_scale,
            h,
            self._block_loads,
            self._lanes,
        )
        # m of each link.
        utilisation = self._block_loads.sum(0) * program.inverse_capacity
        program.full_path_utilisation[:] = np.where(utilisation > 0, utilisation, NO_UTILISATION)

    def step(
        self,
        price: AnyArray,
        halpern_weights: AnyArray,
        inverse_primal_weight: AnyArray,
        inverse_scale: AnyArray,
        *,
        is_restarting: bool,
        is_storing: bool,
    ) -> tuple[FloatArray, FloatArray]:
        """Compute the paths' part of one iteration: new splits and their loads.

        Args:
            price: (E * L,) link prices of the scaled program, 1/(Gbit/s).
            halpern_weights: (4 * L,) weights of the step T(z), the iterate z and Halpern's anchor
                z_0 in the next iterate, and 1 at a restart.
            inverse_primal_weight: (L,) 1 / primal weight.
            inverse_scale: (L,) 1 / scale of the objective; 0 for a min-max program.
            is_restarting: whether any matrix restarts in this iteration.
            is_storing: whether to store the splits of the step.

        Returns:
            (E * L,) loads of the new splits, Gbit/s, and (3 * L,) sums over the demands: demand
            times best profit, and the squared distances from the new splits to z and to z_0.
        """
        # Inputs of the caller, with this object's arrays for the results of each block.
        work_arrays = self.scratch()
        scratch = Scratch(
            price,
            halpern_weights,
            inverse_primal_weight,
            work_arrays.block_load,
            work_arrays.block_sums,
        )
        with threads_for(self._operations_per_pass):
            kernels.step(
                self._scan,
                self._block_ptr,
                self._max_trie_nodes,
                self._demands,
                self._iteration_value,
                self._utility,
                self._primal,
                scratch,
                inverse_scale,
                self._carries_all,
                is_restarting,
                is_storing,
                self._lanes,
            )
        # Sums over the blocks.
        return work_arrays.block_load.sum(0, dtype=np.float64), work_arrays.block_sums.sum(
            0, dtype=np.float64
        )

    def certify(
        self, price_plus_cost: FloatArray, *, is_repairing: bool
    ) -> tuple[FloatArray, FloatArray]:
        """Compute the demands' part of the dual bound, and flows and loads of the last PDHG step.

        Args:
            price_plus_cost: (E * L,) price plus cost of each link, value per Gbit/s;
                ``FAILED_PRICE`` for a failed link.
            is_repairing: whether to overwrite the splits with repaired ones: 0 on paths with a
                failed link, sums of at most 1, in a min-max program of exactly 1.

        Returns:
            (E * L,) loads of the repaired splits, Gbit/s, and (L,) the demands' part of the bound.
        """
        with threads_for(self._operations_per_pass):
            certificates.certify(
                self._scan,
                self._block_ptr,
                self._max_trie_nodes,
                self._live_demand,
                self._demand_value,
                self._utility,
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
        self, load_ratio: FloatArray, unused_capacity: FloatArray, *, is_first: bool, is_last: bool
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Run one round of the projection of the flows onto the capacities.

        Args:
            load_ratio: (E * L,) load over capacity in the first round, requested load over residual
                capacity in the others.
            unused_capacity: (E * L,) capacity open to requests, Gbit/s.
            is_first: whether this is the first round, which scales the flows down.
            is_last: whether this is the last round, which makes no new requests.

        Returns:
            (E * L,) loads and (E * L,) requested loads, Gbit/s, and (L,) value of the flows without
            link costs.
        """
        with threads_for(self._operations_per_pass):
            certificates.project_round(
                self._scan,
                self._block_ptr,
                self._max_trie_nodes,
                self._live_demand,
                self._demand_value,
                self._utility,
                load_ratio,
                unused_capacity,
                is_first,
                is_last,
                self._flows,
                self._requests,
                self._block_loads,
                self._block_requested_loads,
                self._block_sums,
                self._lanes,
            )
        return self._block_loads.sum(0), self._block_requested_loads.sum(0), self._block_sums.sum(0)

    def keep(self, matrices: list[int]) -> None:
        """Make the flows of the last check the incumbent of some matrices; at first of all.

        Args:
            matrices: indices of the matrices.
        """
        num_lanes = len(self._lanes)
        # All matrices: the checked flows become the incumbent, and the next check writes to the
        # other buffer.
        if self.incumbent_buffer < 0 or len(matrices) == self._batch:
            self.incumbent_buffer = 0 if self.incumbent_buffer != 0 else 1
            self._flows = self._arrays(
                f"flows{1 - self.incumbent_buffer}", self._num_splits, np.float64
            )
            return
        # Some matrices: copy their lanes.
        incumbent_flows = self._arrays(
            f"flows{self.incumbent_buffer}", self._num_splits, np.float64
        )
        for lane in matrices:
            incumbent_flows[lane::num_lanes] = self._flows[lane::num_lanes]

    def reload_incumbent(self) -> FloatArray:
        """Reload the incumbent flows; return their (E * L,) loads, Gbit/s."""
        self._flows[:] = self._arrays(f"flows{self.incumbent_buffer}", self._num_splits, np.float64)
        # A round of the projection at load ratios of 0 changes no flow and sums the loads.
        zeros = np.zeros(self._num_links * len(self._lanes))
        return self.project_round(zeros, zeros, is_first=True, is_last=True)[0]

    def best_splits(self) -> FloatArray:
        """Return (B, D, K) splits of the incumbent flows.

        Raises:
            RuntimeError: no incumbent has been stored by :meth:`keep`.
        """
        if self.incumbent_buffer < 0:
            raise RuntimeError("best_splits(): no incumbent flows; call keep() first")
        demand = self._live_demand.reshape(-1, len(self._lanes)).T[: self._batch]
        return self._unpacked_splits(
            self._arrays(f"flows{self.incumbent_buffer}", self._num_splits, np.float64),
            np.ascontiguousarray(demand),
        )

    def stepped_splits(self) -> FloatArray:
        """Return the (B, D, K) splits of T(z), the last PDHG step."""
        return self._unpacked_splits(self._primal.stepped, np.zeros((self._batch, 0)))

    def _unpacked_splits(self, rows: AnyArray, demand: FloatArray) -> FloatArray:
        """Convert path rows to splits (B, D, K).

        Args:
            rows: (P, L) flows in Gbit/s, or splits.
            demand: (B, D) Gbit/s, the divisor of flows; (B, 0) for splits.
        """
        splits = np.empty((self._batch, len(self._scan.path_count), self._num_paths))
        with threads_for(self._operations_per_pass):
            certificates.unpack_splits(self._scan, rows, demand, splits, self._lanes)
        return splits


def operations(packed: PackedPaths, num_lanes: int) -> int:
    """Return the approximate scalar operations of an iteration with ``num_lanes`` lanes."""
    return OPERATIONS_PER_ENTRY * num_lanes * (packed.num_nodes + packed.num_paths)


def make_scratch(num_links: int, num_blocks: int, num_lanes: int, dtype: Any) -> Scratch:
    """Allocate the work arrays of an iteration, with one row of loads and sums per block.

    Args:
        num_links: E.
        num_blocks: number of blocks of sources.
        num_lanes: L, matrices side by side.
        dtype: NumPy type of all arrays, that of the splits.
    """
    return Scratch(
        price=np.zeros(num_links * num_lanes, dtype),
        halpern_weights=np.zeros(4 * num_lanes, dtype),
        inverse_primal_weight=np.zeros(num_lanes, dtype),
        block_load=np.zeros((num_blocks, num_links * num_lanes), dtype),
        block_sums=np.zeros((num_blocks, 3 * num_lanes), dtype),
    )
