"""Library of dual prices: bounds on the optimum of a matrix from solves of other matrices.

Prices y >= 0 of links bound the optimum of every demand matrix d under all capacities c, by weak
duality (:mod:`teal.problem.bounds`):

- value maximisation:  optimum <= c' y + sum_d demand[d] max(0, max_k (v[d, k] - price(d, k)));
- max_link_utilisation:  optimum >= sum_d demand[d] min_k price(d, k) / c' y.

The demand coefficients depend on the prices alone.  They are computed once for each price
vector, over all candidate paths, those over failed links included: an extreme value over more paths
bounds the optimum, too, though less tightly where a cheap path has failed.  For B matrices and M
price vectors the bounds are then two matrix products, and the tightest one counts.  Measured
traffic visits few dual vertices, so that a few vectors bound many matrices closely
(``docs/figures/price_library.csv``).
"""

from __future__ import annotations

import torch
from torch import Tensor

from teal.network import PathSet
from teal.problem.bounds import dual_bound, from_score, usable_prices
from teal.problem.problem import Problem
from teal.problem.sets import AtMostOne, ExactlyOne

# Default largest number of price vectors.
_SIZE = 64
# Largest number of stored prices and demand coefficients; large networks have fewer vectors.
_MAX_ENTRIES = 8_000_000
_MIN_SIZE = 4
# Prices of paths that are in memory at once.
_MAX_PATH_PRICES = 4_000_000
# Smallest relative gain of a new vector over the library, for its own matrix.
_MIN_GAIN = 1e-4


