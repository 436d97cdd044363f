"""The program that a request asks for: an objective, and perhaps classes and side conditions."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from teal.errors import InputError
from teal.formats.bandwidth_functions import bandwidth_functions_of
from teal.network import PathSet, Topology
from teal.network.bandwidth_functions import BandwidthFunctions
from teal.network.classes import DemandClasses, class_paths, latency_limits, within_limit
from teal.objectives import Objective, ObjectiveName
from teal.problem import Problem
from teal.problem.condition import Condition, ConditionRequest, LinkGroups
from teal.problem.lines import Lines, records
from teal.problem.offers import OFFERS
from teal.runtime.arrays import FloatArray, IntArray
from teal.serving.engine.errors import wrong
from teal.serving.engine.requests import NetworkSpec, Options
from teal.serving.engine.solvers import AUTO, MODEL, MODEL_PDHG


@dataclasses.dataclass(frozen=True, eq=False)
class Worth:
    """Worth of the demands of a network, where they are not worth the same.

    Attributes:
        weight: (D,) of each demand; None for 1 each.
        functions: bandwidth functions; None for none.
    """

    weight: FloatArray | None = None
    functions: BandwidthFunctions | None = None


def worth_of(topology: Topology, paths: PathSet, spec: NetworkSpec) -> Worth:
    """Weights and functions as a network was registered with them.

    Raises:
        ServiceError: an unknown node, a pair of nodes twice, a function that is not concave, or a
            demand without one.
    """
    weight, functions = None, None
    if spec.weights:
        number = {pair: d for d, pair in enumerate(map(tuple, paths.pairs.tolist()))}
        node, weight = topology.node_index(), np.ones(paths.num_demands)
        named = {(one.source, one.target): one.weight for one in spec.weights}
        if len(named) < len(spec.weights):
            raise wrong("weights: each pair of nodes once")
        for (source, target), value in named.items():
            demand = number.get((node.get(source, -1), node.get(target, -1)))
            if demand is None:
                raise wrong(
                    f"weights: two nodes of the network, not {source[:80]} and {target[:80]}"
                )
            weight[demand] = value
    if spec.functions:
        pairs_of = [(one.source, one.target) for one in spec.functions]
        if len(set(pairs_of)) < len(pairs_of):
            raise wrong("functions: each pair of nodes once, and one without nodes")
        if same := [source for source, target in pairs_of if source and source == target]:
            raise wrong(
                f"functions: two nodes of the network, not {same[0][:80]} and {same[0][:80]}"
            )
        listed = [one.model_dump(exclude_none=True, mode="json") for one in spec.functions]
        try:
            functions = bandwidth_functions_of(listed, "functions", topology, paths.pairs)
        except InputError as error:
            raise wrong(str(error)[:300]) from None
    return Worth(weight, functions)


# Work for a matrix under max_min or a side condition, in that for a matrix without: assumed until
# it is measured on the network; on GEANT, UsCarrier and Kdl it was 2 to 6.  For a model the same is
# assumed.
_ASSUMED_WORK = 6.0


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The program that a request asks for.  Requests with the same program are solved together.

    Attributes:
        objective: objective of the matrices.
        limits: largest latency of a path, ms, for each class of demands, infinite for none; ()
            without classes.
        conditions: for B = 1, in the network of these classes.
        words: words of options, by the names of the options: the conditions that were asked for.
        solver: one of :data:`teal.serving.engine.solvers.SOLVERS`.
    """

    objective: str
    limits: tuple[float, ...] = ()
    conditions: tuple[Condition, ...] = ()
    words: tuple[tuple[str, str], ...] = ()
    solver: str = AUTO

    @property
    def parsed(self) -> Objective:
        """The objective and its options."""
        return Objective.of(self.objective)

    @property
    def network(self) -> Wanted:
        """The part that decides rows and paths: the program without conditions."""
        return Wanted(self.objective, self.limits)

    @property
    def is_resumable(self) -> bool:
        """Whether a search can start from the splits and prices with which an earlier one ended."""
        is_sequence = bool(self.limits) or self.parsed.rules.is_sequence
        return not is_sequence and all(
            condition.splits_determine_shares for condition in self.conditions
        )

    @functools.cached_property
    def kind(self) -> tuple[Any, ...]:
        """Requests that want the same kind take about the same time on a network."""
        name = self.objective if self.parsed.rules.is_sequence else ""
        solver = "" if self.solver == AUTO else self.solver
        return len(self.limits), name, solver, *(condition.name for condition in self.conditions)

    @functools.cached_property
    def assumed_work(self) -> float:
        """Work for a matrix, in that for one without classes and conditions, until it is
        measured.
        """
        is_fair = self.parsed.rules.is_sequence and not self.limits
        has_model = self.solver in (MODEL, MODEL_PDHG)
        return max(1, len(self.limits)) * (
            _ASSUMED_WORK if self.conditions or is_fair or has_model else 1.0
        )

    def problem(self, network: Problem, rates: FloatArray) -> Problem:
        """The problem of matrices.

        Args:
            network: network of the classes, B = 1, with the capacities in force.
            rates: (B, D) Gbit/s.
        """
        problem = network.with_demand(torch.from_numpy(rates))
        for condition in self.conditions:
            problem = problem.under(condition.for_batch(len(rates)))
        return problem

    def figures(self, problem: Problem, splits: torch.Tensor) -> dict[str, FloatArray]:
        """(B,) what the conditions say of splits (B, D, K), by name."""
        by_name: dict[str, FloatArray] = {}
        for condition in problem.conditions:
            for name, of_rows in condition.figures(problem.program, splits).items():
                by_name[name] = of_rows.cpu().numpy()
        return by_name


