"""Requested program: request options resolved against a registered network.

:func:`resolve_request` turns the options of a request into an :class:`AllocationTask` (objective,
latency limits of demand classes, side conditions, solver). Requests with equal tasks are solved in
one batch. :class:`DemandValues` holds the registered weights and bandwidth functions of the
demands.

Axes: B matrices, D pairs of nodes, C demand classes, K candidate paths of a pair. With classes,
arrays over demands have C * D rows, class by class.
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
from teal.problem.offers import CONDITIONS_BY_OPTION
from teal.problem.part_certificates import PartCertificates, records
from teal.runtime.arrays import FloatArray, IntArray
from teal_serve.engine.errors import invalid_request
from teal_serve.engine.requests import FunctionSpec, NetworkSpec, Options, WeightSpec
from teal_serve.engine.solvers import AUTO, MODEL, MODEL_PDHG


@dataclasses.dataclass(frozen=True, eq=False)
class DemandValues:
    """Registered values of demands.

    Attributes:
        weight: (D,) value per Gbit/s of each demand; None for 1.
        functions: bandwidth functions of the demands; None without functions.
    """

    weight: FloatArray | None = None
    functions: BandwidthFunctions | None = None


def resolve_demand_values(topology: Topology, paths: PathSet, spec: NetworkSpec) -> DemandValues:
    """Return the weights and bandwidth functions of a registration, in the order of the demands.

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
    """Return the weights (D,) of the demands; 1 for pairs of nodes that are not listed.

    Args:
        topology: topology of the network.
        paths: candidate paths, with the pairs of nodes of the demands.
        pair_specs: weights of pairs of nodes, by name.

    Raises:
        ServiceError: unknown node, or repeated pair.
    """
    # Demand index of each pair of node indices.
    demand_index = {pair: d for d, pair in enumerate(map(tuple, paths.pairs.tolist()))}
    node_index = topology.node_index()
    weight = np.ones(paths.num_demands)
    weight_of_pair = {
        (pair_spec.source, pair_spec.target): pair_spec.weight for pair_spec in pair_specs
    }
    if len(weight_of_pair) < len(pair_specs):
        raise invalid_request("weights: repeated pair of nodes; list each pair once")
    for (source, target), value in weight_of_pair.items():
        demand = demand_index.get((node_index.get(source, -1), node_index.get(target, -1)))
        if demand is None:
            raise invalid_request(
                f"weights: {source[:80]!r} and {target[:80]!r} are not two different nodes of the "
                "network"
            )
        weight[demand] = value
    return weight


def _demand_functions(
    topology: Topology, paths: PathSet, pair_specs: Sequence[FunctionSpec]
) -> BandwidthFunctions:
    """Return the bandwidth functions of all demands, from listed ones and the default.

    Args:
        topology: topology of the network.
        paths: candidate paths, with the pairs of nodes of the demands.
        pair_specs: functions of pairs of nodes, by name; one without nodes is the default.

    Raises:
        ServiceError: unknown node, repeated pair, a function that is not concave, or a demand
            without a function.
    """
    # Reject repeated pairs, and pairs of a node with itself; the default has the names "".
    function_pairs = [(pair_spec.source, pair_spec.target) for pair_spec in pair_specs]
    if len(set(function_pairs)) < len(function_pairs):
        raise invalid_request(
            "functions: repeated pair of nodes; list each pair once, and at most one default "
            "without nodes"
        )
    if self_pairs := [source for source, target in function_pairs if source and source == target]:
        raise invalid_request(
            f"functions: source and target are both {self_pairs[0][:80]!r}; name two different "
            "nodes"
        )
    # Convert the functions, which must be concave.
    function_records = [
        pair_spec.model_dump(exclude_none=True, mode="json") for pair_spec in pair_specs
    ]
    try:
        return bandwidth_functions_of(function_records, "functions", topology, paths.pairs)
    except InputError as error:
        raise invalid_request(str(error)[:300]) from None


# Assumed work per matrix under max_min, a side condition or a model, relative to a plain program,
# until it is measured on the network; on GEANT, UsCarrier and Kdl it was 2 to 6.
_DEFAULT_RELATIVE_WORK = 6.0


