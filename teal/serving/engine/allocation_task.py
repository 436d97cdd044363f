"""Requested program: request options resolved against a registered network.

:func:`resolve_request` turns the options of a request into an :class:`AllocationTask` (objective,
latency limits of demand classes, side conditions, solver). Requests with equal tasks are solved in
one batch. :class:`DemandValues` holds the registered weights and bandwidth functions of the
demands.
"""

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
from teal.serving.engine.requests import FunctionSpec, NetworkSpec, Options, WeightSpec
from teal.serving.engine.solvers import AUTO, MODEL, MODEL_PDHG


@dataclasses.dataclass(frozen=True, eq=False)
class DemandValues:
    """Registered values of demands.

    Attributes:
        weight: (D,) weight of each demand; None for weight 1.
        functions: bandwidth functions; None without.
    """

    weight: FloatArray | None = None
    functions: BandwidthFunctions | None = None


def resolve_demand_values(topology: Topology, paths: PathSet, spec: NetworkSpec) -> DemandValues:
    """Weights and bandwidth functions of a registration.

    Raises:
        ServiceError: unknown node, repeated pair, a function that is not concave, or a demand
            without a function.
    """
    weight = _demand_weight(topology, paths, spec.weights) if spec.weights else None
    functions = _demand_functions(topology, paths, spec.functions) if spec.functions else None
    return DemandValues(weight, functions)


def _demand_weight(
    topology: Topology, paths: PathSet, pair_specs: Sequence[WeightSpec]
) -> FloatArray:
    """(D,) weights; 1 for demands without a record.

    Raises:
        ServiceError: unknown node, or repeated pair.
    """
    demand_index = {pair: d for d, pair in enumerate(map(tuple, paths.pairs.tolist()))}
    node_index = topology.node_index()
    weight = np.ones(paths.num_demands)
    weight_of_pair = {
        (pair_spec.source, pair_spec.target): pair_spec.weight for pair_spec in pair_specs
    }
    if len(weight_of_pair) < len(pair_specs):
        raise wrong("weights: repeated pair of nodes; list each pair once")
    for (source, target), value in weight_of_pair.items():
        demand = demand_index.get((node_index.get(source, -1), node_index.get(target, -1)))
        if demand is None:
            raise wrong(
                f"weights: expected two nodes of the network, not {source[:80]} and {target[:80]}"
            )
        weight[demand] = value
    return weight


def _demand_functions(
    topology: Topology, paths: PathSet, pair_specs: Sequence[FunctionSpec]
) -> BandwidthFunctions:
    """Bandwidth functions of all demands.

    Raises:
        ServiceError: unknown node, repeated pair, a function that is not concave, or a demand
            without a function.
    """
    # Check the pairs of nodes.
    function_pairs = [(pair_spec.source, pair_spec.target) for pair_spec in pair_specs]
    if len(set(function_pairs)) < len(function_pairs):
        raise wrong(
            "functions: repeated pair of nodes; list each pair once, one default without nodes"
        )
    if self_pairs := [source for source, target in function_pairs if source and source == target]:
        raise wrong(
            f"functions: expected two different nodes, not {self_pairs[0][:80]} and "
            f"{self_pairs[0][:80]}"
        )
    # Parse the functions.
    function_records = [
        pair_spec.model_dump(exclude_none=True, mode="json") for pair_spec in pair_specs
    ]
    try:
        return bandwidth_functions_of(function_records, "functions", topology, paths.pairs)
    except InputError as error:
        raise wrong(str(error)[:300]) from None


# Work per matrix under max_min or a side condition, relative to a program without, until it is
# measured on the network; on GEANT, UsCarrier and Kdl it was 2 to 6. Assumed for a model, too.
_DEFAULT_RELATIVE_WORK = 6.0


