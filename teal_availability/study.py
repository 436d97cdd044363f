"""Availability of a network under several ways of routing: from an instance to records.

A way of routing is named as schemes are, ``name:option=value``.
"""

from __future__ import annotations

from collections.abc import Callable
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
from teal_availability.matrix import classes_of, demand_of
from teal_availability.measure import Availability, Totals, measure, minutes_a_year
from teal_availability.patterns import Patterns, pattern_probabilities
from teal_availability.promises import (
    Promise,
    common_quantile,
    is_within_reach,
    promise_common_shares,
    promise_least_loss,
)
from teal_availability.records import ComponentRow, DemandRow, PromiseRow, SummaryRow
from teal_availability.report import AvailabilityReport
from teal_availability.routing import (
    Igp,
    PathSplits,
    Reserved,
    Routing,
    Solved,
    Tunnels,
    prioritised,
    usual_splits,
)
from teal_availability.settings import (
    COMMON_SHARE,
    DEFAULT_ROUTINGS,
    LEAST_LOSS,
    PROMISED,
    ROUTINGS,
    TAIL_LOSS,
    AvailabilityOptions,
    FailureConfig,
)
from teal_availability.states import States, most_probable
from teal_availability.tail_loss import Effects, effects_of, promise_tail_loss

_TAIL_LOSS_S = 60.0  # after which the program of the largest loss ends with what it has


def availability_of(
    instance: Instance, options: AvailabilityOptions, notify: Callable[[str], None] = lambda _: None
) -> AvailabilityReport:
    """Measure the availability of an instance.

    Args:
        instance: network, traffic and candidate paths.
        options: what fails, and what is measured.
        notify: called with what was found.

    Raises:
        InputError: a fault in the options.
        SolverError: the program of a promise was not solved.
    """
    specs = _specs_of(instance, options, notify)
    components = failing_components(instance.topology, options)
    states = most_probable(
        components.unavailability, options.rest, options.most_down, options.most_states
    )
    notify(
        f"{len(components)} components fail; {len(states):,} states, {states.rest:.2g} of the time "
        "in others"
    )
    rows = _matrices(instance, options)
    problems = [instance.problem(instance.traffic.read([row])) for row in rows.tolist()]
    if not any(float(problem.demand.sum()) > 0 for problem in problems):
        raise InputError(instance.traffic.name, "", "a matrix with demand", "none")
    promised = any(spec.name in PROMISED for spec in specs)
    patterns = pattern_probabilities(problems[0], components) if promised else None
    counts_states = any(spec.name == TAIL_LOSS for spec in specs)
    effects = effects_of(problems[0], components, states) if counts_states else None
    if patterns is not None and not options.routing and not is_within_reach(patterns):
        specs = [spec for spec in specs if spec.name != COMMON_SHARE]
        notify("common-share is left out: its program is too large here")
    found: list[Availability] = []
    promises: list[PromiseRow] = []
    for spec in specs:
        routings: list[Routing] = []
        for row, problem in zip(rows.tolist(), problems, strict=True):
            if patterns is None or spec.name not in PROMISED:
                routings.append(_routing(spec, problem, instance.max_latency, notify))
                continue
            rates, of_classes = _promises(spec, row, problem, patterns, effects, options)
            routings.append(Reserved(problem, rates))
            promises += of_classes
        with progress_bar(
            total=len(states) * len(problems), desc=spec.text, unit="state", leave=False
        ) as bar:
            found.append(measure(spec.text, routings, problems, components, states, bar.update))
    return _report(instance, problems, components, states, found, promises)


def _specs_of(
    instance: Instance, options: AvailabilityOptions, notify: Callable[[str], None]
) -> list[Spec]:
    """The ways of routing that are measured.

    Raises:
        InputError: an unknown one, one that is named twice, or one that takes no classes.
    """
    specs = [parse_spec(text) for text in options.routing or DEFAULT_ROUTINGS]
    if len({spec.text for spec in specs}) < len(specs):
        raise InputError(
            "--routing", "", "each way of routing once", ", ".join(s.text for s in specs)
        )
    if instance.traffic.classes is not None:
        if not options.routing:
            specs = [spec for spec in specs if spec.name != LEAST_LOSS]
            notify("least-loss is left out: upper classes would reserve every path that is left")
        for spec in specs:
            if spec.name in (LEAST_LOSS, TAIL_LOSS):
                expected = (
                    "another way with --classes (upper classes would reserve every path that is "
                    "left): common-share, or teal admit with an availability for each promise"
                )
                raise InputError("--routing", "", expected, spec.name)
    unknown = [spec.name for spec in specs if spec.name not in ROUTINGS]
    if unknown:
        near = did_you_mean(unknown[0], ROUTINGS)
        expected = "one of: " + ", ".join(ROUTINGS)
        raise InputError("--routing", "", expected, repr(unknown[0]) + near)
    return specs