@dataclasses.dataclass(frozen=True)
class AllocationTask:
    """Requested program; requests with equal tasks are solved in one batch.

    Attributes:
        objective: name of the objective with its options.
        limits: (C,) largest path latency of each demand class, ms, infinite for no limit; ()
            without classes.
        conditions: side conditions for one matrix, over the C * D demands of the classes.
        condition_words: (option, word) of each side condition whose option takes a word, such as
            ("protect", "cables").
        solver: requested solver: auto, model, model-pdhg or pdhg.
    """

    objective: str
    limits: tuple[float, ...] = ()
    conditions: tuple[Condition, ...] = ()
    condition_words: tuple[tuple[str, str], ...] = ()
    solver: str = AUTO

    @property
    def parsed_objective(self) -> Objective:
        """Objective with parsed options."""
        return Objective.of(self.objective)

    @property
    def network(self) -> AllocationTask:
        """Same task without conditions and solver: the key of the problem without demand."""
        return AllocationTask(self.objective, self.limits)

    @property
    def is_resumable(self) -> bool:
        """Whether a search can continue from the splits and prices of an earlier one.

        It cannot for sequences of programs, and for side conditions with variables that the splits
        do not determine.
        """
        is_sequence = bool(self.limits) or self.parsed_objective.rules.is_sequence
        return not is_sequence and all(
            condition.splits_determine_shares for condition in self.conditions
        )

    @functools.cached_property
    def kind(self) -> tuple[Any, ...]:
        """Key of the service-time estimate: tasks of one kind take similar time on a network.

        It has the number of classes, the objective if it is a sequence of programs, the requested
        solver unless that is auto, and the names of the side conditions.
        """
        name = self.objective if self.parsed_objective.rules.is_sequence else ""
        solver = "" if self.solver == AUTO else self.solver
        return len(self.limits), name, solver, *(condition.name for condition in self.conditions)

    @functools.cached_property
    def default_relative_work(self) -> float:
        """Assumed work per matrix relative to a plain program, until it is measured.

        A plain program has no classes, conditions and model; the work grows with the classes.
        """
        # Fair objectives without classes, such as max_min, are sequences of programs.
        is_fair = self.parsed_objective.rules.is_sequence and not self.limits
        has_model = self.solver in (MODEL, MODEL_PDHG)
        return max(1, len(self.limits)) * (
            _DEFAULT_RELATIVE_WORK if self.conditions or is_fair or has_model else 1.0
        )

    def problem(self, problem_without_demand: Problem, rates: FloatArray) -> Problem:
        """Return the problem of a batch of matrices with the side conditions.

        Args:
            problem_without_demand: problem of the classes without demand, B = 1, with current
                capacities.
            rates: (B, C * D) Gbit/s.
        """
        problem = problem_without_demand.with_demand(torch.from_numpy(rates))
        for condition in self.conditions:
            problem = problem.under(condition.for_batch(len(rates)))
        return problem

    def metrics(self, problem: Problem, splits: torch.Tensor) -> dict[str, FloatArray]:
        """Return the figures of the side conditions, such as the fraction of demand that moves.

        Args:
            problem: B matrices with their side conditions.
            splits: (B, D, K) allocated splits.

        Returns:
            name of the figure in responses -> (B,) values.
        """
        figures_by_name: dict[str, FloatArray] = {}
        for condition in problem.conditions:
            for name, row_values in condition.figures(problem.program, splits).items():
                figures_by_name[name] = row_values.cpu().numpy()
        return figures_by_name