def prepare_conditions(network: Problem, groups: LinkGroups) -> dict[str, Any]:
    """Compute what the conditions need, by the name of their option.

    A condition that this network cannot have is the error that says so.

    Args:
        network: over the paths of all pairs.
        groups: groups of links that fail together, by the network's registration.
    """
    of_words = {"cables": network.topology.cables(), "groups": groups}
    ready: dict[str, Any] = {}
    for name, kind in OFFERS.items():
        try:
            ready[name] = kind.prepare(network.ops, network.topology.num_links, of_words)
        except InputError as error:
            ready[name] = error
    return ready


def wanted_by(
    options: Options,
    spec: NetworkSpec,
    topology: Topology,
    paths: PathSet,
    ready: Mapping[str, Any],
    previous: FloatArray | None,
) -> Wanted:
    """The program that a request asks for.

    Args:
        options: options that were sent.
        spec: settings of the network.
        topology, paths: topology and paths of the network.
        ready: prepared conditions of the network, see :func:`prepare_conditions`.
        previous: (D, K) splits in force, or those of each class; None if the request names none.

    Raises:
        ServiceError: options that do not go together.
    """
    limits = (
        tuple(latency_limits(options.classes, options.latency_limits_ms)) if options.classes else ()
    )
    wanted = Wanted(options.objective_name(spec.objective), limits, solver=options.solver)
    try:
        spec.require_data(wanted.objective)
    except ValueError as error:
        raise wrong(f"objective: {error}") from None
    asked = {name: value for name in OFFERS if (value := getattr(options, name)) is not None}
    from_previous = [name for name, kind in OFFERS.items() if kind.needs_previous]
    if (previous is None) == bool(set(from_previous) & set(asked)):
        names = " or ".join(from_previous)
        raise wrong(
            f"{names}: goes with the parameter previous of the address, the id of the answer in "
            "force"
        )
    num_classes, splits = max(1, len(limits)), None
    if previous is not None:
        if len(previous) != num_classes * paths.num_demands:
            raise wrong("previous: an answer with as many classes as this request")
        order = columns(topology, paths, wanted)
        splits = torch.from_numpy(
            previous if order is None else np.take_along_axis(previous, order, axis=1)
        )
    conditions: dict[str, Condition] = {}
    for name, value in asked.items():
        kind, of_network = OFFERS[name], ready[name]
        if options.entries and not kind.allows_rounding:
            raise wrong(f"{name}: not with entries, whose rounding breaks it")
        try:
            if isinstance(of_network, InputError):
                raise of_network
            conditions[name] = kind.asked(
                ConditionRequest(
                    value, of_network, splits, num_classes, bool(np.isfinite(limits).any())
                )
            )
        except InputError as error:
            raise wrong(str(error)) from None
    for name, condition in conditions.items():
        others = [other for other in conditions.values() if other is not condition]
        if expected := condition.refuses(wanted.parsed, others):
            raise wrong(f"{name}: expected {expected}")
    words = tuple((name, value) for name, value in asked.items() if isinstance(value, str))
    return dataclasses.replace(wanted, conditions=tuple(conditions.values()), words=words)


