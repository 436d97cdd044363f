"""Priority classes: the flow of each class, and a certified bound on it from any link prices.

With x[d, k] the flow of demand d on path k, u[e] the capacity of link e, and V_j the flow of class
j in an allocation, the program of class c is

    P_c(V) = max sum of x over class c  s.t.  load[e] <= u[e],  sum_k x[d, k] <= demand[d],
             sum of x over class j >= V_j for every higher class j;

the flows of higher classes may be rerouted as long as their sum stays. An allocation is
lexicographically optimal if V_c = P_c(V) for every class c. For prices p[e] >= 0, with price(d) the
least sum of p along a live path of demand d,

    P_c(V) <= sum_e u[e] p[e] + sum over d in c of demand[d] max(0, 1 - price(d))
              - sum over j < c of Cost_j(V_j),

    Cost_j(V) = min sum over d in j of price(d) f[d]  s.t.  sum f = V, 0 <= f[d] <= demand[d],

the least cost of carrying V Gbit/s of class j at these prices: the demands with the cheapest paths
first. Proof: the loads of class c and of the higher classes cost at most the value of all capacity,
and the load of class j at least Cost_j(V_j). Entry points: :func:`priority_problem`,
:func:`class_certificates`.
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
from teal.problem.part_certificates import PartCertificate
from teal.problem.problem import Problem
from teal.problem.program import Program
from teal.problem.sets import Capped
from teal.runtime.arrays import AnyArray
from teal.runtime.shapes import Float

# Relative rounding of the sums in a bound in float64; it is added to the bound.
_SUM_ROUNDING = 1e-13
# Share of a class's demand up to which a bound counts as 0: nothing of the class can be carried.
_NO_FLOW_SHARE = 1e-12
# The cost of uncarried demands is subtracted from the cost of all demand up to this part of it; a
# larger one would lose digits, and the carried demands are summed instead.
_MAX_SAVED_SHARE = 0.5
# Largest number of halvings of the price threshold in the search for the most expensive demands.
_PRICE_HALVINGS = 60


@dataclasses.dataclass(frozen=True, eq=False)
class ClassCertificates:
    """Flow of C priority classes in B matrices, with certified bounds.

    Attributes:
        names: names of the classes, the highest priority first.
        demand: (B, C) total demand of each class, Gbit/s.
        value: (B, C) carried flow, Gbit/s.
        bound: (B, C) certified bound on the flow of the class while higher classes keep theirs, at
            least the value, Gbit/s.
    """

    names: tuple[str, ...]
    demand: Float[Tensor, "B C"]
    value: Float[Tensor, "B C"]
    bound: Float[Tensor, "B C"]
    part_kind: ClassVar[str] = "class"
    parts_key: ClassVar[str] = "classes"

    @classmethod
    def of_bounds(
        cls, names: tuple[str, ...], demand: Tensor, value: Tensor, bounds: Sequence[Tensor]
    ) -> ClassCertificates:
        """Build the figures from the bound of each class; a bound below the value is raised to it.

        Args:
            names: names of the C classes, the highest priority first.
            demand: (B, C) total demand of each class, Gbit/s.
            value: (B, C) carried flow of each class, Gbit/s.
            bounds: bound of each class, (B,) Gbit/s.
        """
        return cls(names, demand, value, torch.maximum(torch.stack(list(bounds), 1), value))

    def rows(self, rows: Tensor) -> ClassCertificates:
        """Return the figures of some of the matrices, by their indices."""
        return ClassCertificates(self.names, self.demand[rows], self.value[rows], self.bound[rows])

    def of_matrix(self, row: int) -> tuple[PartCertificate, ...]:
        """Return the certificate of each class of one matrix: demand, flow, bound and gap."""
        figures = (self.demand, self.value, self.bound, self.gap)
        return tuple(
            PartCertificate(name, *numbers)
            for name, *numbers in zip(
                self.names, *(figure[row].tolist() for figure in figures), strict=True
            )
        )

    def counts(self, row: int) -> dict[str, int]:
        """Return {}, since there are no counts of demands by class."""
        return {}

    def headline(self, row: int) -> str:
        """Return "", since the certificates of classes need no sentence above them."""
        return ""

    @property
    def gap(self) -> Float[Tensor, "B C"]:
        """Relative gap of each class, (B, C): (bound - value) / bound; 0 if the bound is 0 up to
        rounding.
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
    """Build a problem of priority classes.

    Args:
        topology: the network.
        paths: candidate paths of D pairs.
        demand: (B, D) or (D,) Gbit/s of each class by its name, the highest priority first.
        latency_limit_ms: largest latency of a path, by class; classes without one may use all
            paths.
        options: capacity, device, dtype and backend of :meth:`teal.Problem.create`.

    Raises:
        InputError: demands of different shapes, an invalid rate, paths of another network, or a
            limit of an unknown class.
    """
    # Demands of all classes have one shape.
    class_demands = [
        np.atleast_2d(np.asarray(class_demand, dtype=np.float64))
        for class_demand in demand.values()
    ]
    for name, class_demand in zip(demand, class_demands, strict=True):
        expected = (len(class_demands[0]), paths.num_demands)
        if class_demand.shape != expected:
            raise InputError(
                "problem",
                f"demand[{name!r}]",
                f"rates of shape {expected}",
                class_demand.shape,
            )
    # Demands class by class, each with the paths within its latency limit.
    classes = DemandClasses.of_equal_size(demand, paths.num_demands)
    classed_paths = class_paths(
        paths, topology, np.tile(paths.pairs, (len(class_demands), 1)), classes, latency_limit_ms
    )
    objective = Objective(ObjectiveName.PRIORITY)
    return Problem.create(
        topology,
        classed_paths,
        objective,
        np.concatenate(class_demands, 1),
        classes=classes,
        **options,
    )