def prepare_conditions(problem: Problem, groups: LinkGroups) -> dict[str, Any]:
    """Precompute the data of each side condition that a request may name.

    Args:
        problem: problem without demand, over the paths of all pairs.
        groups: link indices of each registered shared-risk group.

    Returns:
        option -> data of the condition, or the InputError why the network does not support it.
    """
    # Groups of links that fail together, by the value of the option that protects against them.
    link_groups_by_name = {"cables": problem.topology.cables(), "groups": groups}
    prepared: dict[str, Any] = {}
    for name, condition_type in CONDITIONS_BY_OPTION.items():
        try:
            prepared[name] = condition_type.prepare(
                problem.ops, problem.topology.num_links, link_groups_by_name
            )
        # Stored here, and raised for a request that names the condition.
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
    """Return the program that the options of a request ask for on a network.

    Args:
        options: options of the request.
        spec: settings of the registration.
        topology: topology of the network.
        paths: candidate paths of the network.
        prepared: option of a side condition -> its precomputed data, or the InputError why the
            network does not support it.
        previous: (D, K) installed splits, or (C * D, K) those of each class; None if the request
            names none.

    Raises:
        ServiceError: options that exclude each other.
    """
    # Resolve objective and latency limits of the classes.
    limits = (
        tuple(latency_limits(options.classes, options.latency_limits_ms)) if options.classes else ()
    )
    task = AllocationTask(options.objective_name(spec.objective), limits, solver=options.solver)
    try:
        spec.require_data(task.objective)
    except ValueError as error:
        raise invalid_request(f"objective: {error}") from None
    # Collect the requested side conditions by option. The installed splits must be given if and
    # only if one of these conditions needs them.
    requested_values = {
        name: value
        for name in CONDITIONS_BY_OPTION
        if (value := getattr(options, name)) is not None
    }
    options_needing_previous = [
        name
        for name, condition_type in CONDITIONS_BY_OPTION.items()
        if condition_type.needs_previous
    ]
    if (previous is None) == bool(set(options_needing_previous) & set(requested_values)):
        names = " or ".join(options_needing_previous)
        raise invalid_request(
            f"{names}: must be used together with the query parameter previous, the id of the "
            "installed answer"
        )
    # Build the conditions, then check that they can be combined with objective and each other.
    class_splits = None if previous is None else _splits_by_class(previous, topology, paths, task)
    conditions: dict[str, Condition] = {}
    for name, value in requested_values.items():
        if options.entries and not CONDITIONS_BY_OPTION[name].allows_rounding:
            raise invalid_request(
                f"{name}: cannot be combined with entries, since rounding violates it"
            )
        conditions[name] = _build_condition(name, value, prepared[name], class_splits, limits)
    # A condition that excludes the objective or another condition returns a text.
    for name, condition in conditions.items():
        other_conditions = [each for each in conditions.values() if each is not condition]
        if requirement := condition.unmet_requirement(task.parsed_objective, other_conditions):
            raise invalid_request(f"{name}: expected {requirement}")
    condition_words = tuple(
        (name, value) for name, value in requested_values.items() if isinstance(value, str)
    )
    return dataclasses.replace(
        task, conditions=tuple(conditions.values()), condition_words=condition_words
    )


def _splits_by_class(
    previous: FloatArray, topology: Topology, paths: PathSet, task: AllocationTask
) -> torch.Tensor:
    """Return the installed splits (C * D, K), in the path columns of the classes.

    Args:
        previous: (D, K) installed splits, or (C * D, K) those of each class.
        topology: topology of the network.
        paths: candidate paths of the network.
        task: task with the latency limits of the classes.

    Raises:
        ServiceError: the splits have another number of classes.
    """
    if len(previous) != max(1, len(task.limits)) * paths.num_demands:
        raise invalid_request(
            "previous: the answer has another number of classes; use an answer with the "
            "classes of this request"
        )
    network_columns = path_columns(topology, paths, task)
    return torch.from_numpy(
        previous
        if network_columns is None
        else np.take_along_axis(previous, network_columns, axis=1)
    )


def _build_condition(
    name: str,
    value: Any,
    prepared_data: Any,
    class_splits: torch.Tensor | None,
    limits: Sequence[float],
) -> Condition:
    """Build a requested side condition.

    Args:
        name: option of the condition.
        value: value of the option.
        prepared_data: precomputed data of the condition, or the InputError why the network does not
            support it.
        class_splits: (C * D, K) installed splits; None if the request names none.
        limits: (C,) latency limits of the classes, ms; empty without classes.

    Raises:
        ServiceError: the network does not support the condition, or the value is invalid.
    """
    try:
        if isinstance(prepared_data, InputError):
            raise prepared_data
        # Option value, prepared data, installed splits, number of classes (at least 1), and whether
        # any class has a latency limit.
        return CONDITIONS_BY_OPTION[name].from_request(
            ConditionRequest(
                value,
                prepared_data,
                class_splits,
                max(1, len(limits)),
                bool(np.isfinite(limits).any()),
            )
        )
    except InputError as error:
        raise invalid_request(str(error)) from None


