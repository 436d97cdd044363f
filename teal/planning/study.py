"""The cost of failures on a network: every failure under every matrix, part by part."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from teal.app.instance import Instance, instance_key, rows_of
from teal.app.run_files import Entries, require_same
from teal.formats.groups import load_groups
from teal.formats.rows import from_text
from teal.network.failures import NO_FAILURE, Failure, cable_failures, failures_of, pair_failures
from teal.objectives import Objective
from teal.planning.plan import (
    BLOCK_MATRICES,
    FullestLinks,
    Outage,
    PlanReport,
    SweepPart,
    by_failure,
    outages,
)
from teal.planning.settings import PlanOptions
from teal.runtime.arrays import Int64Array
from teal.runtime.progress import progress_bar


def plan(
    instance: Instance,
    options: PlanOptions,
    entries: Entries,
    notify: Callable[[str], None] = lambda _: None,
) -> PlanReport:
    """Solve what is missing of all failures under all matrices.

    Args:
        instance: network, traffic, candidate paths and program.
        options: the failures and matrices, and the gap.
        entries: what an earlier run has computed of the same instance; receives what is computed.
        notify: called with what was found.

    Raises:
        InputError: groups of cables that cannot be read, or entries of another instance.
    """
    require_same(entries, instance_key(instance), instance.topology.name)
    # Failures of single elements, under the chosen matrices.
    cables = cable_failures(instance.topology)
    groups = load_groups(options.groups, instance.topology) if options.groups else {}
    kinds = options.failures or ("cables",)
    singles = [NO_FAILURE, *failures_of(kinds, instance.topology, groups)]
    instance = instance.surviving([failure.links for failure in singles], notify)
    rows = rows_of(instance, options.split)[: options.limit or None]
    results = _sweep(instance, rows, options, entries, singles, "failures")
    # Pairs of the cables that cost most alone.
    if options.pairs:
        count = math.comb(len(cables), 2)
        cost = _costs(results, cables, instance.objective)
        pairs = pair_failures(cables, cost, options.max_pairs)
        if len(pairs) < count:
            notify(
                f"{len(pairs):,} of {count:,} pairs of cables ({100 * len(pairs) / count:.3g}%): "
                "those whose cables "
                "cost most alone (--max-pairs)"
            )
        instance = instance.surviving([pair.links for pair in pairs], notify)
        results = _sweep(instance, rows, options, entries, pairs, "pairs of cables")
    missed = sum(outage.gap > options.gap for outage in results)
    if missed:
        notify(
            f"{missed:,} of {len(results):,} cases did not reach a gap of {options.gap:g}: see the "
            "column gap"
        )
    normal = _fullest(instance, entries, [NO_FAILURE.name])
    fullest = _fullest(instance, entries)
    return PlanReport(
        instance.topology, instance.traffic, instance.objective, tuple(results), normal, fullest
    )


def _sweep(
    instance: Instance,
    rows: Int64Array,
    options: PlanOptions,
    entries: Entries,
    failures: Sequence[Failure],
    what: str,
) -> list[Outage]:
    """Solve the parts of these failures that are missing; all outages so far."""
    finished_parts = {SweepPart(*entry["part"]) for entry in entries.entries("outages")}
    firsts = range(0, len(rows), BLOCK_MATRICES)
    parts = {SweepPart(int(rows[first]), failure.name) for first in firsts for failure in failures}
    fullest = _fullest(instance, entries)
    with progress_bar(
        total=len(parts),
        initial=len(parts & finished_parts),
        desc=what,
        unit=f"x {BLOCK_MATRICES} matrices",
    ) as bar:
        for part, part_outages, peaks in outages(
            instance, rows, options.gap, failures, finished_parts
        ):
            larger = fullest.larger(part.failure, peaks)
            fullest.add(part.failure, larger)
            outage_rows = [vars(outage) for outage in part_outages]
            entries.add("outages", {"part": part, "found": outage_rows, "peaks": larger})
            bar.update()
    return [from_text(Outage, o) for entry in entries.entries("outages") for o in entry["found"]]


def _fullest(
    instance: Instance, entries: Entries, failures: Sequence[str] | None = None
) -> FullestLinks:
    """The largest utilisation of each link over the parts so far, of all failures or of some."""
    fullest = FullestLinks.none(instance.topology.num_links)
    for entry in entries.entries("outages"):
        failure = SweepPart(*entry["part"]).failure
        if failures is None or failure in failures:
            fullest.add(failure, entry["peaks"])
    return fullest


def _costs(
    results: Sequence[Outage], cables: Sequence[Failure], objective: Objective
) -> dict[str, float]:
    """Mean cost of each cable's failure alone: of stranded demand and of the value lost."""
    by_name = {cost.failure: cost for cost in by_failure(results, objective)}
    return {
        cable.name: float(np.nan_to_num(by_name[cable.name].mean + by_name[cable.name].stranded))
        for cable in cables
    }