class PriceLibrary:
    """Dual prices of earlier matrices of one network, objective and path set.

    A full library drops the vector that has not been the tightest one for the longest time.  If
    paths or values change, the demand coefficients are computed again.  Use an object from one
    thread at a time.

    Args:
        size: largest number of price vectors, at least 1; large networks have fewer.
    """

    def __init__(self, size: int = _SIZE) -> None:
        self._max_vectors = max(1, size)
        # For each of M price vectors: its prices (M, E), the coefficient of each demand in its dual
        # bound (M, D), and its last use (M,), by the clock ``_num_uses``.
        self._prices = torch.zeros((0, 0), dtype=torch.float64)
        self._demand_coefficient = torch.zeros((0, 0), dtype=torch.float64)
        self._last_use = torch.zeros(0, dtype=torch.int64)
        self._num_uses = 0
        # Paths, path values and DemandSet.carries_all from which the coefficients were computed.
        self._paths: PathSet | None = None
        self._path_value: Tensor | None = None
        self._carries_all = False

    def __len__(self) -> int:
        """Return the number of price vectors."""
        return len(self._prices)

    @staticmethod
    def accepts(problem: Problem) -> bool:
        """Return whether the library supports a problem: one program that is linear in the flow on
        simple paths, without side conditions.
        """
        on_simplex = problem.price_set.on_simplex
        return (
            isinstance(problem.paths, PathSet)
            and problem.ops.is_over_paths
            and problem.ops.counts_once
            and not problem.conditions
            and problem.steps is None
            and type(problem.demand_set) is (ExactlyOne if on_simplex else AtMostOne)
            and not problem.objective.rules.is_sequence
            and not problem.objective.rules.may_be_infeasible
        )

    def bound(self, problem: Problem) -> Tensor:
        """Return the tightest bound (B,) on the optimum of each matrix, in float64, on the CPU.

        For an empty library it is the trivial one: infinity, 1 for max_concurrent_flow, or 0 for a
        minimum.

        Args:
            problem: B matrices that :meth:`accepts` allows.

        Raises:
            ValueError: the problem has another number of links than the price vectors.
        """
        score, _ = self._best_vectors(problem)
        return from_score(problem, score)

    def prices(self, problem: Problem) -> Tensor | None:
        """Return the prices (B, E) with the tightest bound on each matrix, in float64, on the CPU;
        None if the library is empty.

        Args:
            problem: B matrices that :meth:`accepts` allows.

        Raises:
            ValueError: the problem has another number of links than the price vectors.
        """
        if not len(self):
            return None
        _, best = self._best_vectors(problem)
        return self._prices[best]

    def add(self, problem: Problem, prices: Tensor, bound: Tensor | None = None) -> int:
        """Add the prices of matrices that the library bounds less tightly; return how many were
        added.

        Args:
            problem: B matrices that :meth:`accepts` allows.
            prices: (B, E) dual prices of each matrix, value per Gbit/s.  Negative, infinite and NaN
                entries count as 0.
            bound: (B,) bound of these prices on the optimum of each matrix; None to compute it.

        Raises:
            ValueError: the problem has another number of links than the price vectors.
        """
        prices = prices.detach()
        own_bound = dual_bound(problem, prices) if bound is None else bound
        own_bound = own_bound.detach().to(torch.float64).cpu()
        # Only rows that the library bounds less tightly, (n,), may have a vector that it needs.
        rows = torch.nonzero(self._is_tighter(problem, own_bound))[:, 0]
        if not len(rows):
            return 0
        tighter_rows = problem.rows(rows.to(problem.demand.device))
        price_vectors = usable_prices(
            tighter_rows, prices[rows.to(prices.device)], max_ratio=1.0
        ).cpu()
        coefficients = self._demand_coefficients(problem, price_vectors)
        # The library bounds a row less tightly than its prices do where paths have failed.
        scores = self._scores(tighter_rows, price_vectors, coefficients).diagonal()
        own_bound = from_score(tighter_rows, scores)
        num_added = 0
        is_candidate = torch.ones(len(rows), dtype=torch.bool)
        for _ in range(len(rows)):
            # The largest gain first: its vector may serve other matrices, too.
            is_candidate &= self._is_tighter(tighter_rows, own_bound)
            if not bool(is_candidate.any()):
                break
            gain = problem.objective.rules.sense * (self.bound(tighter_rows) - own_bound)
            row = int(torch.where(is_candidate, gain, -torch.inf).argmax())
            self._append(problem, price_vectors[row], coefficients[row])
            is_candidate[row] = False
            num_added += 1
        return num_added

    def _is_tighter(self, problem: Problem, bound: Tensor) -> Tensor:
        """Return whether bounds (B,) are tighter than those of the library by a relevant part."""
        gain = problem.objective.rules.sense * (self.bound(problem) - bound)
        return bound.isfinite() & (gain > _MIN_GAIN * bound.abs())

    def _append(self, problem: Problem, vector: Tensor, coefficient: Tensor) -> None:
        """Add a price vector (E,) with its demand coefficients (D,); a full library drops old
        ones.
        """
        self._num_uses += 1
        use_time = torch.tensor([self._num_uses])
        if not len(self):
            self._prices = vector[None].clone()
            self._demand_coefficient = coefficient[None].clone()
            self._last_use = use_time
            return
        num_kept = min(len(self), self._capacity(problem) - 1)
        kept_vectors = self._last_use.argsort(descending=True)[:num_kept].sort().values
        self._prices = torch.cat([self._prices[kept_vectors], vector[None]])
        self._demand_coefficient = torch.cat(
            [self._demand_coefficient[kept_vectors], coefficient[None]]
        )
        self._last_use = torch.cat([self._last_use[kept_vectors], use_time])

    def _capacity(self, problem: Problem) -> int:
        """Return the largest number of vectors for networks of this size."""
        entries = max(1, sum(problem.demand.shape[1:]) + problem.capacity.shape[1])
        return min(self._max_vectors, max(_MIN_SIZE, _MAX_ENTRIES // entries))

    def _best_vectors(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """Return the smallest score (B,) of all vectors, and the index (B,) of its vector.

        Args:
            problem: B matrices.
        """
        batch = problem.batch
        if not len(self):
            return torch.full((batch,), torch.inf, dtype=torch.float64), torch.zeros(0).long()
        if self._prices.shape[1] != problem.capacity.shape[1]:
            raise ValueError("the price vectors are those of another network")
        self._update_coefficients(problem)
        best_score, best = self._scores(problem, self._prices, self._demand_coefficient).min(1)
        # Vectors that were the tightest ones are used last.
        self._num_uses += 1
        self._last_use[best.unique()] = self._num_uses
        return best_score, best

    def _scores(self, problem: Problem, vectors: Tensor, coefficients: Tensor) -> Tensor:
        """Return the score (B, M) of each matrix by each price vector; infinite if it is no number.

        Args:
            problem: B matrices.
            vectors: (M, E) prices.
            coefficients: (M, D) coefficient of each demand in the bound of each price vector.
        """
        price_set = problem.price_set
        # Demands without a live path count for no bound.
        may_be_unroutable = problem.demand_set.carries_all or bool((problem.capacity <= 0).any())
        demand = problem.routable_demand if may_be_unroutable else problem.demand
        demand = demand.to(torch.float64).cpu()
        capacity = problem.capacity.to(torch.float64).cpu()
        if not price_set.on_simplex:
            # Capacity above all demand does not bind; it may be infinite.
            capacity = torch.minimum(capacity, demand.sum(1, keepdim=True))
        # (B, M) sums over links, and over demands.
        row_value = capacity @ vectors.T
        demand_value = demand @ coefficients.T
        score = price_set.support(row_value) + price_set.scale(row_value) * demand_value
        return torch.nan_to_num(score, nan=torch.inf, neginf=torch.inf)

    def _update_coefficients(self, problem: Problem) -> None:
        """Compute the demand coefficients again if the paths or their values have changed."""
        value = problem.path_value
        is_same_kind = (
            problem.paths is self._paths and problem.demand_set.carries_all == self._carries_all
        )
        if is_same_kind and self._path_value is not None:
            if value is self._path_value:
                return
            if value.device == self._path_value.device and torch.equal(value, self._path_value):
                return
        self._demand_coefficient = self._demand_coefficients(problem, self._prices)

    def _demand_coefficients(self, problem: Problem, vectors: Tensor) -> Tensor:
        """Return the coefficient (M, D) of each demand in the score of each price vector.

        Args:
            problem: problem with paths and values.
            vectors: (M, E) prices.
        """
        self._paths = problem.paths if isinstance(problem.paths, PathSet) else None
        self._path_value = problem.path_value
        self._carries_all = problem.demand_set.carries_all
        mask = problem.ops.mask
        value = problem.to(torch.float64).path_value
        coefficients = []
        for chunk in vectors.split(max(1, _MAX_PATH_PRICES // max(1, mask.numel()))):
            price = problem.ops.path_sum(chunk.to(problem.capacity.device))
            # The profit of the best path; a demand without paths has none.
            profit = -price if problem.price_set.on_simplex else value - price
            best = torch.where(mask, profit, -torch.inf).amax(-1)
            best = torch.where(mask.any(-1), best, 0.0)
            coefficients.append(problem.demand_set.support_of_best(best).cpu())
        return torch.cat(coefficients)
