"""The object that every scheme takes: B traffic matrices on one network."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from teal.errors import InputError
from teal.network import DemandClasses, PathSet, Topology
from teal.objectives import CLASS_RATIO, PROMISES, Objective, ObjectiveName
from teal.pathops import PathOps, make_path_ops
from teal.pathops.bundles import BundleOps
from teal.problem.checks import checked
from teal.problem.churn import ChurnLimit
from teal.problem.protection import Protection
from teal.problem.steps import ValueSteps
from teal.problem.usable import usable_part
from teal.runtime.arrays import AnyArray
from teal.runtime.shapes import Bool, Float


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """B traffic matrices of D demands, with at most K candidate paths each, to allocate on a network of E links.

    Validated by :meth:`create`.  Values are in units of value: 1 is the value of one Gbit/s in total_flow.

    Attributes:
        topology: the network, with its regular capacities.
        paths: candidate paths of the demands.
        objective: the program to solve.
        demand: (B, D) Gbit/s.
        capacity: (B, E) Gbit/s in force for each matrix; 0 where a link has failed.
        demand_value: (D,) value of one Gbit/s of each demand.
        link_cost: (E,) value that one Gbit/s loses on each link:
            v[d, k] = demand_value[d] - sum of link_cost along path (d, k).
        ops: sums of link values along paths, and of path values over links, on the tensors' device.
        classes: priority classes of the demands (see :mod:`teal.network.classes`); None for none.
        churn: limit on the volume that moves (see :mod:`teal.problem.churn`); None for none.
        steps: in which the value of a demand falls (see :mod:`teal.problem.steps`), where ``demand_value`` is that of
            the first step; None for one step.  Of the solvers, only PDHG's fused and plain engines know steps.
        protection: under which flows are promises (see :mod:`teal.problem.protection`); None for none.
    """

    topology: Topology
    paths: PathSet
    objective: Objective
    demand: Float[Tensor, "B D"]
    capacity: Float[Tensor, "B E"]
    demand_value: Float[Tensor, " D"]
    link_cost: Float[Tensor, " E"]
    ops: PathOps
    classes: DemandClasses | None = None
    churn: ChurnLimit | None = None
    steps: ValueSteps | None = None
    protection: Protection | None = None

    @classmethod
    def create(
        cls,
        topology: Topology,
        paths: PathSet,
        objective: Objective,
        demand: AnyArray,
        *,
        capacity: AnyArray | None = None,
        weight: AnyArray | None = None,
        classes: DemandClasses | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float64,
        backend: str = "auto",
    ) -> Problem:
        """Validate and build.

        Args:
            topology: the network.
            paths: candidate paths over its links.
            objective: the program to solve.
            demand: (B, D) or (D,) Gbit/s.
            capacity: (B, E) or (E,) Gbit/s; None for the topology's.
            weight: (D,) value of one Gbit/s of each demand; None for 1 each.  Only weighted_flow uses it.
            classes: of the demands, which priority needs; :func:`teal.problem.priority.priority_problem` makes them.
            device: where the tensors live.
            dtype: float32 or float64.
            backend: of the path operations (see :func:`teal.pathops.make_path_ops`).

        Raises:
            InputError: paths of another network, a shape that does not fit, or a negative, infinite or NaN entry;
                priority without classes.
        """
        if objective.has_classes:
            if classes is None:
                raise InputError("priority", "classes", "demands with classes", "none")
            weight = CLASS_RATIO ** (len(classes) - 1.0 - classes.of_demand)
        if classes is not None and int(classes.ptr[-1]) != paths.num_demands:
            raise InputError("problem", "classes", f"{paths.num_demands} demands", int(classes.ptr[-1]))
        if paths.topology_key != topology.graph_key():
            raise InputError(topology.name, "paths", "paths over this network's links", "those of another network")
        demand = checked("demand", np.atleast_2d(demand), paths.num_demands)
        capacity = topology.capacity if capacity is None else capacity
        capacity = checked("capacity", np.atleast_2d(capacity), topology.num_links)
        if len(capacity) not in (1, len(demand)):
            raise InputError("problem", "capacity", f"1 row, or {len(demand)} as in demand", len(capacity))
        capacity = np.broadcast_to(capacity, (len(demand), topology.num_links))
        if weight is not None:
            if weight.ndim != 1:
                raise InputError("problem", "weight", f"({paths.num_demands},) weights", weight.shape)
            weight = checked("weight", np.atleast_2d(weight), paths.num_demands)[0]
        ops = make_path_ops(paths, device, backend)
        max_latency = 0.0  # ms, of all candidate paths
        if objective.name is ObjectiveName.LATENCY_PENALISED_FLOW:
            max_latency = float(ops.path_sum(torch.as_tensor(topology.latency[None], device=ops.device)).max())
        value = objective.demand_value(weight, paths.num_demands)
        cost = objective.link_cost(topology.latency, max_latency)
        return cls(
            topology,
            paths,
            objective,
            torch.tensor(demand, dtype=dtype, device=ops.device),
            torch.tensor(capacity.copy(), dtype=dtype, device=ops.device),
            torch.tensor(value, dtype=dtype, device=ops.device),
            torch.tensor(cost, dtype=dtype, device=ops.device),
            ops,
            classes,
        )

    def __repr__(self) -> str:
        size = f"{self.batch} matrices of {self.paths.num_demands} demands, K = {self.paths.num_paths}"
        return f"Problem({self.topology.name!r}, {self.objective.name.value}: {size}, on {self.demand.device})"

    @property
    def batch(self) -> int:
        """B."""
        return len(self.demand)

    @cached_property
    def path_value(self) -> Float[Tensor, "D K"]:
        """(D, K) v[d, k], the value of one Gbit/s on each path; 0 where there is no path."""
        value = self.demand_value[:, None]
        if self.has_link_cost:
            value = value - self.ops.path_sum(self.link_cost[None])[0]
        return torch.where(self.ops.mask, value, 0)

    @cached_property
    def has_link_cost(self) -> bool:
        """Whether any link has a cost; if none has, all paths of a demand have the same value."""
        return bool((self.link_cost != 0).any())

    @cached_property
    def path_mask(self) -> Bool[Tensor, "B D K"]:
        """(B, D, K) true for live paths: the path exists and none of its links has failed."""
        exists = self.ops.mask.expand(self.batch, -1, -1)
        failed = self.capacity <= 0
        if not bool(failed.any()):
            return exists
        return exists & (self.ops.path_max(failed.to(self.capacity.dtype))[0] == 0)

    @cached_property
    def routable(self) -> Bool[Tensor, "B D"]:
        """(B, D) true where a demand has at least one live path."""
        return self.path_mask.any(-1)

    @property
    def routable_demand(self) -> Float[Tensor, "B D"]:
        """(B, D) Gbit/s, 0 for a demand without a live path."""
        return torch.where(self.routable, self.demand, 0)

    @cached_property
    def inverse_capacity(self) -> Float[Tensor, "B E"]:
        """(B, E) 1 / capacity in 1 / (Gbit/s), 0 for a failed link, so that no code divides by a capacity of 0.

        At most the largest number of the type, for capacities whose inverse is larger.
        """
        largest = torch.finfo(self.capacity.dtype).max
        return torch.where(self.capacity > 0, (1 / self.capacity).clamp(max=largest), 0)

    @cached_property
    def bottleneck(self) -> Float[Tensor, "B D K"]:
        """(B, D, K) Gbit/s, the smallest capacity along each live path; 0 for the others."""
        return torch.where(self.path_mask, -self.ops.path_max(-self.capacity)[0], 0)

    @property
    def usable(self) -> Problem:
        """The program of :mod:`teal.problem.usable`; itself if all demand and capacity can be used."""
        return self if self._limited is None else self._limited

    @cached_property
    def _limited(self) -> Problem | None:
        """See :attr:`usable`; None stands for itself: a cycle of references would keep large tensors alive."""
        if not self.objective.maximises_value:
            return None
        demand, capacity = usable_part(
            self.demand, self.capacity, carried=lambda: self.bottleneck.sum(-1), routable=lambda: self.routable_demand,
            all_have_paths=bool((self.ops.path_count > 0).all()),
        )  # fmt: skip
        if demand is self.demand and bool((capacity == self.capacity).all()):
            return None
        limited = dataclasses.replace(self, demand=demand, capacity=capacity)
        limited.__dict__["_limited"] = None  # a second limit would change nothing
        return limited

    @cached_property
    def full_path_utilisation(self) -> Float[Tensor, "B E"]:
        """(B, E) m, the utilisation of each link if every live path carried all of its demand."""
        return self.loads(self.path_mask.to(self.demand.dtype)) * self.inverse_capacity

    @cached_property
    def even_splits(self) -> Float[Tensor, "B D K"]:
        """(B, D, K) each demand in equal parts over its live paths; 0 for a demand without a live path."""
        count = self.path_mask.sum(-1, keepdim=True).clamp(min=1)
        return self.path_mask.to(self.demand.dtype) / count

    @property
    def first_path_splits(self) -> Float[Tensor, "B D K"]:
        """(B, D, K) each demand on its first candidate path, the shortest; 0 where that path is not live."""
        first = torch.zeros_like(self.even_splits)
        first[..., 0] = 1
        return torch.where(self.path_mask, first, 0)

    def flows(self, splits: Float[Tensor, "B D K"]) -> Float[Tensor, "B D K"]:
        """(B, D, K) Gbit/s on each path, of splits (B, D, K), shares of each demand."""
        return splits * self.demand[..., None]

    def loads(self, splits: Float[Tensor, "B D K"]) -> Float[Tensor, "B E"]:
        """(B, E) Gbit/s on each link."""
        return self.ops.link_sum(self.flows(splits))

    def utilisation(self, splits: Float[Tensor, "B D K"]) -> Float[Tensor, "B E"]:
        """(B, E) load / capacity; infinite where a failed link carries traffic."""
        return self.utilisation_of(self.loads(splits))

    def utilisation_of(self, load: Float[Tensor, "B E"]) -> Float[Tensor, "B E"]:
        """:meth:`utilisation` of loads (B, E), Gbit/s."""
        is_broken = (self.capacity <= 0) & (load > 0)
        # Divided, not multiplied by inverse_capacity, which is limited where the capacity is next to 0.
        utilisation = load / torch.where(self.capacity > 0, self.capacity, 1)
        return torch.where(is_broken, torch.inf, torch.where(self.capacity > 0, utilisation, 0))

    def value(self, splits: Float[Tensor, "B D K"]) -> Float[Tensor, " B"]:
        """(B,) the objective.

        The sum over paths of v[d, k] times flow, in units of value (under max_min of flows); the largest utilisation
        of a link; or the least share carried of any demand above 0 that has a live path, at most 1.
        """
        if self.objective.maximises_value:
            value = (self.flows(splits) * (1.0 if self.objective.is_fair else self.path_value)).sum((1, 2))
            if self.steps is None:
                return value
            return value - (self.demand * self.demand_value * self.steps.lost(splits.sum(-1))).sum(1)
        if self.objective.may_shed:
            share = torch.where(self.routable & (self.demand > 0), splits.sum(-1), torch.inf)
            return share.amin(1).clamp(max=1)
        return self.utilisation(splits).amax(1)

    def demand_profit(self, best: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        """(B, D) what a Gbit/s of each demand adds to a dual bound, of the profit of its best path: max(0, best)."""
        return best.clamp(min=0) if self.steps is None else self.steps.profit(best, self.demand_value)

    def capacity_value(self, prices: Float[Tensor, "B E"]) -> Float[Tensor, " B"]:
        """(B,) sum over the links of capacity * price: the value of all capacity at these prices."""
        return (self.capacity * prices).sum(1)

    def cheapest_path_cost(self, path_cost: Float[Tensor, "B D K"], *, unroutable: float = 0.0) -> Float[Tensor, "B D"]:
        """(B, D) the least of ``path_cost`` over the live paths of each demand.

        Args:
            path_cost: (B, D, K) cost of each path, such as the sum of link prices along it.
            unroutable: cost that is returned for a demand without a live path.
        """
        least = torch.where(self.path_mask, path_cost, torch.inf).amin(-1)
        return torch.where(self.routable, least, unroutable)

    def with_demand(self, demand: Tensor | AnyArray) -> Problem:
        """The same network under other matrices, (B, D), with the capacities of the first matrix.  Not validated.

        Raises:
            InputError: splits in force that differ between matrices; values in steps, which are shares of the demands.
        """
        if self.steps is not None:
            raise InputError("with_demand", "steps", "a problem without steps of value", "one with steps")
        churn = self.churn
        if churn is not None:
            if bool((churn.previous != churn.previous[:1]).any()):
                raise InputError("with_demand", "churn", "the same splits in force for all", "different ones")
            churn = dataclasses.replace(churn, previous=churn.previous[:1].expand(len(demand), -1, -1))
        capacity = self.capacity[:1].expand(len(demand), -1)
        demand = torch.as_tensor(demand).to(self.demand)
        return dataclasses.replace(self, demand=demand, capacity=capacity, churn=churn)

    def balanced(self, name: ObjectiveName, demand: Tensor) -> Problem:
        """Matrices (B, D) under a balanced objective, where neither demands nor links have values."""
        nothing: Any = {name: torch.zeros_like(getattr(self, name)) for name in ("demand_value", "link_cost")}
        return dataclasses.replace(self, objective=Objective(name), demand=demand, classes=None, **nothing)

    @property
    def weighted(self) -> Problem:
        """Under priority the one program whose values order the classes (:data:`teal.objectives.CLASS_RATIO`)."""
        if not self.objective.has_classes:
            return self
        return dataclasses.replace(self, objective=Objective(ObjectiveName.WEIGHTED_FLOW), classes=None)

    def with_capacity(self, capacity: Tensor | AnyArray) -> Problem:
        """The same matrices under other capacities, (E,) or (B, E): failures, upgrades.  Not validated."""
        capacity = torch.as_tensor(capacity).to(self.capacity)
        return dataclasses.replace(self, capacity=capacity.expand(self.batch, -1))

    def with_paths(self, paths: PathSet) -> Problem:
        """The same matrices over other candidate paths of the same demands.  Not validated.

        The costs of links stay those of the old paths; the path operations use the default backend.

        Raises:
            InputError: under a limit on churn, whose splits in force are over the old paths.
        """
        if self.churn is not None:
            raise InputError("with_paths", "churn", "none: its splits in force are over the old paths", "a limit")
        ops = make_path_ops(paths, self.ops.device)
        own = self.protection and Protection.of(ops, self.topology.num_links, self.protection.groups)
        return dataclasses.replace(self, paths=paths, ops=ops, protection=own)

    def with_churn_limit(self, previous: Tensor, share: float) -> Problem:
        """The same matrices, of whose routable demand at most ``share`` may move.

        Args:
            previous: (B, D, K) or (D, K) splits in force.
            share: in [0, 1].

        Raises:
            InputError: another shape, entries that are no shares, a share out of range, or an objective that is not a
                sum over flows.
        """
        if not self.objective.maximises_value or self.objective.is_sequence or self.protection:
            raise InputError("churn", "objective", "one that maximises a value, unprotected", self.objective.name)
        limit = ChurnLimit.checked(previous.to(self.demand.device, torch.float64), share, self.path_mask.shape)
        return dataclasses.replace(self, churn=limit)

    def with_protection(self, groups: Sequence[Sequence[int]] | None = None) -> Problem:
        """The same matrices, whose flows must survive the failure of any one group of links (None: of any one cable).

        Raises:
            InputError: more than six paths a demand, a link that is none, or an objective or another limit that knows
                no promises.
        """
        if self.objective.name not in PROMISES or self.churn or self.steps:
            raise InputError("protection", "objective", "total_flow or weighted_flow, no churn", self.objective.name)
        groups = self.topology.cables() if groups is None else groups
        return dataclasses.replace(self, protection=Protection.of(self.ops, self.topology.num_links, groups))

    @cached_property
    def bundled(self) -> Problem:
        """The program of promises, in float64, over bundles in the place of paths."""
        assert self.protection is not None
        ops = BundleOps(self.ops, self.protection.bundles)
        return dataclasses.replace(self.to(torch.float64), ops=ops, protection=None)

    @cached_property
    def kept_splits(self) -> Float[Tensor, "B D K"]:
        """(B, D, K) splits in force on live paths, which stay if nothing moves; all splits are kept without a limit."""
        if self.churn is None:
            return self.path_mask.to(self.demand)
        return self.live_part(self.churn.previous)

    def live_part(self, previous: Tensor) -> Float[Tensor, "B D K"]:
        """Splits (B, D, K) or (D, K) in force on live paths, of each demand at most 1 in sum."""
        kept = torch.where(self.path_mask, previous.to(self.demand).clamp(min=0), 0)
        return kept / kept.sum(-1, keepdim=True).clamp(min=1)

    @property
    def churn_budget(self) -> Float[Tensor, " B"]:
        """(B,) Gbit/s that may move; infinite without a limit."""
        share = math.inf if self.churn is None else self.churn.share
        return share * self.routable_demand.sum(1) if share else torch.zeros_like(self.demand[:, 0])

    def moved(self, splits: Float[Tensor, "B D K"], previous: Tensor | None = None) -> Float[Tensor, " B"]:
        """(B,) Gbit/s that an allocation moves, against ``previous`` splits, or those in force under the limit."""
        kept = self.kept_splits if previous is None else self.live_part(previous)
        return self.flows((splits - kept).clamp(min=0)).sum((1, 2))

    def rows(self, rows: slice | Tensor) -> Problem:
        """The problem of some of the matrices, as a slice or by their numbers."""
        parts: Any = {name: (part := getattr(self, name)) and part.rows(rows) for name in ("churn", "steps")}
        return dataclasses.replace(self, demand=self.demand[rows], capacity=self.capacity[rows], **parts)

    def row(self, index: int) -> Problem:
        """The problem of one matrix, B = 1."""
        return self.rows(slice(index, index + 1))

    def to(self, dtype: torch.dtype) -> Problem:
        """The same problem in another floating-point type; itself if it has that type already."""
        if self.demand.dtype == dtype:
            return self
        changed = {f: getattr(self, f).to(dtype) for f in ("demand", "capacity", "demand_value", "link_cost")}
        return dataclasses.replace(self, **changed)
