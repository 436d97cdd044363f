"""Failure study of a network: every failure under every matrix, resumed from a journal.

:func:`plan` solves single failures and, if asked, pairs of cables, and returns a
:class:`teal_study.planning.plan.PlanReport`.
"""

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
from teal.runtime.arrays import Int64Array
from teal.runtime.progress import progress_bar
from teal_study.planning.plan import (
    BLOCK_MATRICES,
    FullestLinks,
    Outage,
    PlanReport,
    SweepPart,
    by_failure,
    outages,
)
from teal_study.planning.settings import PlanOptions


def plan(
    instance: Instance,
    options: PlanOptions,
    entries: Entries,
    notify: Callable[[str], None] = lambda _: None,
) -> PlanReport:
    """Solve all failures under all matrices, and return their outages and link utilisations.

    Results of an earlier run that the journal has are not computed again.

    Args:
        instance: network, traffic, candidate paths and program.
        options: failures, matrices and target gap.
        entries: journal of an earlier run of the same instance; receives new results.
        notify: receives messages about pairs of cables and missed gaps.

    Raises:
        InputError: an unreadable file of groups, or entries of another instance.
    """
    require_same(entries, instance_key(instance), instance.topology.name)
    # Solve single failures under the chosen matrices, over candidate paths that include a path for
    # every demand that a failure leaves connected.
    cables = cable_failures(instance.topology)
    groups = load_groups(options.groups, instance.topology) if options.groups else {}
    kinds = options.failures or ("cables",)
    single_failures = [NO_FAILURE, *failures_of(kinds, instance.topology, groups)]
    instance = instance.surviving([failure.links for failure in single_failures], notify)
    matrix_indices = rows_of(instance, options.split)[: options.limit or None]
    all_outages = _sweep(instance, matrix_indices, options, entries, single_failures, "failures")
    # Pairs of cables, ranked by the sum of the losses of their single failures.
    if options.pairs:
        num_pairs = math.comb(len(cables), 2)
        loss_by_cable = _loss_by_cable(all_outages, cables, instance.objective)
        pairs = pair_failures(cables, loss_by_cable, options.max_pairs)
        if len(pairs) < num_pairs:
            notify(
                f"{len(pairs):,} of {num_pairs:,} pairs of cables "
                f"({100 * len(pairs) / num_pairs:.3g}%) are solved, those with the largest losses "
                "of single cables; --max-pairs sets the number"
            )
        instance = instance.surviving([pair.links for pair in pairs], notify)
        all_outages = _sweep(instance, matrix_indices, options, entries, pairs, "pairs of cables")
    # Report cases above the target gap.
    num_missed = sum(outage.gap > options.gap for outage in all_outages)
    if num_missed:
        notify(
            f"{num_missed:,} of {len(all_outages):,} cases missed the target gap of "
            f"{options.gap:g}; the column gap of the results has their gaps"
        )
    # Largest utilisation of each link without failure, and over all failures.
    normal = _fullest_links(instance, entries, [NO_FAILURE.name])
    fullest = _fullest_links(instance, entries)
    return PlanReport(
        instance.topology, instance.traffic, instance.objective, tuple(all_outages), normal, fullest
    )


def _sweep(
    instance: Instance,
    matrix_indices: Int64Array,
    options: PlanOptions,
    entries: Entries,
    failures: Sequence[Failure],
    label: str,
) -> list[Outage]:
    """Solve the parts of some failures that the journal lacks; return all outages in the journal.

    Args:
        instance: network, traffic, candidate paths and program.
        matrix_indices: (n,) rows of the matrices in the traffic.
        options: target gap.
        entries: journal of finished parts; receives new ones.
        failures: failures to solve.
        label: label of the progress bar.
    """
    # Parts in the journal, and all parts of these failures: each block of matrices under each
    # failure.
    finished_parts = {SweepPart(*entry["part"]) for entry in entries.entries("outages")}
    block_starts = range(0, len(matrix_indices), BLOCK_MATRICES)
    parts = {
        SweepPart(int(matrix_indices[block_start]), failure.name)
        for block_start in block_starts
        for failure in failures
    }
    fullest = _fullest_links(instance, entries)
    with progress_bar(
        total=len(parts),
        initial=len(parts & finished_parts),
        desc=label,
        unit=f"x {BLOCK_MATRICES} matrices",
    ) as bar:
        for part, part_outages, peaks in outages(
            instance, matrix_indices, options.gap, failures, finished_parts
        ):
            # Store the outages, and the links whose largest utilisation rises.
            increases = fullest.increases(part.failure, peaks)
            fullest.add(part.failure, increases)
            outage_rows = [vars(outage) for outage in part_outages]
            entries.add("outages", {"part": part, "found": outage_rows, "peaks": increases})
            bar.update()
    return [
        from_text(Outage, outage_row)
        for entry in entries.entries("outages")
        for outage_row in entry["found"]
    ]


def _fullest_links(
    instance: Instance, entries: Entries, failures: Sequence[str] | None = None
) -> FullestLinks:
    """Return the largest utilisation of each link over the parts in a journal.

    Args:
        instance: network of the links.
        entries: journal of finished parts.
        failures: names of the failures to consider; None for all.
    """
    fullest = FullestLinks.none(instance.topology.num_links)
    for entry in entries.entries("outages"):
        failure = SweepPart(*entry["part"]).failure
        if failures is None or failure in failures:
            fullest.add(failure, entry["peaks"])
    return fullest


def _loss_by_cable(
    results: Sequence[Outage], cables: Sequence[Failure], objective: Objective
) -> dict[str, float]:
    """Return the mean loss of each cable's failure, by name of the cable; 0 if it is unknown.

    It is the share of stranded demand plus the certain loss of value.

    Args:
        results: outages of single failures, which include all cables.
        cables: failures of the cables.
        objective: objective of the values.
    """
    loss_by_name = {
        failure_loss.failure: failure_loss for failure_loss in by_failure(results, objective)
    }
    return {
        cable.name: float(
            np.nan_to_num(loss_by_name[cable.name].mean + loss_by_name[cable.name].stranded)
        )
        for cable in cables
    }