def single_program_task(objective: str) -> AllocationTask:
    """Return the task of an objective; total_flow replaces an objective of several programs.

    The task is used to calibrate service times, and for allocations for the next interval, whose
    demands (which max_min needs) are unknown.
    """
    return AllocationTask(
        ObjectiveName.TOTAL_FLOW if Objective.of(objective).rules.is_sequence else objective
    )


def link_groups(topology: Topology, spec: NetworkSpec) -> list[list[int]]:
    """Return the link indices of each registered shared-risk group, ascending.

    Args:
        topology: topology of the network.
        spec: settings of the registration, with the cables of each group as pairs of node names.

    Raises:
        ServiceError: unknown cable.
    """
    try:
        return [
            sorted({link for a, b in cables for link in topology.find_links(a, b)})
            for cables in spec.groups.values()
        ]
    except InputError as error:
        raise invalid_request(f"groups: {str(error)[:200]}") from None


def zero_demand_problem(
    topology: Topology, paths: PathSet, task: AllocationTask, demand_values: DemandValues
) -> Problem:
    """Build the problem of a task with one matrix of zero demand: (1, C * D), class by class.

    Args:
        topology: topology as registered.
        paths: candidate paths of all pairs of nodes.
        task: requested program.
        demand_values: weights and bandwidth functions.
    """
    # Without classes, the demands are the pairs of nodes, over all candidate paths.
    num_classes = max(1, len(task.limits))
    rules = task.parsed_objective.rules
    zero_demand = np.zeros((1, num_classes * paths.num_demands))
    classes = None
    paths_by_class = paths
    # With classes, repeat the pairs for each class, and keep the paths within its latency limit.
    if task.limits:
        names = [str(index) for index in range(num_classes)]
        classes = DemandClasses.of_equal_size(names, paths.num_demands)
        pairs = np.tile(paths.pairs, (num_classes, 1))
        paths_by_class = class_paths(
            paths, topology, pairs, classes, dict(zip(names, task.limits, strict=True))
        )
    # Weights apply only without classes.
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
    """Return the column that each path of a class has in the network's path set.

    A latency limit removes the paths that exceed it and moves the others to the front.

    Args:
        topology: topology of the network.
        paths: candidate paths of the network.
        task: task with the latency limit of each class.

    Returns:
        (C * D, K) columns in ``paths``, class by class; None if no class has a limit.
    """
    if all(np.isinf(limit) for limit in task.limits):
        return None
    # (D, K) for each class: columns within the limit, then the others, each in their order.
    columns_by_class = [
        np.argsort(~within_limit(paths, topology, limit), axis=1, kind="stable")
        for limit in task.limits
    ]
    return np.concatenate(columns_by_class)


def to_network_columns(splits: torch.Tensor, network_columns: IntArray | None) -> torch.Tensor:
    """Move splits from the path columns of the classes to those of the network's path set.

    Args:
        splits: (B, C * D, K) in the path columns of the classes.
        network_columns: (C * D, K) column in the network's path set of each path of a class;
            None if the columns are the same.

    Returns:
        (B, C * D, K) splits, 0 for paths that exceed the latency limit.
    """
    if network_columns is None:
        return splits
    # The split of path k of demand d goes to column network_columns[d, k].
    scatter_index = torch.from_numpy(network_columns).expand(splits.shape)
    return torch.zeros_like(splits).scatter_(2, scatter_index, splits)


def records_with_class_names(
    certificates: PartCertificates, row: int, names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the figures of each class or level of one matrix, as response fields.

    Args:
        certificates: figures of the classes or levels of a batch.
        row: index of the matrix in the batch.
        names: class names of the request, since requests of a batch may name classes differently;
            empty without classes.
    """
    # `part_kind` is the name of a record's field, "class"; its value becomes the class name.
    row_records = records(certificates, row)
    return (
        [
            {**record, certificates.part_kind: name}
            for record, name in zip(row_records, names, strict=True)
        ]
        if names
        else row_records
    )
