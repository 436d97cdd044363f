r"""Priority classes: the value of each class, and a certified bound on it, from any link prices.

With V_j the flow of class j in an allocation, the program of class c is

    P_c(V) = max sum of x over class c  s.t.  load[e] <= c[e],  sum_k x[d, k] <= demand[d],
             sum of x over class j >= V_j for every higher class j;

the flows of higher classes may be rerouted as long as their sum stays.  An allocation is
lexicographically optimal if V_c = P_c(V) for every class c.  For prices p[e] >= 0, with price(d)
the least sum of p along a live path of demand d,

    P_c(V) <= sum_e c[e] p[e] + sum over d in c of demand[d] max(0, 1 - price(d))
              - sum over j < c of Cost_j(V_j),

    Cost_j(V) = min sum over d in j of price(d) f[d]  s.t.  sum f = V, 0 <= f[d] <= demand[d],

what carrying V Gbit/s of class j costs at least at these prices: the demands with the cheapest
paths first.  Proof: the loads of class c and of the higher classes cost at most the value of all
capacity, and those of class j at least Cost_j(V_j).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from teal.errors import InputError
from teal.network import DemandClasses, PathSet, Topology
from teal.network.classes import class_paths
from teal.objectives import Objective, ObjectiveName
from teal.problem.bounds import finite_prices
from teal.problem.lines import Line
from teal.problem.problem import Problem
from teal.problem.program import Program
from teal.problem.sets import Capped
from teal.runtime.arrays import AnyArray
from teal.runtime.shapes import Float

# Share of a bound's largest terms by which their sums may be wrong in float64; it is added to the
# bound.
_SUM_ROUNDING = 1e-13
# share of a class's demand up to which a bound counts as 0: nothing of the class can be carried
_NO_FLOW_SHARE = 1e-12
# share of the cost of a class's whole demand up to which what need not be carried is subtracted
_MAX_SAVED = 0.5
_PRICE_HALVINGS = (
    60  # halvings of a price in the search for the dearest demands; the last one takes all of them
)


@dataclasses.dataclass(frozen=True, eq=False)
class ClassFigures:
    """Figures of C classes in B matrices.

    Attributes:
        names: names of the classes, the highest priority first.
        demand: (B, C) Gbit/s.
        value: (B, C) Gbit/s that are carried.
        bound: (B, C) certified bound on P_c(V), at least the value, which an allocation reaches.
    """

    names: tuple[str, ...]
    demand: Float[Tensor, "B C"]
    value: Float[Tensor, "B C"]
    bound: Float[Tensor, "B C"]
    part: ClassVar[str] = "class"
    parts: ClassVar[str] = "classes"

    @classmethod
    def of_bounds(
        cls, names: tuple[str, ...], demand: Tensor, value: Tensor, bounds: Sequence[Tensor]
    ) -> ClassFigures:
        """Figures with the bound (B,) of each class; where rounding puts it below the value, the
        value is the bound.
        """
        return cls(names, demand, value, torch.maximum(torch.stack(list(bounds), 1), value))

    def rows(self, rows: Tensor) -> ClassFigures:
        """The figures of some of the matrices, by their numbers."""
        return ClassFigures(self.names, self.demand[rows], self.value[rows], self.bound[rows])

    def lines(self, row: int) -> tuple[Line, ...]:
        """A line for each class (:meth:`Lines.lines`)."""
        figures = (self.demand, self.value, self.bound, self.gap)
        return tuple(
            Line(name, *numbers)
            for name, *numbers in zip(
                self.names, *(figure[row].tolist() for figure in figures), strict=True
            )
        )

    def counts(self, row: int) -> dict[str, int]:
        """None: classes have no counts (:meth:`Lines.counts`)."""
        return {}

    def headline(self, row: int) -> str:
        """None: classes have no sentence of their own (:meth:`Lines.headline`)."""
        return ""

    @property
    def gap(self) -> Float[Tensor, "B C"]:
        """(bound - value) / bound of each class, at least 0; 0 where the bound is only rounding of
        the demand.
        """
        return torch.where(
            self.bound > _NO_FLOW_SHARE * self.demand, (self.bound - self.value) / self.bound, 0
        )


def priority_problem(
    topology: Topology,
    paths: PathSet,
    demand: Mapping[str, AnyArray],
    *,
    latency_limit_ms: Mapping[str, float] | None = None,
    **options: Any,
) -> Problem:
    """A problem of priority classes.

    Args:
        topology: the network.
        paths: candidate paths of D pairs.
        demand: (B, D) or (D,) Gbit/s of each class by its name, the highest priority first.
        latency_limit_ms: largest latency of a path, by class; classes without one may use all
            paths.
        options: capacity, device, dtype and backend, as in :meth:`teal.Problem.create`.

    Raises:
        InputError: see :meth:`teal.Problem.create`; a limit of an unknown class.
    """
    parts = [np.atleast_2d(np.asarray(part, dtype=np.float64)) for part in demand.values()]
    for name, part in zip(demand, parts, strict=True):
        expected = (len(parts[0]), paths.num_demands)
        if part.shape != expected:
            raise InputError(
                "problem", f"demand[{name!r}]", f"{expected[0]} x {expected[1]} rates", part.shape
            )
    classes = DemandClasses.of_equal_size(demand, paths.num_demands)
    of_classes = class_paths(
        paths, topology, np.tile(paths.pairs, (len(parts), 1)), classes, latency_limit_ms
    )
    objective = Objective(ObjectiveName.PRIORITY)
    return Problem.create(
        topology, of_classes, objective, np.concatenate(parts, 1), classes=classes, **options
    )


def upper_classes(problem: Problem, count: int) -> Problem:
    """The problem of the demands of the ``count`` highest classes."""
    if problem.classes is None or count == len(problem.classes):
        return problem
    demands = int(problem.classes.ptr[count])
    return dataclasses.replace(problem.first_demands(demands), classes=problem.classes.upper(count))


def class_figures(problem: Problem, splits: Tensor, prices: Tensor | None) -> ClassFigures:
    """The figures of an allocation, in float64.

    Args:
        problem: with classes.
        splits: (B, D, K).
        prices: (B, C, E) of the program of each class, or (B, E) that serve for all; None for no
            prices: the bounds are then the routable demands.
    """
    problem = problem.to(torch.float64)
    assert problem.classes is not None
    count = len(problem.classes)
    carried = problem.flows(splits.to(problem.demand)).sum(-1)
    demand, value = by_class(problem, problem.demand), by_class(problem, carried)
    bounds = []
    for number in range(count):
        of_class = None if prices is None else prices if prices.ndim == 2 else prices[:, number]
        # A condition may read all demands, so that none is cut off under conditions: lower classes
        # just carry nothing.
        upper = problem if problem.conditions else upper_classes(problem, number + 1)
        bounds.append(class_bound(upper, number, value[:, :number], of_class))
    return ClassFigures.of_bounds(problem.classes.names, demand, value, bounds)


def by_class(problem: Problem, of_demand: Tensor) -> Tensor:
    """(B, C) sums of (B, D) over the demands of each class."""
    assert problem.classes is not None
    return torch.stack([of_demand[:, rows].sum(1) for rows in problem.classes.blocks], 1)


def class_bound(problem: Problem, number: int, promised: Tensor, prices: Tensor | None) -> Tensor:
    """(B,) the bound of the module on the flow of class ``number``; at most its routable demand.

    Args:
        problem: problem of this class, all higher ones and perhaps lower ones, in float64.
        number: number of the class.
        promised: (B, C - 1) V of the higher classes.
        prices: (B, E), value of one Gbit/s of this class for each Gbit/s of capacity; None for
            none.
    """
    assert problem.classes is not None
    program, blocks = problem.rewritten.program, problem.classes.blocks[: number + 1]
    if prices is None:
        return program.routable_demand[:, blocks[-1]].sum(1)

    def parts(column_price: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        offered, price = offers(program, column_price)
        return [offered[:, rows].flatten(1) for rows in blocks], [
            price[:, rows].flatten(1) for rows in blocks
        ]

    prices = program.with_added_prices(
        finite_prices(prices),
        lambda row_value, price: _class_terms(row_value, *parts(price), promised),
    )
    return bound_of_class(
        (program.limit * prices).sum(1), *parts(program.columns.path_sum(prices)), promised
    )


def offers(program: Program, price: Tensor) -> tuple[Tensor, Tensor]:
    """(B, D, J) Gbit/s that demands can carry on columns, the cheapest columns first, and (B, D, J)
    their prices.

    A demand whose columns may all carry the whole of it offers its cheapest column alone, J = 1.

    Args:
        program: program whose demands have one value each.
        price: (B, D, J) of each column.
    """
    if not isinstance(program.demand_set, Capped):
        least = torch.where(program.live, price, torch.inf).amin(-1, keepdim=True)
        is_routable = least.isfinite()
        return torch.where(is_routable, program.demand[..., None], 0), torch.where(
            is_routable, least, 0
        )
    order, share = program.demand_set.knapsack(torch.where(program.live, -price, -torch.inf))
    return program.flows(share), torch.where(share > 0, price.gather(-1, order), 0)


def bound_of_class(
    capacity_value: Tensor, demand: Sequence[Tensor], least: Sequence[Tensor], promised: Tensor
) -> Tensor:
    """(B,) the bound of the module on the flow of the last of some classes, from what prices make
    of them.

    Args:
        capacity_value: (B,) of all links at these prices.
        demand: for each class (B, n) Gbit/s, 0 without a live path.
        least: for each class (B, n) price of the cheapest path.
        promised: (B, at least C - 1) V of the higher classes.
    """
    bound, trivial = _class_terms(capacity_value, demand, least, promised), demand[-1].sum(1)
    return torch.where(bound.isfinite(), torch.minimum(bound, trivial), trivial).clamp(min=0)


def _class_terms(
    capacity_value: Tensor, demand: Sequence[Tensor], least: Sequence[Tensor], promised: Tensor
) -> Tensor:
    """(B,) the sum of the module, convex in the prices; arguments as in :func:`bound_of_class`."""
    bound = capacity_value + (demand[-1] * (1 - least[-1]).clamp(min=0)).sum(1)
    magnitude = bound
    for number in range(len(demand) - 1):
        cost = _cost(demand[number], least[number], promised[:, number])
        bound, magnitude = bound - cost, magnitude + cost
    return bound + _SUM_ROUNDING * magnitude


def _cost(demand: Tensor, price: Tensor, promised: Tensor) -> Tensor:
    """(B,) Cost_j of the module: all demand at its price, less the dearest demands that need not be
    carried.

    Where these are most of the cost, a difference would lose digits; the cheapest demands are then
    summed.

    Args:
        demand: (B, D) Gbit/s of one class.
        price: (B, D) of the cheapest path.
        promised: (B,) V.
    """
    spare = (demand.sum(1) - promised).clamp(min=0)
    total = (demand * price).sum(1)
    costs = []
    for row, whole in enumerate(total):
        saved = _dearest(demand[row], price[row], float(spare[row]))
        is_exact = bool(saved <= _MAX_SAVED * whole)
        costs.append(
            whole - saved if is_exact else _cheapest(demand[row], price[row], promised[row])
        )
    return torch.stack(costs)


def _cheapest(demand: Tensor, price: Tensor, volume: Tensor) -> Tensor:
    """() the cost of the cheapest ``volume`` Gbit/s."""
    own_price, order = price.sort()
    sorted_demand = demand[order]
    before = sorted_demand.cumsum(0) - sorted_demand
    return (own_price * torch.minimum(sorted_demand, (volume - before).clamp(min=0))).sum()


def _dearest(demand: Tensor, price: Tensor, volume: float) -> Tensor:
    """() the cost of the dearest ``volume`` Gbit/s, found among the few demands whose prices come
    near the largest.
    """
    if volume <= 0 or not len(demand):
        return demand.new_zeros(())
    threshold = float(price.detach().max())
    for _ in range(_PRICE_HALVINGS):
        threshold /= 2
        chosen = price > threshold
        if float(demand[chosen].sum()) >= volume:
            break
    else:
        chosen = torch.ones_like(price, dtype=torch.bool)
    own_price, order = price[chosen].sort(descending=True)
    sorted_demand = demand[chosen][order]
    before = sorted_demand.cumsum(0) - sorted_demand
    return (own_price * torch.minimum(sorted_demand, (volume - before).clamp(min=0))).sum()