def upper_classes(problem: Problem, count: int) -> Problem:
    """Return the problem with the demands of the ``count`` highest classes only."""
    if problem.classes is None or count == len(problem.classes):
        return problem
    num_demands = int(problem.classes.ptr[count])
    return dataclasses.replace(
        problem.first_demands(num_demands), classes=problem.classes.upper(count)
    )


def class_certificates(
    problem: Problem, splits: Tensor, prices: Tensor | None
) -> ClassCertificates:
    """Return flow and certified bound of each class, in float64.

    Args:
        problem: problem with C classes.
        splits: (B, D, K) share of each demand on each path.
        prices: (B, C, E) dual prices of the program of each class, or (B, E) for all classes; None
            for no prices, where the bounds are the routable demands.
    """
    problem = problem.to(torch.float64)
    assert problem.classes is not None
    num_classes = len(problem.classes)
    demand_flow = problem.flows(splits.to(problem.demand)).sum(-1)
    demand = by_class(problem, problem.demand)
    value = by_class(problem, demand_flow)
    bounds = []
    for class_index in range(num_classes):
        class_prices = (
            None if prices is None else prices if prices.ndim == 2 else prices[:, class_index]
        )
        # Lower classes carry nothing in the program of a class.  Under side conditions they stay in
        # the problem, since a condition may read all demands.
        upper_problem = problem if problem.conditions else upper_classes(problem, class_index + 1)
        bounds.append(class_bound(upper_problem, class_index, value[:, :class_index], class_prices))
    return ClassCertificates.of_bounds(problem.classes.names, demand, value, bounds)


def by_class(problem: Problem, demand_values: Tensor) -> Tensor:
    """Return the sums (B, C) of demand values (B, D) over the demands of each class."""
    assert problem.classes is not None
    return torch.stack([demand_values[:, rows].sum(1) for rows in problem.classes.blocks], 1)


