"""Availability study of a network under several routing schemes: from an instance to records.

A routing scheme is specified as ``name:option=value``. Entry point: :func:`availability_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from teal import InputError, Problem, Topology, make_scheme
from teal.app.instance import Instance, rows_of
from teal.errors import did_you_mean, listed
from teal.formats import side_tables
from teal.formats.groups import load_groups
from teal.formats.segment_lists import read_policies
from teal.network.traffic import spread
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array
from teal.runtime.progress import progress_bar
from teal.spec import Spec, parse_spec
from teal_availability.components import Components, components_of
from teal_availability.guarantees import (
    Guarantee,
    common_quantile,
    guarantee_common_fractions,
    guarantee_min_loss,
    is_tractable,
)
from teal_availability.matrix import classes_of, demand_of
from teal_availability.measure import Availability, Totals, measure, minutes_a_year
from teal_availability.records import ComponentRow, DemandRow, PromiseRow, SummaryRow
from teal_availability.report import AvailabilityReport
from teal_availability.routing import (
    Igp,
    PathSplits,
    Reserved,
    Routing,
    Solved,
    Tunnels,
    as_priority_program,
    default_splits,
)
from teal_availability.settings import (
    COMMON_SHARE,
    DEFAULT_ROUTINGS,
    LEAST_LOSS,
    RESERVED_RATE_ROUTINGS,
    ROUTINGS,
    TAIL_LOSS,
    AvailabilityOptions,
    FailureConfig,
)
from teal_availability.states import States, most_probable_states
from teal_availability.survival import SurvivalStates, survival_probabilities
from teal_availability.tail_loss import MergedStates, guarantee_min_cvar, merge_states

# Time limit of the CVaR search, which then returns its incumbent.
_TAIL_LOSS_TIME_LIMIT_S = 60.0


def availability_of(
    instance: Instance, options: AvailabilityOptions, notify: Callable[[str], None] = lambda _: None
) -> AvailabilityReport:
    """Measure the availability of an instance.

    Args:
        instance: network, traffic and candidate paths.
        options: the failing components, routing schemes, network states and matrices.
        notify: called with progress messages.

    Raises:
        InputError: invalid options.
        SolverError: the program of a guarantee was not solved.
    """
    # Routing schemes to measure.
    specs = _routing_specs(instance, options, notify)
    # Network states, and the traffic matrices.
    components = failing_components(instance.topology, options)
    states = most_probable_states(
        components.unavailability,
        options.max_unlisted_probability,
        options.max_failed_components,
        options.max_states,
    )
    notify(
        f"{len(components)} failing components; {len(states):,} states, "
        f"{states.unlisted_probability:.2g} of the time in unlisted states"
    )
    matrix_indices = _selected_matrices(instance, options)
    problems = [
        instance.problem(instance.traffic.read([matrix_index]))
        for matrix_index in matrix_indices.tolist()
    ]
    if not any(float(problem.demand.sum()) > 0 for problem in problems):
        raise InputError.invalid(instance.traffic.name, "", "no matrix has a demand above 0")
    # Schemes with reserved rates need the survival states of the demands, and tail-loss the merged
    # network states. Both depend on the paths, not on the matrix.
    reserves_rates = any(spec.name in RESERVED_RATE_ROUTINGS for spec in specs)
    survival_states = survival_probabilities(problems[0], components) if reserves_rates else None
    needs_merged_states = any(spec.name == TAIL_LOSS for spec in specs)
    merged_states = merge_states(problems[0], components, states) if needs_merged_states else None
    if survival_states is not None and not options.routing and not is_tractable(survival_states):
        specs = [spec for spec in specs if spec.name != COMMON_SHARE]
        notify("common-share skipped: its program is too large for this network")
    # Measure each routing scheme over all matrices.
    availabilities: list[Availability] = []
    guarantee_rows: list[PromiseRow] = []
    for spec in specs:
        routings: list[Routing] = []
        # One instance of the scheme for each matrix; guarantees also give result rows.
        for matrix_index, problem in zip(matrix_indices.tolist(), problems, strict=True):
            if survival_states is None or spec.name not in RESERVED_RATE_ROUTINGS:
                routings.append(_make_routing(spec, problem, instance.max_latency, notify))
                continue
            rates, class_rows = _reserve_rates(
                spec, matrix_index, problem, survival_states, merged_states, options
            )
            routings.append(Reserved(problem, rates))
            guarantee_rows += class_rows
        with progress_bar(
            total=len(states) * len(problems), desc=spec.text, unit="state", leave=False
        ) as bar:
            availabilities.append(
                measure(spec.text, routings, problems, components, states, bar.update)
            )
    return _report(instance, problems, components, states, availabilities, guarantee_rows)


def _routing_specs(
    instance: Instance, options: AvailabilityOptions, notify: Callable[[str], None]
) -> list[Spec]:
    """Parse the routing schemes of --routing, or the default ones, and check them.

    Args:
        instance: network and traffic; with classes only some schemes are supported.
        options: settings with the specifications.
        notify: called with a message for each default scheme that is skipped.

    Raises:
        InputError: an unknown scheme, a repeated scheme, or a scheme that does not support classes.
    """
    specs = [parse_spec(text) for text in options.routing or DEFAULT_ROUTINGS]
    if len({spec.text for spec in specs}) < len(specs):
        raise InputError.invalid(
            "--routing", "", "a routing scheme repeats: " + ", ".join(s.text for s in specs)
        )
    # With classes, only some schemes apply.
    if instance.traffic.classes is not None:
        if not options.routing:
            specs = [spec for spec in specs if spec.name != LEAST_LOSS]
            notify("least-loss skipped: upper classes would reserve all remaining paths")
        for spec in specs:
            if spec.name in (LEAST_LOSS, TAIL_LOSS):
                raise InputError.invalid(
                    "--routing",
                    "",
                    f"{spec.name} does not support --classes: upper classes would reserve all "
                    "remaining paths",
                    "use common-share, or teal admit with an availability for each promise",
                )
    # Check the names.
    unknown_names = [spec.name for spec in specs if spec.name not in ROUTINGS]
    if unknown_names:
        suggestion = did_you_mean(unknown_names[0], ROUTINGS)
        expected = "one of: " + ", ".join(ROUTINGS)
        raise InputError("--routing", "", expected, repr(unknown_names[0]) + suggestion)
    return specs


def failing_components(topology: Topology, options: FailureConfig) -> Components:
    """Return the components of a network that may fail, by the settings of the failures.

    Args:
        topology: the network.
        options: files and availabilities of the components.

    Raises:
        InputError: invalid settings, or no failing component.
    """
    groups = load_groups(options.groups, topology) if options.groups else {}
    components = components_of(
        topology,
        file=options.components,
        groups=groups,
        cable_availability=options.cable_availability,
        node_availability=options.node_availability,
        group_availability=options.group_availability,
    )
    if not len(components):
        raise InputError.invalid(
            "availability",
            "components",
            "no component fails: every availability is 1",
            "set an availability below 1",
        )
    # Names of cables with more than one link between the same nodes in the same direction.
    parallel_circuits = [
        name
        for name, kind, links in zip(
            components.names, components.kinds, components.links, strict=True
        )
        if kind == "cable" and links.sum() > len(set(_link_ends(topology, links)))
    ]
    if parallel_circuits:
        side_tables.warn(
            f"{topology.name}: parallel circuits between two nodes fail together, as one cable; "
            "add a node between circuits over different fibres: "
            f"{listed(parallel_circuits)}"
        )
    return components


def _link_ends(topology: Topology, links: BoolArray) -> list[tuple[int, int]]:
    """Return the (source, target) nodes of some links.

    Args:
        topology: the network.
        links: (E,) True for the selected links.
    """
    source = topology.link_source[links]
    target = topology.link_target[links]
    return list(zip(source.tolist(), target.tolist(), strict=True))


def _selected_matrices(instance: Instance, options: AvailabilityOptions) -> Int64Array:
    """Return the indices of the traffic matrices to measure.

    They are spread evenly over the selected split; if the limit is 1, the matrix with the most
    traffic is chosen.

    Args:
        instance: network and traffic.
        options: settings with the split and the limit of the number of matrices.
    """
    matrix_indices = rows_of(instance, options.split)
    if options.limit != 1:
        return spread(matrix_indices, options.limit)
    # One matrix: the one with the most traffic, by the total rate of each matrix.
    traffic_sums = np.concatenate(
        [matrices.sum(1) for matrices in instance.traffic.chunks(matrix_indices)]
    )
    busiest_matrix: Int64Array = matrix_indices[[int(traffic_sums.argmax())]]
    return busiest_matrix


def _make_routing(
    spec: Spec,
    problem: Problem,
    max_latency: FloatArray | None,
    notify: Callable[[str], None],
) -> Routing:
    """Build a routing scheme without reserved rates for one matrix.

    Args:
        spec: specification: igp, tunnels or solved, with options.
        problem: the matrix.
        max_latency: (D,) latency limit of each demand, ms, infinite for no limit; None for no
            limits.
        notify: called with messages about demands without tunnels.

    Raises:
        InputError: an unknown name or option, or an invalid file.
    """
    match spec.name:
        case "igp":
            default_metric = "hops" if problem.topology.metric is None else "file"
            igp_options: dict[str, Any] = spec.parse_options(metric=default_metric, lists="")
            policies = None
            if igp_options["lists"]:
                policies = read_policies(Path(igp_options["lists"]), problem.topology)
            return Igp(problem, igp_options["metric"], policies)
        # Tunnels: split ratios of a file, of a scheme, or the default ones.
        case "tunnels":
            tunnel_options: dict[str, Any] = spec.parse_options(scheme="auto", file="", moves=True)
            return Tunnels(
                problem,
                _tunnel_splits(spec, tunnel_options, problem, notify),
                moves=tunnel_options["moves"],
            )
        case "solved":
            gap = float(spec.parse_options(gap=1e-3)["gap"])
            return Solved(problem, gap, max_latency)
    raise AssertionError(spec.name)


def _tunnel_splits(
    spec: Spec, tunnel_options: dict[str, Any], problem: Problem, notify: Callable[[str], None]
) -> PathSplits:
    """Return the split ratios of tunnels: from a file, from a scheme, or the default splits.

    Args:
        spec: specification of the routing scheme, for messages.
        tunnel_options: parsed options ``scheme`` and ``file``.
        problem: the matrix.
        notify: called with a message about demands without tunnels in the file.

    Raises:
        InputError: both a file and a scheme, or an invalid file or scheme.
    """
    # Without a file: splits of the default programs, or of a scheme.
    scheme = tunnel_options["scheme"]
    file = tunnel_options["file"]
    if not file and scheme == "auto":
        return PathSplits.from_candidate_paths(problem.paths, default_splits(problem))
    if not file:
        scheme_splits = make_scheme(scheme).solve(as_priority_program(problem)).splits[0]
        return PathSplits.from_candidate_paths(problem.paths, scheme_splits)
    # Splits of a file.
    if "scheme" in spec.options:
        raise InputError.invalid(
            spec.text, "file", "a file and a scheme are given", "drop one of them"
        )
    splits = PathSplits.from_allocation(Path(file), problem)
    demand = demand_of(problem)
    demand_without_tunnels = demand[
        np.bincount(splits.demand_index, splits.split, len(demand)) <= 0
    ]
    if demand_without_tunnels.any():
        notify(
            f"{file}: no tunnels for {np.count_nonzero(demand_without_tunnels):,} of "
            f"{len(demand):,} demands, {demand_without_tunnels.sum():.4g} Gbit/s; they count "
            "as lost"
        )
    return splits


def _reserve_rates(
    spec: Spec,
    matrix_index: int,
    problem: Problem,
    survival_states: SurvivalStates,
    merged_states: MergedStates | None,
    options: AvailabilityOptions,
) -> tuple[FloatArray, list[PromiseRow]]:
    """Compute the guarantees of one matrix under a scheme with reserved rates.

    Args:
        spec: routing scheme.
        matrix_index: index of the matrix.
        problem: the matrix.
        survival_states: probabilities of its survival states.
        merged_states: network states; needed for tail-loss only.
        options: settings with the availability target.

    Returns:
        the reserved rates (D, K) in Gbit/s, and a result row for each class, the highest first.

    Raises:
        InputError: an unknown option.
    """
    class_names = ("",) if problem.classes is None else problem.classes.names
    guarantees = _compute_guarantees(spec, problem, survival_states, merged_states, options)
    guarantee_rows = [
        _guarantee_row(spec, name, matrix_index, guarantee, problem, survival_states, options)
        for name, guarantee in zip(class_names, guarantees, strict=True)
    ]
    return guarantees[-1].rates, guarantee_rows


def _compute_guarantees(
    spec: Spec,
    problem: Problem,
    survival_states: SurvivalStates,
    merged_states: MergedStates | None,
    options: AvailabilityOptions,
) -> list[Guarantee]:
    """Compute the guarantee of each class, the highest first, or one of all demands.

    Args:
        spec: routing scheme: least-loss, common-share or tail-loss.
        problem: one matrix.
        survival_states: probabilities of its survival states.
        merged_states: network states; needed for tail-loss only.
        options: settings with the availability target.

    Raises:
        InputError: an unknown option of the scheme.
        SolverError: the program was not solved.
    """
    match spec.name:
        case "least-loss":
            spec.parse_options()
            return [guarantee_min_loss(problem, survival_states)]
        case "common-share":
            spec.parse_options()
            return guarantee_common_fractions(problem, survival_states, options.availability)
        case "tail-loss":
            counts_disconnected = bool(spec.parse_options(cut=True)["cut"])
            # The caller has computed the merged states for this scheme.
            assert merged_states is not None
            guarantee = guarantee_min_cvar(
                problem,
                survival_states,
                merged_states,
                options.availability,
                seconds=_TAIL_LOSS_TIME_LIMIT_S,
                counts_disconnected=counts_disconnected,
            )
            return [guarantee]
    raise AssertionError(spec.name)


def _guarantee_row(
    spec: Spec,
    class_name: str,
    matrix_index: int,
    guarantee: Guarantee,
    problem: Problem,
    survival_states: SurvivalStates,
    options: AvailabilityOptions,
) -> PromiseRow:
    """Return the result row of a guarantee of one class and matrix.

    The row of the highest class under common-share also has the largest share that every demand
    keeps in the required share of the time (quantile).

    Args:
        spec: routing scheme of the guarantee.
        class_name: name of the class; "" without classes.
        matrix_index: index of the matrix.
        guarantee: guarantee of the class.
        problem: the matrix.
        survival_states: probabilities of its survival states.
        options: settings with the availability target.
    """
    has_target = spec.name != LEAST_LOSS
    quantile = None
    is_highest = problem.classes is None or class_name == problem.classes.names[0]
    # The quantile is computed for the highest class alone.
    if spec.name == COMMON_SHARE and is_highest:
        highest_class_demand = np.where(classes_of(problem) == 0, demand_of(problem), 0.0)
        highest_class = problem.with_demand(torch.from_numpy(highest_class_demand[None]))
        quantile = common_quantile(highest_class, survival_states, options.availability, guarantee)
    # Lower bound on the lost share of all traffic, and the lost share of these rates; NaN for
    # schemes that guarantee shares of single demands.
    lost_share_bounds = (
        (np.nan, np.nan) if has_target else (1 - guarantee.bound, 1 - guarantee.value)
    )
    # In the order of the fields of PromiseRow; NaN for values that the scheme does not have.
    return PromiseRow(
        spec.text,
        class_name,
        matrix_index,
        options.availability if has_target else np.nan,
        guarantee.value,
        guarantee.bound,
        guarantee.gap,
        minutes_a_year(lost_share_bounds[0]),
        minutes_a_year(lost_share_bounds[1]),
        int(guarantee.is_excluded.sum()),
        np.nan if quantile is None else quantile.value,
        np.nan if quantile is None else quantile.bound,
    )


def _report(
    instance: Instance,
    problems: list[Problem],
    components: Components,
    states: States,
    availabilities: list[Availability],
    guarantee_rows: list[PromiseRow],
) -> AvailabilityReport:
    """Collect the results of all routing schemes in a report.

    Args:
        instance: network and traffic.
        problems: the measured matrices.
        components: the failing components.
        states: the listed network states.
        availabilities: availability of each routing scheme.
        guarantee_rows: result rows of the guarantees.
    """
    return AvailabilityReport(
        instance.topology.name,
        instance.traffic.name,
        len(problems),
        len(components),
        len(states),
        states.unlisted_probability,
        [_summary_row(item.routing, totals) for item in availabilities for totals in item.totals],
        _demand_rows(instance, problems, availabilities),
        [row for item in availabilities for row in _component_rows(item, components)],
        guarantee_rows,
    )


def _demand_rows(
    instance: Instance, problems: Sequence[Problem], availabilities: Sequence[Availability]
) -> list[DemandRow]:
    """Return a result row for each routing scheme and demand.

    Args:
        instance: network and traffic.
        problems: the measured matrices; rates are averaged over them.
        availabilities: availability of each routing scheme.
    """
    # Names, mean rate and class name of each demand.
    names = instance.topology.node_names
    pairs = instance.paths.pairs.tolist()
    rates = np.mean([demand_of(problem) for problem in problems], axis=0).tolist()
    classes = problems[0].classes
    class_of = [""] * len(pairs)
    if classes is not None:
        class_of = [classes.names[index] for index in classes.of_demand.tolist()]
    # Mean delivered share; share of the time with 100, 99 and 90% delivered; minutes lost a year.
    # Each as lower bounds, then upper bounds.
    return [
        DemandRow(
            availability.routing,
            class_of[demand_index],
            names[source],
            names[target],
            rate,
            float(availability.demand_mean_share.low[demand_index]),
            float(availability.demand_mean_share.high[demand_index]),
            *_level_shares(availability.demand_time_at_levels.low[demand_index]),
            *_level_shares(availability.demand_time_at_levels.high[demand_index]),
            # The lower bound of the loss is one minus the upper bound of the share.
            minutes_a_year(1 - float(availability.demand_mean_share.high[demand_index])),
            minutes_a_year(1 - float(availability.demand_mean_share.low[demand_index])),
        )
        for availability in availabilities
        for demand_index, ((source, target), rate) in enumerate(zip(pairs, rates, strict=True))
    ]


def _component_rows(availability: Availability, components: Components) -> list[ComponentRow]:
    """Return a result row for each failing component, under one routing scheme.

    Args:
        availability: availability of the routing scheme.
        components: the failing components.
    """
    return [
        ComponentRow(
            availability.routing,
            components.kinds[component_index],
            components.names[component_index],
            float(1 - components.unavailability[component_index]),
            minutes_a_year(float(availability.lost_while_down[component_index])),
            minutes_a_year(float(availability.gained_without_failures[component_index])),
        )
        for component_index in range(len(components))
    ]


def _summary_row(routing: str, totals: Totals) -> SummaryRow:
    """Return the result row of all demands together, or of one class, under a routing scheme.

    Args:
        routing: name of the scheme.
        totals: its availability for these demands.
    """
    # In the order of the fields of SummaryRow: lower bounds before upper bounds.
    return SummaryRow(
        routing,
        totals.class_name,
        float(totals.mean.low),
        float(totals.mean.high),
        minutes_a_year(1 - float(totals.mean.high)),
        minutes_a_year(1 - float(totals.mean.low)),
        *_level_shares(totals.all_demands_time.low),
        *_level_shares(totals.all_demands_time.high),
        *_level_shares(totals.total_traffic_time.low),
        *_level_shares(totals.total_traffic_time.high),
    )


def _level_shares(levels: FloatArray) -> tuple[float, float, float]:
    """Return the shares of the time at the three levels, 100, 99 and 90% delivered, as a tuple.

    Args:
        levels: (3,) share of the time at each level.
    """
    share_100, share_99, share_90 = levels.tolist()
    return share_100, share_99, share_90