def single_program(objective: str) -> Wanted:
    """An objective alone, and total_flow in place of a sequence of programs.

    For answers about the next interval, whose demands max_min would need; and to measure the unit
    of work.
    """
    return Wanted(
        ObjectiveName.TOTAL_FLOW if Objective.of(objective).rules.is_sequence else objective
    )


def groups_of(topology: Topology, spec: NetworkSpec) -> list[list[int]]:
    """Numbers of the links of each group of a network.

    Raises:
        ServiceError: a cable that the network does not have.
    """
    try:
        return [
            sorted({link for a, b in cables for link in topology.find_links(a, b)})
            for cables in spec.groups.values()
        ]
    except InputError as error:
        raise wrong(f"groups: {str(error)[:200]}") from None


def without_demand(topology: Topology, paths: PathSet, wanted: Wanted, worth: Worth) -> Problem:
    """The network of a request, B = 1; demands of classes class by class, each over all pairs of
    ``paths``.

    Args:
        topology: as registered.
        paths: over all pairs of nodes.
        wanted: by the request.
        worth: values of the demands.
    """
    count, rules = max(1, len(wanted.limits)), wanted.parsed.rules
    none = np.zeros((1, count * paths.num_demands))
    classes, of_classes = None, paths
    if wanted.limits:
        names = [str(number) for number in range(count)]
        classes = DemandClasses.of_equal_size(names, paths.num_demands)
        pairs = np.tile(paths.pairs, (count, 1))
        of_classes = class_paths(
            paths, topology, pairs, classes, dict(zip(names, wanted.limits, strict=True))
        )
    return Problem.create(
        topology,
        of_classes,
        wanted.parsed,
        none,
        weight=worth.weight if rules.needs_weight and classes is None else None,
        functions=worth.functions if rules.needs_functions else None,
        classes=classes,
    )


def columns(topology: Topology, paths: PathSet, wanted: Wanted) -> IntArray | None:
    """(C * D, K) number, in ``paths``, of the path of each split of a class; None where both are
    the same.

    A limit on latency leaves out paths, and moves the others to the front.
    """
    if all(np.isinf(limit) for limit in wanted.limits):
        return None
    order = [
        np.argsort(~within_limit(paths, topology, limit), axis=1, kind="stable")
        for limit in wanted.limits
    ]
    return np.concatenate(order)


def in_columns(splits: torch.Tensor, order: IntArray | None) -> torch.Tensor:
    """(B, C * D, K) splits in the columns of the network's paths; see :func:`columns`."""
    if order is None:
        return splits
    index = torch.from_numpy(order).expand(splits.shape)
    return torch.zeros_like(splits).scatter_(2, index, splits)


def named_records(lines: Lines, row: int, names: Sequence[str]) -> list[dict[str, Any]]:
    """The lines of a matrix, where they are of classes with the names of a request: those of a
    program may differ.
    """
    of_row = records(lines, row)
    return (
        [{**one, lines.part: name} for one, name in zip(of_row, names, strict=True)]
        if names
        else of_row
    )