def failing_components(topology: Topology, options: FailureConfig) -> Components:
    """The components of a network that fail, by the settings.

    Raises:
        InputError: a fault in them, or none that fails.
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
        raise InputError("availability", "components", "one that fails at least", "none")
    parallel = [
        name
        for name, kind, links in zip(
            components.names, components.kinds, components.links, strict=True
        )
        if kind == "cable" and links.sum() > len(set(_ends_of(topology, links)))
    ]
    if parallel:
        side_tables.warn(
            f"{topology.name}: parallel circuits between two nodes are one cable, which fails as a "
            f"whole (circuits over different fibres need a node between them): {listed(parallel)}"
        )
    return components


def _ends_of(topology: Topology, links: BoolArray) -> list[tuple[int, int]]:
    """Source and target of each of some links (E,)."""
    source, target = topology.link_source[links], topology.link_target[links]
    return list(zip(source.tolist(), target.tolist(), strict=True))


def _matrices(instance: Instance, options: AvailabilityOptions) -> Int64Array:
    """Numbers of the matrices."""
    rows = rows_of(instance, options.split)
    if options.limit != 1:
        return spread(rows, options.limit)
    totals = np.concatenate([matrices.sum(1) for matrices in instance.traffic.chunks(rows)])
    busiest: Int64Array = rows[[int(totals.argmax())]]
    return busiest


def _routing(
    spec: Spec,
    problem: Problem,
    max_latency: FloatArray | None,
    notify: Callable[[str], None],
) -> Routing:
    """A way of routing without promises for one matrix.

    Raises:
        InputError: an unknown name or option, or a fault in a file.
    """
    match spec.name:
        case "igp":
            usual = "hops" if problem.topology.metric is None else "file"
            of_igp: dict[str, Any] = spec.parse_options(metric=usual, lists="")
            policies = None
            if of_igp["lists"]:
                policies = read_policies(Path(of_igp["lists"]), problem.topology)
            return Igp(problem, of_igp["metric"], policies)
        case "tunnels":
            given: dict[str, Any] = spec.parse_options(scheme="auto", file="", moves=True)
            return Tunnels(problem, _splits(spec, given, problem, notify), moves=given["moves"])
        case "solved":
            gap = float(spec.parse_options(gap=1e-3)["gap"])
            return Solved(problem, gap, max_latency)
    raise AssertionError(spec.name)


def _splits(
    spec: Spec, given: dict[str, Any], problem: Problem, notify: Callable[[str], None]
) -> PathSplits:
    """The splits of tunnels: those of a file, of a scheme, or the usual ones.

    Raises:
        InputError: both a file and a scheme, or a fault in either.
    """
    scheme, file = given["scheme"], given["file"]
    if not file and scheme == "auto":
        return PathSplits.of_candidates(problem.paths, usual_splits(problem))
    if not file:
        found = make_scheme(scheme).solve(prioritised(problem)).splits[0]
        return PathSplits.of_candidates(problem.paths, found)
    if "scheme" in spec.options:
        raise InputError(spec.text, "file", "either a file or a scheme", "both")
    splits = PathSplits.installed(Path(file), problem)
    demand = demand_of(problem)
    without = demand[np.bincount(splits.demand, splits.split, len(demand)) <= 0]
    if without.any():
        notify(
            f"{file}: no tunnels for {np.count_nonzero(without):,} of {len(demand):,} "
            f"demands, {without.sum():.4g} Gbit/s, which count as lost"
        )
    return splits


def _promises(
    spec: Spec,
    row: int,
    problem: Problem,
    patterns: Patterns,
    effects: Effects | None,
    options: AvailabilityOptions,
) -> tuple[FloatArray, list[PromiseRow]]:
    """Reserved rates (D, K) for one matrix, and the promise of each class, the highest first.

    Raises:
        InputError: an unknown option.
    """
    names = ("",) if problem.classes is None else problem.classes.names
    found = _promises_of(spec, problem, patterns, effects, options)
    rows = [
        _promised(spec, name, row, promise, problem, patterns, options)
        for name, promise in zip(names, found, strict=True)
    ]
    return found[-1].rates, rows


def _promises_of(
    spec: Spec,
    problem: Problem,
    patterns: Patterns,
    effects: Effects | None,
    options: AvailabilityOptions,
) -> list[Promise]:
    """The promise of each class, the highest first, or of all demands."""
    match spec.name:
        case "least-loss":
            spec.parse_options()
            return [promise_least_loss(problem, patterns)]
        case "common-share":
            spec.parse_options()
            return promise_common_shares(problem, patterns, options.availability)
        case "tail-loss":
            counts_cut = bool(spec.parse_options(cut=True)["cut"])
            assert effects is not None
            promise = promise_tail_loss(
                problem,
                patterns,
                effects,
                options.availability,
                seconds=_TAIL_LOSS_S,
                counts_cut=counts_cut,
            )
            return [promise]
    raise AssertionError(spec.name)


def _promised(
    spec: Spec,
    of_class: str,
    row: int,
    promise: Promise,
    problem: Problem,
    patterns: Patterns,
    options: AvailabilityOptions,
) -> PromiseRow:
    is_share = spec.name != LEAST_LOSS
    quantile = None
    is_highest = problem.classes is None or of_class == problem.classes.names[0]
    if spec.name == COMMON_SHARE and is_highest:
        own = np.where(classes_of(problem) == 0, demand_of(problem), 0.0)
        alone = problem.with_demand(torch.from_numpy(own[None]))
        quantile = common_quantile(alone, patterns, options.availability, promise)
    lost = (np.nan, np.nan) if is_share else (1 - promise.bound, 1 - promise.value)
    return PromiseRow(
        spec.text,
        of_class,
        row,
        options.availability if is_share else np.nan,
        promise.value,
        promise.bound,
        promise.gap,
        minutes_a_year(lost[0]),
        minutes_a_year(lost[1]),
        int(promise.left_out.sum()),
        np.nan if quantile is None else quantile.value,
        np.nan if quantile is None else quantile.bound,
    )


def _report(
    instance: Instance,
    problems: list[Problem],
    components: Components,
    states: States,
    found: list[Availability],
    promises: list[PromiseRow],
) -> AvailabilityReport:
    names = instance.topology.node_names
    pairs = instance.paths.pairs.tolist()
    rates = np.mean([demand_of(problem) for problem in problems], axis=0).tolist()
    classes = problems[0].classes
    class_of = [""] * len(pairs)
    if classes is not None:
        class_of = [classes.names[number] for number in classes.of_demand.tolist()]
    return AvailabilityReport(
        instance.topology.name,
        instance.traffic.name,
        len(problems),
        len(components),
        len(states),
        states.rest,
        [_summary(one.routing, of_class) for one in found for of_class in one.totals],
        [
            DemandRow(
                one.routing,
                class_of[d],
                names[source],
                names[target],
                rate,
                float(one.demand_mean.low[d]),
                float(one.demand_mean.high[d]),
                *_three(one.demand_time.low[d]),
                *_three(one.demand_time.high[d]),
                minutes_a_year(1 - float(one.demand_mean.high[d])),
                minutes_a_year(1 - float(one.demand_mean.low[d])),
            )
            for one in found
            for d, ((source, target), rate) in enumerate(zip(pairs, rates, strict=True))
        ],
        [
            ComponentRow(
                one.routing,
                components.kinds[c],
                components.names[c],
                float(1 - components.unavailability[c]),
                minutes_a_year(float(one.lost_with[c])),
                minutes_a_year(float(one.gained_by[c])),
            )
            for one in found
            for c in range(len(components))
        ],
        promises,
    )


def _summary(routing: str, of_group: Totals) -> SummaryRow:
    return SummaryRow(
        routing,
        of_group.of_class,
        float(of_group.mean.low),
        float(of_group.mean.high),
        minutes_a_year(1 - float(of_group.mean.high)),
        minutes_a_year(1 - float(of_group.mean.low)),
        *_three(of_group.whole_time.low),
        *_three(of_group.whole_time.high),
        *_three(of_group.total_time.low),
        *_three(of_group.total_time.high),
    )


def _three(of_levels: FloatArray) -> tuple[float, float, float]:
    """Numbers of the three levels."""
    whole, most, much = of_levels.tolist()
    return whole, most, much
