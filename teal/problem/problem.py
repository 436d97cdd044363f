"""Allocation problem: B traffic matrices on one network, the input of every scheme.

:attr:`teal.Problem.usable` removes demand and capacity that no allocation can use.  With live paths
k of demand d, bottleneck[d, k] the smallest capacity along a path, and links e, value maximisation
has the same allocations and optimum with

    capacity'[e] = min(capacity[e], sum over d of demand'[d]),
    demand'[d] = min(demand[d], sum over k of bottleneck[d, k]),

which narrows the range of the numbers. Demands are limited only in matrices whose largest demand is
more than 10,000 times the smallest capacity. Other objectives keep all demand and capacity. Main
class: :class:`Problem`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from teal.deprecated import with_old_attributes
from teal.errors import InputError
from teal.network import AnyPaths, DemandClasses, ProblemPaths, Topology
from teal.network.bandwidth_functions import BandwidthFunctions
from teal.network.subset import first_demands
from teal.objectives import CLASS_RATIO, Objective, ObjectiveName
from teal.pathops import PathOps, make_path_ops
from teal.problem.churn import ChurnLimit
from teal.problem.condition import Condition, Rewritten, with_condition
from teal.problem.curves import Concave, Curve
from teal.problem.program import Program, live_columns
from teal.problem.protection import Protection
from teal.problem.sets import (
    AtMostOne,
    Capped,
    DemandSet,
    ExactlyOne,
    NonNegative,
    PriceSet,
    Simplex,
    Stepped,
)
from teal.problem.steps import ValueSteps
from teal.runtime.arrays import AnyArray
from teal.runtime.shapes import Bool, Float


def checked(field: str, values: AnyArray, width: int) -> AnyArray:
    """Validate an array of rates, capacities or weights, and return it unchanged.

    Args:
        field: name of the array in messages.
        values: array with one row for each matrix.
        width: required number of columns.

    Raises:
        InputError: another shape, no matrix, or an entry that is not a finite number >= 0.
    """
    if values.ndim != 2 or values.shape[1] != width:
        raise InputError("problem", field, f"an array of shape (matrices, {width})", values.shape)
    if not len(values):
        raise InputError.invalid("problem", field, "there is no matrix", "give at least one row")
    is_invalid = ~(np.isfinite(values) & (values >= 0))
    if is_invalid.any():
        row, column = np.argwhere(is_invalid)[0]
        raise InputError(
            "problem", f"{field}[{row}, {column}]", "a finite number >= 0", values[row, column]
        )
    return values


def arrays(
    topology: Topology,
    paths: AnyPaths,
    objective: Objective,
    demand: AnyArray | Tensor,
    capacity: AnyArray | None,
    weight: AnyArray | None,
    classes: DemandClasses | None,
) -> tuple[AnyArray, AnyArray, AnyArray | None]:
    """Validate the arrays of a problem, and convert them to NumPy.

    Args:
        topology: network of E links.
        paths: candidate paths of D demands.
        objective: objective of the problem.
        demand: rate of each demand, (B, D) or (D,) Gbit/s.
        capacity: link capacities, (B, E) or (E,) Gbit/s; None for those of the topology.
        weight: weight of each demand, (D,); None for none.
        classes: priority classes of the demands; None for none.

    Returns:
        demand (B, D) and capacity (B, E) in Gbit/s, and weight (D,) or None; under priority the
        weights order the classes.

    Raises:
        InputError: paths of another network, an invalid shape or entry, or priority without
            classes.
    """
    if objective.name == ObjectiveName.PRIORITY:
        if classes is None:
            raise InputError.invalid(
                "priority", "classes", "the demands have no classes", "use priority_problem"
            )
        # A class has CLASS_RATIO times the weight of the next lower one.
        weight = CLASS_RATIO ** (len(classes) - 1.0 - classes.of_demand)
    # Classes and paths must belong to the demands and the network.
    if classes is not None and int(classes.ptr[-1]) != paths.num_demands:
        raise InputError(
            "problem",
            "classes",
            f"classes of {paths.num_demands} demands",
            f"classes of {int(classes.ptr[-1])} demands",
        )
    if not hasattr(paths, "topology_key"):
        raise InputError(
            "problem", "paths", "candidate paths (teal.compute_paths)", type(paths).__name__
        )
    if paths.topology_key != topology.graph_key():
        raise InputError.invalid(
            topology.name,
            "paths",
            "the paths belong to another network",
            "compute them for this one",
        )
    # Demands, capacities and weights as arrays.
    try:
        demand = np.atleast_2d(np.asarray(demand, dtype=np.float64))
    except (TypeError, ValueError):
        expected = "an array of rates, such as TrafficMatrices.read returns"
        raise InputError("problem", "demand", expected, type(demand).__name__) from None
    demand = checked("demand", demand, paths.num_demands)
    capacity = topology.capacity if capacity is None else capacity
    capacity = checked("capacity", np.atleast_2d(capacity), topology.num_links)
    if len(capacity) not in (1, len(demand)):
        raise InputError(
            "problem",
            "capacity",
            f"1 row, or {len(demand)} rows as in demand",
            f"{len(capacity)} rows",
        )
    if weight is not None:
        weight = np.asarray(weight)
        if weight.ndim != 1:
            raise InputError(
                "problem", "weight", f"an array of shape ({paths.num_demands},)", weight.shape
            )
        weight = checked("weight", np.atleast_2d(weight), paths.num_demands)[0]
    return demand, np.broadcast_to(capacity, (len(demand), topology.num_links)).copy(), weight


# Ratio of demand to the smallest capacity above which demands are limited to the capacity of their
# paths. In ordinary networks the limits would change little, and cost a pass over all paths.
_MAX_DEMAND_RATIO = 1e4


def usable_part(
    demand: Tensor,
    capacity: Tensor,
    *,
    carriable_demand: Callable[[], Tensor],
    routable_demand: Callable[[], Tensor],
    all_have_paths: bool,
) -> tuple[Tensor, Tensor]:
    """Return demand (B, D) and capacity (B, E) without the parts that no allocation can use.

    In matrices whose largest demand exceeds 10,000 times the smallest capacity, each demand is
    limited to the sum of its paths' bottlenecks.  Each capacity is limited to the total demand.

    Args:
        demand: (B, D) Gbit/s; returned itself if unchanged.
        capacity: (B, E) Gbit/s.
        carriable_demand: computes (B, D) Gbit/s that the paths of each demand can carry; called
            only if needed.
        routable_demand: computes (B, D) Gbit/s of the demands with a live path; called only if
            needed.
        all_have_paths: whether every demand has a candidate path.
    """
    # Limit extreme demands to the capacity of their paths.
    min_capacity = torch.where(capacity > 0, capacity, torch.inf).amin(1)
    is_extreme = (
        demand.amax(1) > _MAX_DEMAND_RATIO * min_capacity if demand.shape[1] else min_capacity < 0
    )
    if bool(is_extreme.any()):
        demand = torch.where(is_extreme[:, None], torch.minimum(demand, carriable_demand()), demand)
    # Limit capacities to the total demand.
    total_demand = demand.sum(1, keepdim=True)
    # The total of the routable demand is smaller, but costs a pass over all paths: compute it only
    # where capacities are not tiny relative to all demand.
    may_bind = (_MAX_DEMAND_RATIO * capacity > total_demand).any(1, keepdim=True)
    if not (all_have_paths and bool((capacity > 0).all())) and bool(may_bind.any()):
        total_demand = torch.where(
            may_bind, torch.minimum(demand, routable_demand()).sum(1, keepdim=True), total_demand
        )
    # Keep capacities without demand: 0 would mean a failed link.
    return demand, torch.where(total_demand > 0, torch.minimum(capacity, total_demand), capacity)


class Extremes(NamedTuple):
    """Largest and smallest numbers of a problem, by which solvers select formulas and scales.

    Attributes:
        smallest_capacity, largest_capacity: smallest and largest link capacity, Gbit/s.
        smallest_live_capacity: smallest capacity of a link that has not failed, Gbit/s; infinite if
            all have failed.
        least_total: smallest total demand of a matrix, Gbit/s.
        largest_demand: largest demand of any matrix, Gbit/s.
        smallest_value, largest_value: smallest and largest value of a Gbit/s of a demand.
        largest_cost: largest absolute cost of a Gbit/s on a link.
    """

    smallest_capacity: float
    largest_capacity: float
    smallest_live_capacity: float
    least_total: float
    largest_demand: float
    smallest_value: float
    largest_value: float
    largest_cost: float


AnyCondition = TypeVar("AnyCondition", bound=Condition)


@with_old_attributes
@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """Allocation problem: B traffic matrices on one network, the input of every scheme.

    There are D demands with at most K candidate paths each, and E links.  Values are in units of
    value: 1 is the value of one Gbit/s in total_flow.  :meth:`create` validates the input.

    Attributes:
        topology: the network, with its regular capacities.
        paths: candidate paths of the demands, or segment lists; then ``ops.is_over_paths`` is
            false.
        objective: the objective of the program.
        demand: (B, D) Gbit/s.
        capacity: (B, E) usable capacity in Gbit/s of each matrix: the current capacity times the
            share that the objective allows; 0 where a link has failed.
        demand_value: (D,) value of one Gbit/s of each demand.
        link_cost: (E,) cost of one Gbit/s on each link: v[d, k] = demand_value[d] - sum of
            link_cost along path (d, k).
        ops: sums of link values along paths, and of path values over links, on the tensors' device.
        classes: priority classes of the demands (see :mod:`teal.network.classes`); None for none.
        steps: value steps of the demands (see :mod:`teal.problem.steps`), where ``demand_value`` is
            that of the first step; None for one step. Interior points and PDHG's fused and plain
            engines support steps.
        conditions: side conditions (see :mod:`teal.problem.condition`), in the order in which they
            rewrite the program.
        functions: bandwidth functions of the demands, from which ``steps`` are built; None for
            none.
        max_share: (B, D, K) largest share of its demand on each path, for engines; None for 1.
    """

    topology: Topology
    paths: ProblemPaths
    objective: Objective
    demand: Float[Tensor, "B D"]
    capacity: Float[Tensor, "B E"]
    demand_value: Float[Tensor, " D"]
    link_cost: Float[Tensor, " E"]
    ops: PathOps
    classes: DemandClasses | None = None
    steps: ValueSteps | None = None
    conditions: tuple[Condition, ...] = ()
    functions: BandwidthFunctions | None = None
    max_share: Float[Tensor, "B D K"] | None = None

    @classmethod
    def create(
        cls,
        topology: Topology,
        paths: AnyPaths,
        objective: Objective | str,
        demand: AnyArray | Tensor,
        *,
        capacity: AnyArray | None = None,
        weight: AnyArray | None = None,
        functions: BandwidthFunctions | None = None,
        classes: DemandClasses | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float64,
        backend: str = "auto",
    ) -> Problem:
        """Validate the input and build a problem.

        Args:
            topology: the network.
            paths: candidate paths over its links.
            objective: the objective, or its name.
            demand: (B, D) or (D,) Gbit/s.
            capacity: (B, E) or (E,) Gbit/s; None for the topology's.
            weight: (D,) weight of each demand, for weighted_flow (value of a Gbit/s) and max_min;
                None for 1 each.
            functions: functions of the demands, for bandwidth_functions.
            classes: classes of the demands, required by priority;
                :func:`teal.problem.priority.priority_problem` builds them.
            device: device of the tensors.
            dtype: float32 or float64.
            backend: name of the path operations (see :func:`teal.pathops.make_path_ops`).

        Raises:
            InputError: paths of another network, an invalid shape or entry, an unknown objective,
                or priority without classes.
        """
        # Validate the input.
        objective = Objective.of(objective)
        if functions is not None:
            weight = functions.weight
        if objective.rules.needs_functions != (functions is not None):
            problem, remedy = (
                ("the objective needs a bandwidth function for each demand", "give functions")
                if functions is None
                else ("the objective uses no bandwidth functions", "drop them")
            )
            raise InputError.invalid(f"objective {objective.name}", "functions", problem, remedy)
        demand, capacity, weight = arrays(
            topology, paths, objective, demand, capacity, weight, classes
        )
        # Tensors on the device, with values and costs of the objective.
        ops = make_path_ops(paths, device, backend)
        latency = torch.as_tensor(topology.latency[None], device=ops.device)
        value = objective.demand_value(weight, paths.num_demands)
        cost = objective.link_cost(topology, lambda: float(ops.path_sum(latency).max()))
        capacity = objective.rules.capacity_share * capacity
        rates = torch.tensor(demand, dtype=dtype, device=ops.device)
        return cls(
            topology,
            cast(ProblemPaths, paths),
            objective,
            rates,
            torch.tensor(capacity, dtype=dtype, device=ops.device),
            torch.tensor(value, dtype=dtype, device=ops.device),
            torch.tensor(cost, dtype=dtype, device=ops.device),
            ops,
            classes,
            None if functions is None else ValueSteps.of_functions(functions, rates),
            functions=functions,
        )

    def __repr__(self) -> str:
        size = (
            f"{self.batch} matrices of {self.paths.num_demands} demands, K = {self.paths.num_paths}"
        )
        return (
            f"Problem({self.topology.name!r}, {self.objective.name}: {size}, on "
            f"{self.demand.device})"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields alone: cached results hold functions, which cannot be pickled."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @property
    def batch(self) -> int:
        """Number of matrices of the problem, B."""
        return self.demand.shape[0]

    @cached_property
    def path_value(self) -> Float[Tensor, "D K"]:
        """Value of one Gbit/s on each path, (D, K); 0 where a demand has fewer than K paths."""
        value = self.demand_value[:, None]
        if self.has_link_cost:
            value = value - self.ops.path_sum(self.link_cost[None])[0]
        return torch.where(self.ops.mask, value, 0)

    @cached_property
    def has_link_cost(self) -> bool:
        """Whether any link has a cost; otherwise all paths of a demand have the same value."""
        if self.link_cost.device.type == "cpu" or self.is_empty:
            return bool(self.link_cost.any())
        return self.extremes.largest_cost > 0

    @property
    def is_empty(self) -> bool:
        """Whether the problem has no demand or no link."""
        return not (self.demand.numel() and self.capacity.numel())

    @cached_property
    def extremes(self) -> Extremes:
        """Largest and smallest numbers of a problem with at least one demand and one link.

        On a GPU all numbers are read at once, since each reading makes the host wait.
        """
        backend = self.ops.backend if self.ops.is_over_paths else None
        if backend is not None and backend.name == "cuda":
            return Extremes(*self._extremes_by_kernel(backend))
        numbers = (
            self.capacity.min(),
            self.capacity.max(),
            torch.where(self.capacity > 0, self.capacity, torch.inf).min(),
            self.demand.sum(1).min(),
            self.demand.max(),
            self.demand_value.min(),
            self.demand_value.max(),
            self.link_cost.abs().max(),
        )
        return Extremes(*torch.stack([value.to(torch.float64) for value in numbers]).tolist())

    def _extremes_by_kernel(self, backend: Any) -> tuple[float, ...]:
        """Compute the fields of :class:`Extremes`, in order, by one GPU kernel and one reading.

        Args:
            backend: path operations of the GPU, with a kernel ``extremes``.
        """
        # Equal capacities in all matrices are read once.
        has_one_capacity = self.capacity.stride(0) == 0
        capacity, demand, value, cost = backend.extremes(
            self.capacity[:1] if has_one_capacity else self.capacity,
            self.demand,
            self.demand_value[None],
            self.link_cost[None],
        )
        return (
            float(capacity[:, 0].min()),
            float(capacity[:, 1].max()),
            float(capacity[:, 3].min()),
            float(demand[:, 2].min()),
            float(demand[:, 1].max()),
            float(value[0, 0]),
            float(value[0, 1]),
            float(np.abs(cost[0, :2]).max()),
        )

    def with_known_branches(self, *, has_link_cost: bool, may_fail: bool) -> Problem:
        """Return this problem with cached properties fixed in advance, so that no tensor is read to
        choose a formula.

        A recorded GPU graph needs this, since other values are copied into its tensors later.

        Args:
            has_link_cost: whether links may have costs.
            may_fail: whether links may have failed.
        """
        clone = dataclasses.replace(self)
        # `_changed` fixes the properties of derived problems in the same way.
        clone.__dict__["_branches"] = {"has_link_cost": has_link_cost, "may_fail": may_fail}
        clone.__dict__["has_link_cost"] = has_link_cost
        program = clone.program
        # Values of all paths of a demand are equal where no link has a cost.
        program.__dict__["has_one_value"] = not has_link_cost
        program.__dict__["live"] = live_columns(self.ops, self.capacity, may_be_closed=may_fail)
        return clone

    def _changed(self, **fields: Any) -> Problem:
        """Return this problem with other tensors; properties that :meth:`with_known_branches` has
        fixed stay fixed.
        """
        clone = dataclasses.replace(self, **fields)
        branches = self.__dict__.get("_branches")
        return clone if branches is None else clone.with_known_branches(**branches)

    @property
    def path_mask(self) -> Bool[Tensor, "B D K"]:
        """Whether each path is live, (B, D, K): it exists and none of its links has failed."""
        return self.program.live

    @cached_property
    def routable(self) -> Bool[Tensor, "B D"]:
        """Whether each demand has at least one live path, (B, D)."""
        return self.path_mask.any(-1)

    @property
    def routable_demand(self) -> Float[Tensor, "B D"]:
        """Demands in Gbit/s, (B, D), with 0 for those without a live path."""
        return self.program.routable_demand

    @cached_property
    def inverse_capacity(self) -> Float[Tensor, "B E"]:
        """Inverse of each capacity, (B, E) in 1 / (Gbit/s), clamped to the largest number of the
        type; 0 for a failed link.
        """
        max_value = torch.finfo(self.capacity.dtype).max
        return torch.where(self.capacity > 0, (1 / self.capacity).clamp(max=max_value), 0)

    @cached_property
    def bottleneck(self) -> Float[Tensor, "B D K"]:
        """Smallest link capacity along each live path, (B, D, K) Gbit/s; 0 for other paths."""
        return torch.where(self.path_mask, -self.ops.path_max(-self.capacity)[0], 0)

    @property
    def usable(self) -> Problem:
        """The problem without the demand and capacity that no allocation can use; the problem
        itself if there is none.
        """
        return self if self._limited is None else self._limited

    @cached_property
    def _limited(self) -> Problem | None:
        """The problem without unusable demand and capacity; None if it would be unchanged.

        Storing the problem itself would make a reference cycle, which would keep tensors alive.
        """
        if self.price_set.on_simplex or self.max_share is not None or not self.ops.counts_once:
            return None
        # A utility is a function of the share of the full demand.
        if self.utility is not None:
            return None
        demand, capacity = usable_part(
            self.demand,
            self.capacity,
            carriable_demand=lambda: self.bottleneck.sum(-1),
            routable_demand=lambda: self.routable_demand,
            all_have_paths=bool((self.ops.path_count > 0).all()),
        )
        if demand is self.demand and bool((capacity == self.capacity).all()):
            return None
        # Steps end at shares of the limited demand.
        steps = self.steps and self.steps.of_part(demand / self.demand)
        usable = dataclasses.replace(self, demand=demand, capacity=capacity, steps=steps)
        # A second limit would change nothing.
        usable.__dict__["_limited"] = None
        return usable

    @cached_property
    def full_path_utilisation(self) -> Float[Tensor, "B E"]:
        """Utilisation of each link if every live path carried all of its demand, (B, E)."""
        return self.loads(self.path_mask.to(self.demand.dtype)) * self.inverse_capacity

    @cached_property
    def even_splits(self) -> Float[Tensor, "B D K"]:
        """Equal splits over the live paths of each demand, (B, D, K); 0 for a demand
        without any.
        """
        num_live_paths = self.path_mask.sum(-1, keepdim=True).clamp(min=1)
        return self.path_mask.to(self.demand.dtype) / num_live_paths

    @property
    def first_path_splits(self) -> Float[Tensor, "B D K"]:
        """Splits with each demand on its first, shortest path, (B, D, K); 0 if it has failed."""
        first = torch.zeros_like(self.even_splits)
        first[..., 0] = 1
        return torch.where(self.path_mask, first, 0)

    def flows(self, splits: Float[Tensor, "B D K"]) -> Float[Tensor, "B D K"]:
        """Return the flow (B, D, K) in Gbit/s on each path: splits (B, D, K) times demand."""
        return splits * self.demand[..., None]

    def loads(self, splits: Float[Tensor, "B D K"]) -> Float[Tensor, "B E"]:
        """Return the load (B, E) of each link in Gbit/s, for splits (B, D, K)."""
        return self.ops.link_sum(self.flows(splits))

    def utilisation(self, splits: Float[Tensor, "B D K"]) -> Float[Tensor, "B E"]:
        """Return the link utilisation (B, E) of splits (B, D, K): load over full capacity.

        The objective may allow a smaller utilisation than 1; infinite where a failed link carries
        traffic.
        """
        return self.utilisation_of(self.loads(splits))

    def utilisation_of(self, load: Float[Tensor, "B E"]) -> Float[Tensor, "B E"]:
        """Return the link utilisation (B, E) of loads (B, E) in Gbit/s: load over full capacity.

        Infinite where a failed link carries traffic.
        """
        is_broken = (self.capacity <= 0) & (load > 0)
        # Divide instead of multiplying by inverse_capacity, which is clamped for tiny capacities.
        share = self.objective.rules.capacity_share
        utilisation = share * load / torch.where(self.capacity > 0, self.capacity, 1)
        return torch.where(is_broken, torch.inf, torch.where(self.capacity > 0, utilisation, 0))

    def value(self, splits: Float[Tensor, "B D K"]) -> Float[Tensor, " B"]:
        """Return the objective value (B,) of splits (B, D, K).

        The sum over paths of value times flow, in units of value (under max_min the total flow);
        the largest link utilisation; or, under max_concurrent_flow, the smallest served fraction of
        a routable demand, at most 1.
        """
        return self.objective.rules.value(self, splits)

    def capacity_value(self, prices: Float[Tensor, "B E"]) -> Float[Tensor, " B"]:
        """Return the sum (B,) over the links of capacity times price, for prices (B, E)."""
        return (self.capacity * prices).sum(1)

    def cheapest_path_cost(
        self, path_cost: Float[Tensor, "B D K"], *, unroutable: float = 0.0
    ) -> Float[Tensor, "B D"]:
        """Return the cost (B, D) of the cheapest live path of each demand.

        Args:
            path_cost: cost of each path, (B, D, K), such as the sum of link prices along it.
            unroutable: cost of a demand without a live path.
        """
        min_cost = torch.where(self.path_mask, path_cost, torch.inf).amin(-1)
        return torch.where(self.routable, min_cost, unroutable)

    def with_demand(self, demand: Tensor | AnyArray) -> Problem:
        """Return the problem with other matrices, all with the capacities of the present first one.

        Args:
            demand: (B, D) Gbit/s, for any number of matrices; not validated.

        Raises:
            InputError: installed splits that differ between matrices; value steps, which are shares
                of the demands.
        """
        if self.steps is not None and self.functions is None:
            raise InputError.invalid(
                "with_demand",
                "steps",
                "the value steps of the problem are shares of its demands",
                "create a problem with the other demands",
            )
        conditions = tuple(condition.for_batch(len(demand)) for condition in self.conditions)
        capacity = self.capacity[:1].expand(len(demand), -1)
        demand = torch.as_tensor(demand).to(self.demand)
        steps = None if self.functions is None else ValueSteps.of_functions(self.functions, demand)
        return self._changed(demand=demand, capacity=capacity, conditions=conditions, steps=steps)

    def as_min_max_program(self, name: ObjectiveName, demand: Tensor) -> Problem:
        """Return matrices (B, D) under max_link_utilisation or max_concurrent_flow.

        Under these objectives neither demands nor links have values.

        Args:
            name: one of the two objectives.
            demand: (B, D) Gbit/s.
        """
        zero_values: Any = {
            name: torch.zeros_like(getattr(self, name)) for name in ("demand_value", "link_cost")
        }
        return dataclasses.replace(
            self, objective=Objective(name), demand=demand, classes=None, **zero_values
        )

    @property
    def weighted(self) -> Problem:
        """Under priority, the weighted-flow problem that replaces the sequence of programs: the
        value of a Gbit/s falls by the factor :data:`teal.objectives.CLASS_RATIO` from class to
        class.

        Under other objectives it is the problem itself.
        """
        weighted = dataclasses.replace(
            self, objective=Objective(ObjectiveName.WEIGHTED_FLOW), classes=None
        )
        return weighted if self.objective.name == ObjectiveName.PRIORITY else self

    @property
    def solved(self) -> Problem:
        """The equivalent problem that engines solve: max_concurrent_flow as max_link_utilisation.

        Under other objectives it is the problem itself.
        """
        name = self.objective.rules.solved_as
        return (
            self
            if name in (None, self.objective.name)
            else dataclasses.replace(self, objective=Objective(name))
        )

    def with_capacity(self, capacity: Tensor | AnyArray) -> Problem:
        """Return the problem with other link capacities, such as failures or upgrades.

        Args:
            capacity: (E,) or (B, E) Gbit/s, 0 for failed links; not validated.
        """
        capacity = torch.as_tensor(capacity).to(self.capacity) * self.objective.rules.capacity_share
        return dataclasses.replace(self, capacity=capacity.expand(self.batch, -1))

    def with_paths(self, paths: AnyPaths) -> Problem:
        """Return the problem with other candidate paths of the same demands.

        The paths are not validated.  Link costs stay those of the old paths; the path operations
        use the default backend.

        Raises:
            InputError: a condition that depends on the old paths, such as a limit on churn.
        """
        return self.with_ops(make_path_ops(paths, self.ops.device))

    def with_ops(self, ops: PathOps) -> Problem:
        """Return the problem with the candidate paths of other path operations.

        Args:
            ops: operations over paths of the same demands, on the device of this problem.

        Raises:
            InputError: a condition that depends on the old paths, such as a limit on churn.
        """
        conditions = tuple(
            condition.on_paths(ops, self.topology.num_links) for condition in self.conditions
        )
        return dataclasses.replace(self, paths=ops.paths, ops=ops, conditions=conditions)

    def under(self, condition: Condition) -> Problem:
        """Return the problem with one more side condition.

        Raises:
            InputError: a condition that is incompatible with the objective or other conditions.
        """
        if self.steps is not None:
            raise InputError.invalid(
                condition.name, "steps", "the condition does not support value steps of demands"
            )
        return dataclasses.replace(
            self, conditions=with_condition(self.objective, self.conditions, condition)
        )

    def with_churn_limit(self, previous: Tensor, share: float) -> Problem:
        """Return the problem with a limit on the volume that moves to other paths.

        Args:
            previous: (B, D, K) or (D, K) installed splits.
            share: largest share of the routable demand that may move, in [0, 1].

        Raises:
            InputError: another shape, entries that are no shares, a share out of range; an
                objective or condition that does not support the limit.
        """
        previous = previous.to(self.demand.device, torch.float64)
        return self.under(ChurnLimit.checked(previous, share, self.path_mask.shape))

    def with_protection(self, groups: Sequence[Sequence[int]] | None = None) -> Problem:
        """Return the problem whose flows survive the failure of any one group of links.

        Args:
            groups: link indices of each group; None for the cables, each with both directions.

        Raises:
            InputError: an unknown link; an objective or condition that does not support protection.
        """
        groups = self.topology.cables() if groups is None else groups
        return self.under(Protection.of(self.ops, self.topology.num_links, groups))

    def condition(self, kind: type[AnyCondition]) -> AnyCondition | None:
        """Return the side condition of this class; None if the problem has none."""
        return next(
            (condition for condition in self.conditions if isinstance(condition, kind)), None
        )

    @property
    def is_linear(self) -> bool:
        """Whether values are linear in flow: neither a concave utility nor value steps."""
        return self.steps is None and self.utility is None

    @cached_property
    def utility(self) -> Concave | None:
        """The concave utility of the demands; None if the value is piecewise linear in flow.

        Weights of the demands are scaled so that their sum is the total routable demand.
        """
        rules = self.objective.rules
        if rules.alpha is None:
            return None
        # (B, D) weight of each routable demand: its rate, 1, or the caller's weight.
        has_weight = (self.demand > 0) & live_columns(self.ops, self.capacity).any(-1)
        demand = torch.where(has_weight, self.demand, 0)
        weight_by_mode = {
            "demand": demand,
            "1": torch.ones_like(demand),
            "given": self.demand_value.expand_as(demand),
        }
        demand_weight = torch.where(has_weight, weight_by_mode[rules.weight_by], 0)
        weight_scale = demand.sum(1, keepdim=True) / demand_weight.sum(1, keepdim=True).clamp(
            min=1e-300
        )
        # (B, D) value of a Gbit/s at full service.
        value_per_rate = torch.where(
            has_weight, demand_weight * weight_scale / torch.where(has_weight, demand, 1), 0
        )
        return Concave(
            Curve(rules.alpha), value_per_rate, self.demand, self.demand_value, self.max_share
        )

    @property
    def demand_set(self) -> DemandSet:
        """The feasible set of a demand's splits, for the objective and the limits on paths."""
        if self.utility is not None:
            return self.utility
        if self.objective.rules.carries_all:
            return ExactlyOne()
        if self.max_share is not None:
            return Capped(self.max_share)
        return AtMostOne() if self.steps is None else Stepped(self.steps, self.demand_value)

    @property
    def price_set(self) -> PriceSet:
        """The feasible set of link prices: the simplex if utilisation is balanced, else y >= 0."""
        return Simplex() if self.objective.rules.minimises_utilisation else NonNegative()

    @cached_property
    def program(self) -> Program:
        """The linear or concave program over paths and links, without side conditions."""
        return Program(
            self.ops, self.demand, self.capacity, self.path_value, self.demand_set, self.price_set
        )

    @cached_property
    def rewritten(self) -> Rewritten:
        """The program rewritten by all side conditions, in float64, with the maps from its columns
        to paths; :attr:`program` and identity maps without conditions.
        """
        rewritten = Rewritten.of(
            self.to(torch.float64).program if self.conditions else self.program
        )
        for condition in self.conditions:
            rewritten = rewritten.by(condition)
        return rewritten

    @cached_property
    def over_columns(self) -> Problem:
        """The rewritten program as a problem without side conditions, for engines.

        Its columns replace the paths, its rows the links.

        Raises:
            InputError: a condition whose rewriting engines do not support.
        """
        program = self.rewritten.program
        num_added_rows = self.rewritten.program.limit.shape[1] - self.capacity.shape[1]
        # Largest share of each column.
        max_share = (
            program.demand_set.max_share
            if isinstance(program.demand_set, Capped | Concave)
            else None
        )
        # Added rows have no cost.
        column_problem = dataclasses.replace(
            self.to(torch.float64),
            ops=program.columns,
            paths=program.columns.column_paths,
            capacity=program.limit,
            max_share=max_share,
            conditions=(),
            link_cost=torch.cat(
                [self.link_cost.to(torch.float64), program.limit.new_zeros(num_added_rows)]
            ),
        )
        # Demands, values and demand sets must be preserved by the rewrite.
        is_preserved = torch.equal(program.demand, column_problem.demand) and torch.allclose(
            program.value, column_problem.path_value
        )
        if not (is_preserved and isinstance(program.demand_set, Capped | AtMostOne | Concave)):
            names = ", ".join(condition.name for condition in self.conditions)
            raise InputError.invalid(
                names,
                "rewrite",
                "the rewritten program changes demands or values",
                "change only columns, rows, or the largest share of each column (Capped)",
            )
        # Under a utility, every demand with a weight needs a usable column; name one that has none.
        if self.utility is not None:
            available_share = program.live if max_share is None else program.live * max_share
            lacks_column = (self.utility.unit_value > 0) & (available_share.sum(-1) <= 0)
            if bool(lacks_column.any()):
                source, target = (
                    self.topology.node_names[node]
                    for node in self.paths.pairs[int(lacks_column.nonzero()[0, 1])]
                )
                names = ", ".join(condition.name for condition in self.conditions)
                raise InputError.invalid(
                    names,
                    "objective",
                    f"no path may carry traffic from {source} to {target}; a concave utility needs "
                    "a share of every demand",
                )
        return column_problem

    def rows(self, rows: slice | Tensor) -> Problem:
        """Return the problem of some of the matrices.

        Args:
            rows: a slice, or a tensor of indices or booleans.

        Raises:
            InputError: a single index, for which there is :meth:`row`, or another type.
        """
        demand = self.demand[rows]
        if demand.shape[1:] != self.demand.shape[1:]:
            raise InputError.invalid(
                "problem",
                "rows",
                f"{rows!r} is neither a slice nor a list of indices",
                "use row(0) for one matrix",
            )
        conditions = tuple(condition.rows(rows) for condition in self.conditions)
        max_share = None if self.max_share is None else self.max_share[rows]
        return dataclasses.replace(
            self,
            demand=demand,
            capacity=self.capacity[rows],
            conditions=conditions,
            steps=self.steps and self.steps.rows(rows),
            max_share=max_share,
        )

    def first_demands(self, count: int) -> Problem:
        """Return the problem of the first ``count`` demands, without classes and conditions.

        Args:
            count: number of demands to keep, at most D.
        """
        if count == self.paths.num_demands:
            return dataclasses.replace(self, classes=None, conditions=())
        paths = first_demands(self.paths, count)
        return dataclasses.replace(
            self,
            paths=paths,
            ops=make_path_ops(paths, self.ops.device),
            classes=None,
            demand=self.demand[:, :count].contiguous(),
            demand_value=self.demand_value[:count],
            conditions=(),
        )

    def row(self, index: int) -> Problem:
        """Return the problem of one matrix, B = 1; a negative index counts from the end.

        Raises:
            IndexError: no such matrix.
        """
        index = range(self.batch)[index]
        return self.rows(slice(index, index + 1))

    def to(self, dtype: torch.dtype) -> Problem:
        """Return the problem with its tensors in a floating-point type, unchanged if
        they have it.
        """
        if self.demand.dtype == dtype:
            return self
        converted = {
            field: getattr(self, field).to(dtype)
            for field in ("demand", "capacity", "demand_value", "link_cost")
        }
        return self._changed(**converted)


def mean_value(problem: Problem) -> Float[Tensor, ""]:
    """Return the mean value of a Gbit/s over all existing paths, a scalar tensor.

    It is 0 under max_link_utilisation and max_concurrent_flow, which have no values.
    """
    path_count = problem.ops.path_count
    total_value = (
        problem.path_value.sum()
        if problem.has_link_cost
        else (problem.demand_value * path_count).sum()
    )
    return total_value / path_count.sum().clamp(min=1)


def mean_capacity(problem: Problem) -> Float[Tensor, "B 1"]:
    """Return the mean capacity (B, 1) in Gbit/s of the links that have not failed."""
    num_live = (problem.capacity > 0).sum(1, keepdim=True).clamp(min=1)
    return problem.capacity.sum(1, keepdim=True) / num_live