def class_bound(
    problem: Problem, class_index: int, guaranteed_flow: Tensor, prices: Tensor | None
) -> Tensor:
    """Return the bound (B,) on the flow of one class, at most its routable demand.

    For link prices p: sum of capacity * p + sum over the class of demand * max(0, 1 - path price),
    less the smallest cost of carrying the flow of each higher class.

    Args:
        problem: problem of this class, all higher and possibly lower classes, in float64.
        class_index: index of the class.
        guaranteed_flow: (B, class_index) flow of each higher class, Gbit/s.
        prices: (B, E), value of one Gbit/s of this class for each Gbit/s of capacity; None for
            none.
    """
    assert problem.classes is not None
    program = problem.rewritten.program
    blocks = problem.classes.blocks[: class_index + 1]
    if prices is None:
        return program.routable_demand[:, blocks[-1]].sum(1)

    # Rates (B, n) and prices (B, n) of the demands of each class, from column prices (B, D, J).
    def class_parts(column_price: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        offered_rate, price = offers(program, column_price)
        return [offered_rate[:, rows].flatten(1) for rows in blocks], [
            price[:, rows].flatten(1) for rows in blocks
        ]

    # Prices of rows that conditions have added minimise the bound.
    prices = program.with_added_prices(
        finite_prices(prices),
        lambda row_value, price: _class_terms(row_value, *class_parts(price), guaranteed_flow),
    )
    return bound_of_class(
        (program.limit * prices).sum(1),
        *class_parts(program.columns.path_sum(prices)),
        guaranteed_flow,
    )


def offers(program: Program, price: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rates that carry all of each demand at the lowest price, by column from the
    cheapest on, and the prices of these columns.

    Columns with an upper bound are filled one after the other.  Without such bounds the cheapest
    column alone carries the demand, and the results have J = 1.

    Args:
        program: program with one value per demand.
        price: (B, D, J) price of each column.

    Returns:
        rates (B, D, J) in Gbit/s, and prices (B, D, J).
    """
    if not isinstance(program.demand_set, Capped):
        min_price = torch.where(program.live, price, torch.inf).amin(-1, keepdim=True)
        is_routable = min_price.isfinite()
        return torch.where(is_routable, program.demand[..., None], 0), torch.where(
            is_routable, min_price, 0
        )
    order, filled_share = program.demand_set.knapsack(torch.where(program.live, -price, -torch.inf))
    return program.flows(filled_share), torch.where(filled_share > 0, price.gather(-1, order), 0)


def bound_of_class(
    capacity_value: Tensor,
    demand: Sequence[Tensor],
    min_path_price: Sequence[Tensor],
    guaranteed_flow: Tensor,
) -> Tensor:
    """Return the bound (B,) on the flow of the last of C classes, at most its demand.

    Args:
        capacity_value: (B,) sum over the links of capacity times price.
        demand: for each class (B, n) Gbit/s, 0 without a live path.
        min_path_price: for each class (B, n) price of the cheapest path.
        guaranteed_flow: (B, at least C - 1) flow of each higher class, Gbit/s.
    """
    bound = _class_terms(capacity_value, demand, min_path_price, guaranteed_flow)
    trivial_bound = demand[-1].sum(1)
    return torch.where(bound.isfinite(), torch.minimum(bound, trivial_bound), trivial_bound).clamp(
        min=0
    )


def _class_terms(
    capacity_value: Tensor,
    demand: Sequence[Tensor],
    min_path_price: Sequence[Tensor],
    guaranteed_flow: Tensor,
) -> Tensor:
    """Return the bound (B,) on the flow of the last of C classes, without its limit to the demand.

    It is capacity value + sum of demand * max(0, 1 - path price) - cost of carrying the higher
    classes, and convex in the prices.

    Args:
        capacity_value: (B,) sum over the links of capacity times price.
        demand: for each class (B, n) Gbit/s, 0 without a live path.
        min_path_price: for each class (B, n) price of the cheapest path.
        guaranteed_flow: (B, at least C - 1) flow of each higher class, Gbit/s.
    """
    bound = capacity_value + (demand[-1] * (1 - min_path_price[-1]).clamp(min=0)).sum(1)
    # Sum of the absolute terms, to which rounding is relative.
    magnitude = bound
    for class_index in range(len(demand) - 1):
        cost = _carrying_cost(
            demand[class_index], min_path_price[class_index], guaranteed_flow[:, class_index]
        )
        bound = bound - cost
        magnitude = magnitude + cost
    return bound + _SUM_ROUNDING * magnitude


def _carrying_cost(demand: Tensor, price: Tensor, guaranteed_flow: Tensor) -> Tensor:
    """Return the smallest cost (B,) of carrying a given flow of a class.

    It is the cost of all demand less that of the most expensive demands, which need not be carried.
    Where these dominate, the difference would lose digits; the cheapest demands are summed instead.

    Args:
        demand: (B, D) Gbit/s of one class.
        price: (B, D) price of the cheapest path.
        guaranteed_flow: (B,) flow to carry, Gbit/s.
    """
    spare_volume = (demand.sum(1) - guaranteed_flow).clamp(min=0)
    total_cost = (demand * price).sum(1)
    costs = []
    for b, full_cost in enumerate(total_cost):
        saved_cost = _most_expensive_cost(demand[b], price[b], float(spare_volume[b]))
        is_exact = bool(saved_cost <= _MAX_SAVED_SHARE * full_cost)
        costs.append(
            full_cost - saved_cost
            if is_exact
            else _cheapest_cost(demand[b], price[b], guaranteed_flow[b])
        )
    return torch.stack(costs)


def _cheapest_cost(demand: Tensor, price: Tensor, volume: Tensor) -> Tensor:
    """Return the cost () of the cheapest ``volume`` Gbit/s of demands (D,) at prices (D,)."""
    sorted_price, order = price.sort()
    sorted_demand = demand[order]
    preceding_volume = sorted_demand.cumsum(0) - sorted_demand
    return (
        sorted_price * torch.minimum(sorted_demand, (volume - preceding_volume).clamp(min=0))
    ).sum()


def _most_expensive_cost(demand: Tensor, price: Tensor, volume: float) -> Tensor:
    """Return the cost () of the most expensive ``volume`` Gbit/s of demands.

    Only the few demands with prices near the largest are sorted.

    Args:
        demand: (D,) Gbit/s.
        price: (D,) price of the cheapest path.
        volume: Gbit/s.
    """
    if volume <= 0 or not len(demand):
        return demand.new_zeros(())
    # Lower a price threshold until the demands above it have the volume.
    threshold = float(price.detach().max())
    for _ in range(_PRICE_HALVINGS):
        threshold /= 2
        is_candidate = price > threshold
        if float(demand[is_candidate].sum()) >= volume:
            break
    else:
        # The demands above the last threshold lack the volume: take all demands.
        is_candidate = torch.ones_like(price, dtype=torch.bool)
    sorted_price, order = price[is_candidate].sort(descending=True)
    sorted_demand = demand[is_candidate][order]
    preceding_volume = sorted_demand.cumsum(0) - sorted_demand
    return (
        sorted_price * torch.minimum(sorted_demand, (volume - preceding_volume).clamp(min=0))
    ).sum()