@dataclasses.dataclass(frozen=True)
class AllocationTask:
    """Requested program; requests with equal tasks are solved in one batch.

    Attributes:
        objective: objective with its options.
        limits: largest path latency of each demand class, ms, infinite for no limit; () without
            classes.
        conditions: side conditions for B = 1, over the rows of these classes.
        words: (option, word) of the options that requested conditions by a word.
        solver: one of :data:`teal.serving.engine.solvers.SOLVERS`.
    """

    objective: str
    limits: tuple[float, ...] = ()
    conditions: tuple[Condition, ...] = ()
    words: tuple[tuple[str, str], ...] = ()
    solver: str = AUTO

    @property
    def parsed_objective(self) -> Objective:
        """Objective with parsed options."""
        return Objective.of(self.objective)

    @property
    def network(self) -> AllocationTask:
        """Task without conditions and solver: it determines rows and candidate paths."""
        return AllocationTask(self.objective, self.limits)

    @property
    def is_resumable(self) -> bool:
        """Whether a search can be warm-started from splits and prices of an earlier one."""
        is_sequence = bool(self.limits) or self.parsed_objective.rules.is_sequence
        return not is_sequence and all(
            condition.splits_determine_shares for condition in self.conditions
        )

    @functools.cached_property
    def kind(self) -> tuple[Any, ...]:
        """Key of the service-time estimate: tasks of one kind take about the same time on a
        network.
        """
        name = self.objective if self.parsed_objective.rules.is_sequence else ""
        solver = "" if self.solver == AUTO else self.solver
        return len(self.limits), name, solver, *(condition.name for condition in self.conditions)

    @functools.cached_property
    def default_relative_work(self) -> float:
        """Assumed work per matrix until measured, relative to a single program without classes and
        conditions.
        """
        is_fair = self.parsed_objective.rules.is_sequence and not self.limits
        has_model = self.solver in (MODEL, MODEL_PDHG)
        return max(1, len(self.limits)) * (
            _DEFAULT_RELATIVE_WORK if self.conditions or is_fair or has_model else 1.0
        )

    def problem(self, network: Problem, rates: FloatArray) -> Problem:
        """Problem of a batch of matrices under the conditions.

        Args:
            network: zero-demand problem of the classes, B = 1, with current capacities.
            rates: (B, D) Gbit/s.
        """
        problem = network.with_demand(torch.from_numpy(rates))
        for condition in self.conditions:
            problem = problem.under(condition.for_batch(len(rates)))
        return problem

    def figures(self, problem: Problem, splits: torch.Tensor) -> dict[str, FloatArray]:
        """(B,) figures of the conditions for splits (B, D, K), by name."""
        by_name: dict[str, FloatArray] = {}
        for condition in problem.conditions:
            for name, row_values in condition.figures(problem.program, splits).items():
                by_name[name] = row_values.cpu().numpy()
        return by_name


def prepare_conditions(network: Problem, groups: LinkGroups) -> dict[str, Any]:
    """Precompute the data of each side condition, by the name of its option.

    The value is an InputError where the network does not support a condition.

    Args:
        network: zero-demand problem over the paths of all pairs.
        groups: registered shared-risk link groups.
    """
    inputs_by_word = {"cables": network.topology.cables(), "groups": groups}
    prepared: dict[str, Any] = {}
    for name, condition_type in OFFERS.items():
        try:
            prepared[name] = condition_type.prepare(
                network.ops, network.topology.num_links, inputs_by_word
            )
        except InputError as error:
            prepared[name] = error
    return prepared


def resolve_request(
    options: Options,
    spec: NetworkSpec,
    topology: Topology,
    paths: PathSet,
    prepared: Mapping[str, Any],
    previous: FloatArray | None,
) -> AllocationTask:
    """Resolve the options of a request against a network.

    Args:
        options: options of the request.
        spec: settings of the registration.
        topology: topology of the network.
        paths: candidate paths of the network.
        prepared: data of side conditions, see :func:`prepare_conditions`.
        previous: (D, K) installed splits, or (C * D, K) those of each class; None if the request
            names none.

    Raises:
        ServiceError: options that exclude each other.
    """
    # Resolve objective and latency limits.
    limits = (
        tuple(latency_limits(options.classes, options.latency_limits_ms)) if options.classes else ()
    )
    task = AllocationTask(options.objective_name(spec.objective), limits, solver=options.solver)
    try:
        spec.require_data(task.objective)
    except ValueError as error:
        raise wrong(f"objective: {error}") from None
    # List the side conditions that the request names; some need the installed splits.
    requested = {name: value for name in OFFERS if (value := getattr(options, name)) is not None}
    options_needing_previous = [
        name for name, condition_type in OFFERS.items() if condition_type.needs_previous
    ]
    if (previous is None) == bool(set(options_needing_previous) & set(requested)):
        names = " or ".join(options_needing_previous)
        raise wrong(
            f"{names}: must be used together with the query parameter previous, the id of the "
            "installed answer"
        )
    # Build the conditions, then check that they can be combined.
    splits = None if previous is None else _splits_by_class(previous, topology, paths, task)
    conditions: dict[str, Condition] = {}
    for name, value in requested.items():
        if options.entries and not OFFERS[name].allows_rounding:
            raise wrong(f"{name}: cannot be combined with entries, since rounding violates it")
        conditions[name] = _build_condition(name, value, prepared[name], splits, limits)
    for name, condition in conditions.items():
        other_conditions = [each for each in conditions.values() if each is not condition]
        if expected := condition.refuses(task.parsed_objective, other_conditions):
            raise wrong(f"{name}: expected {expected}")
    words = tuple((name, value) for name, value in requested.items() if isinstance(value, str))
    return dataclasses.replace(task, conditions=tuple(conditions.values()), words=words)


