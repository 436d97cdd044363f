"""The engine of the CPU: up to 16 matrices in lanes, one parallel loop over the sources per iteration."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from teal.parallel import threads_for
from teal.problem import Problem
from teal.solvers.pdhg import kernels, looks
from teal.solvers.pdhg.engine import PdhgState, first_omega, price_guess

MOST_LANES = 16
LANES = (1, 8, MOST_LANES)  # a kernel is compiled for each, and the batch filled up to the next
_WORK, _BLOCKS = 20_000, 64  # trie nodes and paths of a block at least; most blocks

Array = npt.NDArray[Any]


class FusedEngine:
    """See :class:`teal.solvers.pdhg.engine.Engine`; :class:`teal.solvers.pdhg.plain.PlainEngine` says what it computes.

    Memory: 12 bytes a path and lane for the iteration in float32 (24 in float64), 24 for looks; 12 a demand
    and lane.
    """

    def __init__(self, problem: Problem, start: PdhgState | None, dtype: torch.dtype) -> None:
        self._problem = problem = problem.to(torch.float64)
        packed = problem.paths.packed
        self._balanced = problem.objective.is_balanced
        width = next(width for width in LANES if width >= problem.batch)
        self._lanes = (0,) * width
        self._scans = kernels.Scans(*packed.arrays, packed.blocks(_WORK, _BLOCKS), packed.widest)
        self._operations = 4 * width * (len(packed.above) + packed.num_paths)  # a node or path takes a few
        blocks, links, real = len(self._scans.blocks) - 1, packed.num_links, _NUMPY[dtype]
        self._loads, self._asked = np.zeros((2, blocks, links * width))
        self._sums = np.zeros((blocks, width))
        self._capacity = self._rows(problem.capacity)
        self._cost = self._rows(problem.link_cost.expand(problem.batch, -1))
        worth = problem.demand_value.numpy()
        self._worth = worth[:1] if len(worth) and (worth == worth[0]).all() else worth
        program, omega = self._measure(real)
        self._program = program
        shape = packed.num_paths * width
        self._primal = kernels.Primal(*(np.zeros(shape, real) for _ in range(3)))
        self._dual = kernels.Dual(*(np.zeros(links * width) for _ in range(6)))
        self._control = kernels.Control(omega, omega.copy(), *(np.zeros(width) for _ in range(6)))
        self._control.first_error[:] = -1
        self._scratch = kernels.Scratch(
            np.zeros(links * width, real),
            np.zeros(4 * width, real),
            np.zeros(width, real),
            np.zeros((blocks, links * width), real),
            np.zeros((blocks, 3 * width), real),
        )
        self._flows, self._asks = np.zeros((2, shape))
        self._best_flows: Array | None = None
        self._best_prices = torch.zeros_like(problem.capacity)
        self._start(start)
        self._compile()

    def _compile(self) -> None:
        """Load or compile what comes later, over no sources, so that no clock of an iteration runs meanwhile."""
        nothing = self._scans._replace(blocks=self._scans.blocks[:1])
        kernels.iterate(
            0, self._scans, self._program, self._primal, self._dual, self._control, self._scratch, self._lanes,
            self._reach_lanes,
        )  # fmt: skip
        looks.share(
            nothing, self._rate, self._worth, self._cost, self._capacity, True, True, self._flows, self._asks,
            self._loads, self._asked, self._sums, self._lanes,
        )  # fmt: skip

    def _rows(self, values: Tensor) -> Array:
        """(B, n) as rows of lanes, (n * L); the lanes past B repeat the first."""
        width = len(self._lanes)
        filled = values if len(values) == width else torch.cat([values, values[:1].expand(width - len(values), -1)])
        return filled.to(torch.float64).t().contiguous().numpy().reshape(-1)

    def _columns(self, rows: Array) -> Tensor:
        """(n * L) as (B, n)."""
        return torch.from_numpy(rows.reshape(-1, len(self._lanes)).T[: self._problem.batch].astype(np.float64))

    def _measure(self, real: Any) -> tuple[kernels.Program, Array]:
        """The scaled program, and the first primal weights (L,)."""
        problem, width, blocks = self._problem, len(self._lanes), len(self._scans.blocks) - 1
        live = self._capacity > 0
        inverse = np.where(live, 1 / np.where(live, self._capacity, 1), 0.0)
        cost = np.where(live, self._cost, kernels.DEAD)
        demand = np.zeros((problem.paths.num_demands, width))
        demand[:, : problem.batch] = problem.demand.numpy().T
        alike = bool((problem.capacity == problem.capacity[:1]).all())
        reach_lanes = (0,) if alike else self._lanes
        reach = np.empty(len(demand) * len(reach_lanes))
        rate = np.empty(demand.size)
        through, trial = np.zeros((2, blocks, live.size))
        sums = np.zeros((blocks, width))
        with threads_for(self._operations):
            looks.measure(
                self._scans, demand.reshape(-1), inverse, cost, self._worth, self._balanced, reach, rate, through,
                trial, sums, self._lanes, reach_lanes,
            )  # fmt: skip
        self._reach_lanes, self._rate = reach_lanes, rate
        through, trial = through.sum(0) * inverse, trial.sum(0)
        rates = rate.reshape(-1, width)
        totals, efforts = rates.sum(0), (rates * reach.reshape(len(rates), -1)).sum(0)
        scale = (trial * inverse).reshape(-1, width).max(0) if self._balanced else sums.sum(0)
        scale = self._scale = np.where(scale > 0, scale, 1.0)
        per_load = inverse
        mean_value: Tensor | None = None
        if self._balanced:
            through, efforts = through / np.tile(scale, live.size // width), efforts / scale
            per_load = inverse / np.tile(scale, live.size // width)
        else:
            mean_value = torch.from_numpy(1 / np.where(totals > 0, totals, 1.0))[:, None]  # S / total, over S
        capacity, used = (torch.from_numpy(a.reshape(-1, width).T.copy()) for a in (self._capacity, trial))
        guess = price_guess(capacity, used, mean_value)
        omega = first_omega(torch.from_numpy(through.reshape(-1, width).T.copy()), guess, torch.from_numpy(efforts))
        program = kernels.Program(
            demand=rate.astype(real),
            reach=reach.astype(real),
            worth=self._worth.astype(real),
            cost=self._cost / np.tile(scale, live.size // width),
            inverse=inverse,
            per_load=per_load,
            live=live.astype(np.float64),
            through=np.where(through > 0, through, 1e-30),
            unit=1 / scale,
            balanced=self._balanced,
        )
        return program, omega.numpy().copy()

    def _start(self, state: PdhgState | None) -> None:
        width, dual, links = len(self._lanes), self._dual, self._problem.topology.num_links
        if state is not None:
            splits = np.ascontiguousarray(state.splits.numpy())
            looks.pack_splits(self._scans, splits, self._primal.offer, self._lanes)
            prices = self._rows(state.prices.to(torch.float64).clamp(min=0))
            dual.offer[:] = prices * self._capacity
            if not self._balanced:
                dual.offer[:] *= np.tile(self._program.unit, links)
        if self._balanced:
            rows = dual.offer.reshape(links, width)
            blank = rows.sum(0) <= 0
            rows[:, blank] = self._program.live.reshape(links, width)[:, blank]
            rows /= np.maximum(rows.sum(0), 1e-300)  # all links may have failed
        # With splits in parts of at most 1, where paths are left.
        self._look_loads(settle=state is not None or self._balanced)
        self._looked = True
        dual.offer_load[:] = self._load_now * self._program.per_load
        self._started = False
        dual.point[:], dual.anchor[:] = dual.offer, dual.offer
        dual.point_load[:], dual.anchor_load[:] = dual.offer_load, dual.offer_load

    def advance(self, count: int) -> Tensor:
        """See Engine."""
        if not self._started:  # a look at the start may have been all
            self._primal.point[:], self._primal.anchor[:] = self._primal.offer, self._primal.offer
            self._started = True
        with threads_for(self._operations):
            kernels.iterate(
                count, self._scans, self._program, self._primal, self._dual, self._control, self._scratch,
                self._lanes, self._reach_lanes,
            )  # fmt: skip
        self._looked = False
        return self._rows_of(self._control.bound)

    def _rows_of(self, lanes: Array) -> Tensor:
        return torch.from_numpy(lanes[: self._problem.batch].copy())

    def _prices(self) -> Array:
        """(E * L) the last iteration's, value per Gbit/s."""
        prices = self._dual.offer * self._program.inverse
        return prices if self._balanced else prices * np.tile(self._scale, len(prices) // len(self._scale))

    def _look_loads(self, *, settle: bool = False) -> None:
        """Bound, flows and loads of what the last iteration offers."""
        prices = np.where(self._program.live > 0, self._prices() + self._cost, kernels.DEAD)
        worth = np.zeros(1) if self._balanced else self._worth
        with threads_for(self._operations):
            looks.certify(
                self._scans, self._rate, worth, prices, self._balanced, settle, self._primal.offer, self._flows,
                self._loads, self._sums, self._lanes,
            )  # fmt: skip
        self._load_now = self._loads.sum(0)

    def certify(self) -> Tensor:
        """See Engine."""
        if not self._looked:
            self._look_loads()
        self._looked = False  # what a look does to the flows
        priced = (self._prices() * self._capacity).reshape(-1, len(self._lanes)).sum(0)
        profit = self._sums.sum(0)
        if self._balanced:
            return self._rows_of(np.where(priced > 0, -profit / np.where(priced > 0, priced, 1), 0.0))
        return self._rows_of(priced + profit)

    def look(self, refill: int = 0) -> tuple[Tensor, Tensor]:
        """See Engine."""
        bound = self.certify()
        live, width = self._program.live > 0, len(self._lanes)
        if self._balanced:
            used = np.where(live, self._load_now, 0) * self._program.inverse
            return self._rows_of(used.reshape(-1, width).max(0)), bound
        crowding, left = self._load_now * self._program.inverse, np.maximum(self._capacity - self._load_now, 0)
        for again in range(refill + 1):
            with threads_for(self._operations):
                looks.share(
                    self._scans, self._rate, self._worth, crowding, left, again == 0, again == refill, self._flows,
                    self._asks, self._loads, self._asked, self._sums, self._lanes,
                )  # fmt: skip
            self._load_now, asked = self._loads.sum(0), self._asked.sum(0)
            had = np.maximum(self._capacity - self._load_now, 0)
            crowding = np.where(asked > 0, asked / np.maximum(had, 1e-300), 0.0)
            left = np.maximum(had - asked, 0)
        spent = (self._cost * self._load_now).reshape(-1, width).sum(0)
        return self._rows_of(self._sums.sum(0) - spent), bound

    def keep(self, allocations: Tensor, prices: Tensor) -> None:
        """See Engine."""
        rows = prices.nonzero()[:, 0]
        self._best_prices[rows] = self._columns(self._prices())[rows]
        if self._best_flows is None:
            self._best_flows, self._flows = self._flows, np.empty_like(self._flows)
        elif bool(allocations.all()):
            self._best_flows, self._flows = self._flows, self._best_flows
        else:
            width = len(self._lanes)
            for row in allocations.nonzero()[:, 0].tolist():
                self._best_flows[row::width] = self._flows[row::width]

    def best(self) -> tuple[Tensor, Tensor]:
        """See Engine."""
        if self._best_flows is None:
            raise RuntimeError("nothing was kept")
        return self._unpack(self._best_flows, self._problem.demand.numpy()), self._best_prices

    def state(self) -> PdhgState:
        """See Engine."""
        nothing = np.zeros((self._problem.batch, 0))
        splits = self._unpack(self._primal.offer, nothing)
        return PdhgState(splits, self._columns(self._prices()))

    def _unpack(self, rows: Array, demand: Array) -> Tensor:
        splits = np.empty((self._problem.batch, *self._problem.paths.leaf.shape))
        looks.unpack_splits(self._scans, rows, demand, splits, self._lanes)
        return torch.from_numpy(splits)


_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}
