"""Objectives: the linear and concave programs that Teal solves, and their rules.

:class:`Objective` is a program's name with options; :class:`Rules` holds its differences from
total_flow: value of a demand, cost of a link, sense, and whether an allocation may *shed*, that is
serve a demand in part.  With flows x[d, k] >= 0, capacities c[e] and load[e] the sum of x over the
paths through e:

- value maximisation: max sum v[d, k] x[d, k]  s.t.  sum_k x[d, k] <= demand[d], load[e] <= c[e].
  A path's value is additive, v[d, k] = value of the demand - sum of its links' costs;
- max_link_utilisation: min theta  s.t.  sum_k x[d, k] = demand[d], load[e] <= theta c[e];
- max_concurrent_flow: max alpha <= 1  s.t.  sum_k x[d, k] >= alpha demand[d] (and <= demand[d]),
  load[e] <= c[e].  Scaling all flows alike shows that alpha = min(1, 1 / theta), so that both are
  solved as one program; spare capacity is given to demands that can use it;
- proportional_fair, alpha_fair: max sum W[d] u(served fraction of d), a concave utility; value and
  bound are equivalent common fractions, see :mod:`teal.problem.curves`;
- bandwidth_functions: max sum of a piecewise linear, concave function of each demand's rate; see
  :mod:`teal.network.bandwidth_functions`;
- max_min: the rates f[d] = sum_k x[d, k] are max-min fair: no f[d] / w[d], with w[d] the demand's
  weight, can be raised without lowering another one that is not larger.  Value and bound are flows,
  see :mod:`teal.problem.fair_levels`.  Schemes without a method for it maximise sum w[d] f[d];
- priority: demands belong to classes, the highest first.  The flow of class 1 is maximal; that of
  class 2 is maximal among the allocations with maximal flow of class 1; and so on.  See
  :mod:`teal.problem.priority`.  Schemes without a method for it solve the weighted program, in
  which a Gbit/s of a class has CLASS_RATIO times the value of one of the next class;
- least_cost: min sum of x times the cost of its links  s.t.  sum_k x[d, k] = demand[d],
  load[e] <= u c[e].  The cost of a link is its latency, its metric, or its cost attribute; u is the
  maximum utilisation.

max_link_utilisation and max_concurrent_flow (the min-max programs) and least_cost include only
demands with a live path.  No allocation can serve the others: they are excluded from program, bound
and validator alike, and count as unserved in the satisfied demand.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from teal.errors import InputError
from teal.runtime.arrays import AnyArray, FloatArray
from teal.spec import Registry, parse_spec

if TYPE_CHECKING:
    from teal.network import Topology


class ObjectiveName(StrEnum):
    """Names of the built-in objectives; each is also the text that commands accept."""

    TOTAL_FLOW = "total_flow"
    WEIGHTED_FLOW = "weighted_flow"
    LATENCY_PENALISED_FLOW = "latency_penalised_flow"
    MAX_LINK_UTILISATION = "max_link_utilisation"
    MAX_CONCURRENT_FLOW = "max_concurrent_flow"
    LEAST_COST = "least_cost"
    PROPORTIONAL_FAIR = "proportional_fair"
    ALPHA_FAIR = "alpha_fair"
    BANDWIDTH_FUNCTIONS = "bandwidth_functions"
    PRIORITY = "priority"
    MAX_MIN = "max_min"


# Value of a Gbit/s of a class over that of a Gbit/s of the next class.  A Gbit/s over several
# bottlenecks in series displaces several Gbit/s of the next class, whose total value must be
# smaller.  On UsCarrier higher classes lost up to 3% of their flow with a ratio of 2, 0.3% with 3,
# and 0.02% with 4; larger ratios make the programs harder to solve.
CLASS_RATIO = 4.0


@dataclasses.dataclass(frozen=True)
class Rules:
    """Rules of an objective; the defaults are those of total_flow, and subclasses override them.

    Attributes:
        carries_all: whether the program must serve all demand.
        minimises_utilisation: whether the program minimises the maximum link utilisation.
        solved_as: equivalent objective that engines solve; None for the objective itself.
        may_shed: whether an allocation may serve a demand in part.
        holds_capacity: whether loads must stay within capacities.
        capacity_share: maximum utilisation of each link.
        sense: 1.0 for maximisation, -1.0 for minimisation.
        is_sequence: whether the objective is a sequence of programs, each with its own bound.
        paths_for: objective for which candidate paths are chosen; None for the objective itself, or
            total_flow for a sequence of programs.
        needs_weight: whether every demand must have a weight.
        needs_functions: whether every demand must have a bandwidth function.
        allows_protection: whether flows may be guaranteed under failures.
        unit: unit of the value, as printed after a number.
        measure_label: name of the value in tables and plots; None where they show the satisfied
            demand, in per cent.
        loss_label: name of the relative loss of value in tables.
        alpha: exponent of the utility of a demand's served fraction (see
            :mod:`teal.problem.curves`); None where value is linear in flow.
        weight_by: weight of a utility: demand (each Gbit/s alike), 1 (each demand alike), or given
            (the demand's weight).
    """

    def with_options(self, options: Mapping[str, str]) -> Rules:
        """Return the rules with the options of an objective, such as ``alpha_fair:alpha=2``.

        Args:
            options: values of the options as text, by name.

        Raises:
            InputError: an unknown option, or an invalid value.
        """
        if options:
            raise InputError.invalid(
                "objective", "", f"this objective has no option {', '.join(options)}"
            )
        return self

    @property
    def may_be_infeasible(self) -> bool:
        """Whether the program can be infeasible: all demand must be served within capacities."""
        return self.carries_all and not self.may_shed and self.holds_capacity

    @property
    def is_linear(self) -> bool:
        """Whether the value is linear in flow, for a sequence of programs that of each program."""
        return self.alpha is None and not self.needs_functions

    carries_all: bool = False
    minimises_utilisation: bool = False
    holds_capacity: bool = True
    capacity_share: float = 1.0
    solved_as: ObjectiveName | None = None
    may_shed: bool = True
    sense: float = 1.0
    is_sequence: bool = False
    paths_for: ObjectiveName | None = None
    needs_weight: bool = False
    needs_functions: bool = False
    allows_protection: bool = False
    unit: str = " Gbit/s"
    measure_label: str | None = None
    loss_label: str = "lost"
    alpha: float | None = None
    weight_by: str = "demand"

    def demand_value(self, weight: FloatArray | None, demands: int) -> FloatArray:
        """Return the value of one Gbit/s of each demand, (D,).

        Args:
            weight: weights of the demands, (D,); None for none.
            demands: number of demands, D.
        """
        return np.ones(demands)

    def link_cost(
        self, topology: Topology, max_latency: Callable[[], float], epsilon: float
    ) -> FloatArray:
        """Return the cost of one Gbit/s on each link, (E,), which is subtracted from its value.

        Args:
            topology: the network.
            max_latency: computes the largest latency of a candidate path, ms.
            epsilon: option of latency_penalised_flow: fraction of its value that a Gbit/s loses on
                the path of the largest latency.

        Raises:
            InputError: the network lacks the attribute from which the cost is computed.
        """
        return np.zeros_like(topology.latency)

    def value(self, problem: Any, splits: Any) -> Any:
        """Return the objective value (B,): the sum over paths of value times flow.

        With value steps, flow in later steps has a lower value.

        Args:
            problem: a :class:`teal.Problem` of B matrices.
            splits: (B, D, K) share of each demand on each path.
        """
        value = (problem.flows(splits) * problem.path_value).sum((1, 2))
        if problem.steps is None:
            return value
        return value - (
            problem.demand * problem.demand_value * problem.steps.lost(splits.sum(-1))
        ).sum(1)

    def loss_gap(self, value: float, bound: float) -> float | None:
        """Return the gap of the loss: the part of the loss against full service that the optimum
        might avoid.

        It is defined for values that are common served fractions; None for other values.

        Args:
            value: value of an allocation.
            bound: bound on the optimum.
        """
        return None

    def value_of_parts(self, values: list[float], largest_utilisation: float) -> float:
        """Return the value of an allocation from the values of disjoint sets of demands.

        Args:
            values: value of each set alone.
            largest_utilisation: maximum link utilisation of all sets together.
        """
        return sum(values)

    def from_score(self, problem: Any, score: Any) -> Any:
        """Convert scores to values or bounds (B,) of the objective.

        A score is the value of the program as a maximisation: minus the cost, or minus the maximum
        link utilisation, where the objective is minimised.

        Args:
            problem: a :class:`teal.Problem` of B matrices.
            score: (B,) tensor of scores.
        """
        return score


# Option of latency_penalised_flow, and its default.
_EPSILON = "epsilon"
_DEFAULT_EPSILON = 0.5


class _Weighted(Rules):
    """Rules of weighted flow, where the value of a Gbit/s is the demand's weight."""

    def demand_value(self, weight: FloatArray | None, demands: int) -> FloatArray:
        """Return the weights (D,) as the values of a Gbit/s of each demand; 1 without weights."""
        return np.ones(demands) if weight is None else weight


class _MaxMin(_Weighted):
    """Rules of max-min fairness, whose weights must be positive and default to 1."""

    def demand_value(self, weight: FloatArray | None, demands: int) -> FloatArray:
        """Return the weights (D,), 1 without weights; raise InputError for one that is not
        positive.
        """
        if weight is not None and not np.all(weight > 0):
            raise InputError(
                "objective max_min", "weight", "a number above 0", float(np.min(weight))
            )
        return super().demand_value(weight, demands)

    def value(self, problem: Any, splits: Any) -> Any:
        """Return the total flow (B,) of splits (B, D, K) in Gbit/s, without weights."""
        return problem.flows(splits).sum((1, 2))


class _LatencyPenalised(Rules):
    """Rules of latency-penalised flow, where a link costs epsilon * latency / max_latency."""

    def with_options(self, options: Mapping[str, str]) -> Rules:
        # The option epsilon is an attribute of Objective, which passes it to link_cost.
        return super().with_options({k: v for k, v in options.items() if k != _EPSILON})

    def link_cost(
        self, topology: Topology, max_latency: Callable[[], float], epsilon: float
    ) -> FloatArray:
        """Return epsilon * latency / (largest path latency) for each link, (E,); 0 if all latencies
        are 0.
        """
        max_path_latency = max_latency()
        latency = topology.latency
        return (
            epsilon * latency / max_path_latency if max_path_latency > 0 else np.zeros_like(latency)
        )


class _Utilisation(Rules):
    """Rules of max_link_utilisation, whose value is a utilisation; a Gbit/s has no value."""

    def demand_value(self, weight: FloatArray | None, demands: int) -> FloatArray:
        return np.zeros(demands)

    def value(self, problem: Any, splits: Any) -> Any:
        """Return the largest link utilisation (B,) of splits (B, D, K)."""
        return problem.utilisation(splits).amax(1)

    def value_of_parts(self, values: list[float], largest_utilisation: float) -> float:
        """Return the largest link utilisation of all sets of demands together."""
        return largest_utilisation

    def from_score(self, problem: Any, score: Any) -> Any:
        """Return the utilisations (B,) of scores (B,), which are negated utilisations."""
        return (-score).clamp(min=0)


class _Concurrent(_Utilisation):
    """Rules of max_concurrent_flow, whose value is the smallest served fraction, alpha = min(1, 1 /
    theta) with theta the optimum of max_link_utilisation.
    """

    def value(self, problem: Any, splits: Any) -> Any:
        """Return the smallest served fraction (B,) of a routable demand, at most 1, of splits
        (B, D, K).
        """
        # Demands without a live path or traffic do not count: their fraction is infinite.
        served_fraction = splits.sum(-1).masked_fill(
            ~(problem.routable & (problem.demand > 0)), np.inf
        )
        return served_fraction.amin(1).clamp(max=1)

    def value_of_parts(self, values: list[float], largest_utilisation: float) -> float:
        return min([1.0, *values])

    def from_score(self, problem: Any, score: Any) -> Any:
        """Return min(1, 1 / theta) (B,) for scores (B,), which are -theta."""
        return 1 / (-score).clamp(min=1)


# Rounding error of a bound on a cost, relative to the cost of all demand on the most expensive
# link.
_RELATIVE_COST_ROUNDING = 1e-13
# Link attributes that may be used as its cost.
_COST_ATTRIBUTES = ("latency", "metric", "te_metric", "cost", "hops")


@dataclasses.dataclass(frozen=True)
class _LeastCost(Rules):
    """least_cost: all demand is served, within capacities, over the cheapest paths.

    Attributes:
        cost_by: link attribute used as cost: latency (ms), metric, te_metric, cost, or hops (1 a
            link); "" for cost where the network has costs, else latency.
    """

    cost_by: str = ""

    def with_options(self, options: Mapping[str, str]) -> Rules:
        """Return the rules with the options ``cost`` and ``max_utilisation``, as text by name;
        raise InputError for another option or an invalid value.
        """
        known_options = ("cost", "max_utilisation")
        if unknown := [key for key in options if key not in known_options]:
            raise InputError("objective", unknown[0], " or ".join(known_options), repr(unknown[0]))
        cost_by = options.get("cost", self.cost_by)
        if cost_by not in ("", *_COST_ATTRIBUTES):
            raise InputError("objective", "cost", ", ".join(_COST_ATTRIBUTES), repr(cost_by))
        text = options.get("max_utilisation", "1")
        try:
            max_utilisation = float(text)
        except ValueError:
            max_utilisation = math.nan
        if not 0 < max_utilisation <= 1:
            raise InputError("objective", "max_utilisation", "a number in (0, 1]", repr(text))
        return dataclasses.replace(self, cost_by=cost_by, capacity_share=max_utilisation)

    def demand_value(self, weight: FloatArray | None, demands: int) -> FloatArray:
        return np.zeros(demands)

    def link_cost(
        self, topology: Topology, max_latency: Callable[[], float], epsilon: float
    ) -> FloatArray:
        """Return the link attribute that is used as cost, (E,); raise InputError if the network
        lacks it.
        """
        if self.cost_by == "hops":
            return np.ones(topology.num_links)
        default_attribute = "latency" if topology.cost is None else "cost"
        cost = getattr(topology, self.cost_by or default_attribute)
        if cost is None:
            raise InputError.invalid(
                "objective least_cost",
                f"cost={self.cost_by}",
                f"the links of {topology.name} have no such attribute",
            )
        return np.asarray(cost, dtype=np.float64)

    def value(self, problem: Any, splits: Any) -> Any:
        # Values of paths are minus their costs; 0 - x avoids a negative zero.
        return 0 - super().value(problem, splits)

    def from_score(self, problem: Any, score: Any) -> Any:
        """Convert scores to costs (B,), lowered by their rounding error and at least 0.

        No bound then exceeds an optimum of 0.
        """
        max_link_cost = float(problem.link_cost.max())
        if max_link_cost <= 0:
            return score.clamp(min=0, max=0)
        return (-score - _RELATIVE_COST_ROUNDING * max_link_cost * problem.demand.sum(1)).clamp(
            min=0
        )


# Values of Rules.weight_by.
_WEIGHT_MODES = ("demand", "1", "given")
# Largest exponent alpha; powers of shares with larger exponents leave the range of float64.
_MAX_ALPHA = 64.0


class _Fair(Rules):
    """proportional_fair and alpha_fair: value and bound are equivalent common fractions.

    The equivalent common fraction of an allocation is the served fraction that, common to all
    demands, has the same total utility.
    """

    OPTIONS: ClassVar[tuple[str, ...]] = ("alpha", "weight")

    def with_options(self, options: Mapping[str, str]) -> Rules:
        """Return the rules with the options ``alpha`` and ``weight``, as text by name; raise
        InputError for another option or an invalid value.
        """
        known_options = self.OPTIONS
        if unknown := [key for key in options if key not in known_options]:
            raise InputError("objective", unknown[0], " or ".join(known_options), repr(unknown[0]))
        weight_by = options.get("weight", self.weight_by)
        if weight_by not in _WEIGHT_MODES:
            raise InputError("objective", "weight", ", ".join(_WEIGHT_MODES), repr(weight_by))
        try:
            alpha = float(options.get("alpha", str(self.alpha)))
        except ValueError:
            alpha = math.nan
        if not 0 <= alpha <= _MAX_ALPHA:
            raise InputError(
                "objective", "alpha", f"a number from 0 to {_MAX_ALPHA:g}", repr(options["alpha"])
            )
        return dataclasses.replace(
            self, alpha=alpha, weight_by=weight_by, needs_weight=weight_by == "given"
        )

    def demand_value(self, weight: FloatArray | None, demands: int) -> FloatArray:
        """Return the caller's weights (D,) with the option weight=given, which must be positive; 1
        for each demand otherwise.
        """
        if self.weight_by != "given" or weight is None:
            return np.ones(demands)
        if not np.all(weight > 0):
            raise InputError("objective", "weight", "a number above 0", float(np.min(weight)))
        return weight

    def value(self, problem: Any, splits: Any) -> Any:
        """Return the equivalent common fraction (B,) of splits (B, D, K)."""
        return problem.utility.equivalent(problem.utility.score(splits.sum(-1)))

    def loss_gap(self, value: float, bound: float) -> float | None:
        """Return the gap of the loss of utility, (u(bound) - u(value)) / -u(value).

        The utility of a fraction s is u(s) = (s^(1 - alpha) - 1) / (1 - alpha), and log s for alpha
        = 1.  The gap is NaN if a fraction is not above 0.

        Args:
            value: equivalent fraction of an allocation.
            bound: bound on the optimum.
        """
        if not (value > 0 and bound > 0):
            return math.nan
        if value >= 1:
            return 0.0
        exponent = 1 - (self.alpha or 0.0)
        # Utilities of value and bound, at most 0; expm1 is precise for fractions close to 1.
        value_utility, bound_utility = (
            math.log(min(fraction, 1.0))
            if exponent == 0
            else math.expm1(exponent * math.log(min(fraction, 1.0))) / exponent
            for fraction in (value, bound)
        )
        return (bound_utility - value_utility) / -value_utility

    def value_of_parts(self, values: list[float], largest_utilisation: float) -> float:
        raise NotImplementedError(
            "the equivalent common fraction of several sets of demands depends on their weights"
        )

    def from_score(self, problem: Any, score: Any) -> Any:
        return problem.utility.equivalent(score)


class _Proportional(_Fair):
    """Rules of proportional_fair: those of alpha_fair with alpha = 1, without the option alpha."""

    OPTIONS = ("weight",)


_BUILT_IN: dict[str, Rules] = {
    ObjectiveName.TOTAL_FLOW: Rules(allows_protection=True),
    ObjectiveName.WEIGHTED_FLOW: _Weighted(needs_weight=True, allows_protection=True),
    ObjectiveName.LATENCY_PENALISED_FLOW: _LatencyPenalised(),
    ObjectiveName.MAX_LINK_UTILISATION: _Utilisation(
        carries_all=True,
        minimises_utilisation=True,
        may_shed=False,
        holds_capacity=False,
        sense=-1.0,
        unit="",
        measure_label="largest link utilisation",
        loss_label="utilisation up by",
    ),
    ObjectiveName.MAX_CONCURRENT_FLOW: _Concurrent(
        carries_all=True,
        minimises_utilisation=True,
        solved_as=ObjectiveName.MAX_LINK_UTILISATION,
        unit="",
        measure_label="least share carried",
    ),
    ObjectiveName.LEAST_COST: _LeastCost(
        carries_all=True,
        may_shed=False,
        sense=-1.0,
        unit="",
        measure_label="cost",
        loss_label="cost up by",
    ),
    ObjectiveName.PROPORTIONAL_FAIR: _Proportional(
        alpha=1.0,
        paths_for=ObjectiveName.TOTAL_FLOW,
        unit="",
        measure_label="geometric mean share",
        allows_protection=True,
    ),
    ObjectiveName.ALPHA_FAIR: _Fair(
        alpha=2.0,
        paths_for=ObjectiveName.TOTAL_FLOW,
        unit="",
        measure_label="equivalent common share",
        allows_protection=True,
    ),
    ObjectiveName.BANDWIDTH_FUNCTIONS: _Weighted(
        needs_functions=True,
        paths_for=ObjectiveName.TOTAL_FLOW,
        unit="",
        measure_label="value of the functions",
    ),
    ObjectiveName.PRIORITY: _Weighted(is_sequence=True, needs_weight=True, allows_protection=True),
    ObjectiveName.MAX_MIN: _MaxMin(is_sequence=True, paths_for=ObjectiveName.MAX_LINK_UTILISATION),
}
_RULES: Registry[Rules] = Registry("objective", "teal.objectives", _BUILT_IN)
# Objectives for which models can be trained: one program, linear in flow, and always feasible.
SINGLE_PROGRAMS = tuple(
    name
    for name, rules in ((name, _BUILT_IN[name]) for name in ObjectiveName)
    if rules.is_linear and not (rules.is_sequence or rules.may_be_infeasible)
)


def objective_names() -> list[str]:
    """Return the names of all objectives, the built-in ones first."""
    return [*_BUILT_IN, *(name for name in _RULES.names() if name not in _BUILT_IN)]


def register_objective(name: str, rules: Rules, *, replace: bool = False) -> None:
    """Register rules as ``Objective(name)``, also for ``--objective name`` of commands.

    A package announces its objectives without being imported, by entry points in the group
    ``teal.objectives``.

    Raises:
        InputError: the name is taken by other rules, and ``replace`` is false.
    """
    _RULES.add(name, rules, replace=replace)


@dataclasses.dataclass(frozen=True)
class Objective:
    """A program to solve: a built-in or registered objective, with its options.

    Attributes:
        name: name of the program; the constructor also accepts options in it,
            ``alpha_fair:alpha=2,weight=1``.
        epsilon: for latency_penalised_flow, in [0, 1): fraction of its value that a Gbit/s loses on
            the path of maximum latency.
        options: options parsed from the name.

    Raises:
        InputError: an unknown name or option, or ``epsilon`` out of range.
    """

    name: str = ObjectiveName.TOTAL_FLOW
    epsilon: float = _DEFAULT_EPSILON
    options: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        # Split a name with options, such as alpha_fair:alpha=2.
        if ":" in self.name and self.name not in _RULES:
            spec = parse_spec(self.name)
            object.__setattr__(self, "name", spec.name)
            object.__setattr__(self, "options", tuple(sorted(spec.options.items())))
        self._synchronise_epsilon()
        if self.name not in _RULES:
            expected = f"one of {', '.join(_RULES.names())}"
            raise InputError("objective", "name", expected, repr(self.name))
        # A plain string is accepted, too: registered objectives are not in the enumeration.
        with contextlib.suppress(ValueError):
            object.__setattr__(self, "name", ObjectiveName(self.name))
        if not 0 <= self.epsilon < 1:
            raise InputError("objective", "epsilon", "a number in [0, 1)", self.epsilon)
        # Validate the options.
        _ = self.rules

    def _synchronise_epsilon(self) -> None:
        """Copy the option epsilon of latency_penalised_flow to the attribute, or the attribute to
        the options if it was set instead; raise InputError if the option is no number.
        """
        if self.name != ObjectiveName.LATENCY_PENALISED_FLOW:
            return
        text = dict(self.options).get(_EPSILON)
        if text is not None:
            try:
                object.__setattr__(self, _EPSILON, float(text))
            except ValueError:
                raise InputError("objective", _EPSILON, "a number in [0, 1)", text) from None
        elif self.epsilon != _DEFAULT_EPSILON:
            object.__setattr__(self, "options", ((_EPSILON, repr(self.epsilon)),))

    @classmethod
    def of(cls, value: Objective | str) -> Objective:
        """Return an objective unchanged, or parse one from its name.

        Raises:
            InputError: an unknown name, or a value of another type.
        """
        if isinstance(value, Objective):
            return value
        if not isinstance(value, str):
            raise InputError("objective", "", "a teal.Objective or its name", type(value).__name__)
        return _cached_objective(value)

    @property
    def rules(self) -> Rules:
        """The rules of the objective, with its options applied."""
        rules = _RULES[self.name]
        return rules.with_options(dict(self.options)) if self.options else rules

    @property
    def spec(self) -> str:
        """The name with its options, as commands accept it."""
        if not self.options:
            return self.name
        return f"{self.name}:{','.join(f'{key}={value}' for key, value in self.options)}"

    def require_an_allocation(self, scheme: str) -> None:
        """Raise InputError if the program can be infeasible, which an inexact scheme cannot prove.

        Args:
            scheme: name of the scheme, for the message.
        """
        if self.rules.may_be_infeasible:
            raise InputError.invalid(
                scheme,
                "objective",
                f"{self.name} may have no feasible allocation, which this scheme cannot prove",
                "use the scheme interior",
            )

    @property
    def for_paths(self) -> Objective:
        """The objective with a single program for which candidate paths are chosen, such as
        total_flow under priority.
        """
        default_name = ObjectiveName.TOTAL_FLOW if self.rules.is_sequence else self.name
        name = self.rules.paths_for or default_name
        return dataclasses.replace(
            self, name=name, options=self.options if name == self.name else ()
        )

    @property
    def maximises_value(self) -> bool:
        """Whether the program maximises a sum over flows, and may shed demand."""
        return not self.rules.carries_all

    @property
    def may_shed(self) -> bool:
        """Whether an allocation may serve a demand in part.

        Differs from :attr:`maximises_value` for max_concurrent_flow, which sheds although its
        program serves all demand.
        """
        return self.rules.may_shed

    def demand_value(self, weight: AnyArray | None, demands: int) -> FloatArray:
        """Return the value of one Gbit/s of each demand, (D,).

        It is the weight of the demand if the objective has weights, 0 if all demand is served, else
        1.

        Args:
            weight: (D,) weights; None for none.
            demands: D.

        Raises:
            InputError: weighted_flow or priority without weights; a weight of 0 under max_min.
        """
        if weight is None and self.rules.needs_weight:
            raise InputError.invalid(
                f"objective {self.name}",
                "weight",
                "demands have no weights",
                "give one for each demand",
            )
        return self.rules.demand_value(
            None if weight is None else np.asarray(weight, dtype=np.float64), demands
        )

    def link_cost(self, topology: Topology, max_latency: Callable[[], float]) -> FloatArray:
        """Return the cost of one Gbit/s on each link, (E,).

        It is epsilon * latency / max_latency under latency_penalised_flow, the link's cost under
        least_cost, and 0 for other objectives.

        Args:
            topology: the network.
            max_latency: computes the largest latency of a candidate path, ms.

        Raises:
            InputError: the network lacks the attribute from which the cost is computed.
        """
        return self.rules.link_cost(topology, max_latency, self.epsilon)


@functools.lru_cache(maxsize=256)
def _cached_objective(name: str) -> Objective:
    """Parse an objective, a name with its options; the 256 most recently used are cached."""
    return Objective(name)