def _splits_by_class(
    previous: FloatArray, topology: Topology, paths: PathSet, task: AllocationTask
) -> torch.Tensor:
    """(C * D, K) installed splits, in the path columns of the classes.

    Args:
        previous: (D, K) installed splits, or (C * D, K) those of each class.
        topology: topology of the network.
        paths: candidate paths of the network.
        task: task with the latency limits of the classes.

    Raises:
        ServiceError: the splits have another number of classes.
    """
    if len(previous) != max(1, len(task.limits)) * paths.num_demands:
        raise wrong(
            "previous: the answer has another number of classes; use an answer with the "
            "classes of this request"
        )
    path_index = path_columns(topology, paths, task)
    return torch.from_numpy(
        previous if path_index is None else np.take_along_axis(previous, path_index, axis=1)
    )


def _build_condition(
    name: str,
    value: Any,
    prepared_data: Any,
    splits: torch.Tensor | None,
    limits: Sequence[float],
) -> Condition:
    """Build a requested side condition.

    Args:
        name: option of the condition.
        value: value of the option.
        prepared_data: data of the condition, see :func:`prepare_conditions`.
        splits: (C * D, K) installed splits; None if the request names none.
        limits: (C,) latency limits of the classes, ms; empty without classes.

    Raises:
        ServiceError: the network does not support the condition, or the value is invalid.
    """
    try:
        if isinstance(prepared_data, InputError):
            raise prepared_data
        return OFFERS[name].asked(
            ConditionRequest(
                value,
                prepared_data,
                splits,
                max(1, len(limits)),
                bool(np.isfinite(limits).any()),
            )
        )
    except InputError as error:
        raise wrong(str(error)) from None


def single_program_task(objective: str) -> AllocationTask:
    """Task of an objective that is a single program; total_flow instead of a sequence of programs.

    Used for allocations for the next interval, since max_min would need its demands, and to
    calibrate service times.
    """
    return AllocationTask(
        ObjectiveName.TOTAL_FLOW if Objective.of(objective).rules.is_sequence else objective
    )


def link_groups(topology: Topology, spec: NetworkSpec) -> list[list[int]]:
    """Link indices of each registered shared-risk group.

    Raises:
        ServiceError: unknown cable.
    """
    try:
        return [
            sorted({link for a, b in cables for link in topology.find_links(a, b)})
            for cables in spec.groups.values()
        ]
    except InputError as error:
        raise wrong(f"groups: {str(error)[:200]}") from None


def zero_demand_problem(
    topology: Topology, paths: PathSet, task: AllocationTask, demand_values: DemandValues
) -> Problem:
    """Zero-demand problem of a task, B = 1; with classes, rows class by class, each over all pairs.

    Args:
        topology: topology as registered.
        paths: candidate paths of all pairs of nodes.
        task: task of the request.
        demand_values: weights and bandwidth functions.
    """
    num_classes = max(1, len(task.limits))
    rules = task.parsed_objective.rules
    zero_demand = np.zeros((1, num_classes * paths.num_demands))
    classes = None
    paths_by_class = paths
    if task.limits:
        names = [str(index) for index in range(num_classes)]
        classes = DemandClasses.of_equal_size(names, paths.num_demands)
        pairs = np.tile(paths.pairs, (num_classes, 1))
        paths_by_class = class_paths(
            paths, topology, pairs, classes, dict(zip(names, task.limits, strict=True))
        )
    return Problem.create(
        topology,
        paths_by_class,
        task.parsed_objective,
        zero_demand,
        weight=demand_values.weight if rules.needs_weight and classes is None else None,
        functions=demand_values.functions if rules.needs_functions else None,
        classes=classes,
    )


def path_columns(topology: Topology, paths: PathSet, task: AllocationTask) -> IntArray | None:
    """(C * D, K) index into ``paths`` of the path of each split of a class; None for the identity.

    A latency limit removes paths and moves the remaining ones to the front.
    """
    if all(np.isinf(limit) for limit in task.limits):
        return None
    path_index = [
        np.argsort(~within_limit(paths, topology, limit), axis=1, kind="stable")
        for limit in task.limits
    ]
    return np.concatenate(path_index)


def to_network_columns(splits: torch.Tensor, path_index: IntArray | None) -> torch.Tensor:
    """(B, C * D, K) splits scattered to the columns of the network's paths; see
    :func:`path_columns`.
    """
    if path_index is None:
        return splits
    scatter_index = torch.from_numpy(path_index).expand(splits.shape)
    return torch.zeros_like(splits).scatter_(2, scatter_index, splits)


def records_with_class_names(lines: Lines, row: int, names: Sequence[str]) -> list[dict[str, Any]]:
    """Line records of one matrix, with the class names of the request; tasks of a batch may name
    classes differently.
    """
    row_records = records(lines, row)
    return (
        [{**record, lines.part: name} for record, name in zip(row_records, names, strict=True)]
        if names
        else row_records
    )
