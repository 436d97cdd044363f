"""`teal plan`: the sweep over failures, block by block, and its files."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from tqdm import tqdm

from teal.config import PlanConfig
from teal.evaluation.failures import NO_FAILURE, Failure, cable_failures, failures_of, pair_failures
from teal.evaluation.instance import Instance, load_instance, rows_of
from teal.evaluation.plan import BLOCK_MATRICES, FullestLinks, Outage, SweepPart, by_failure, outages
from teal.evaluation.plan_report import PlanReport
from teal.formats.groups import load_groups
from teal.formats.rows import from_text, write_csv, write_parquet
from teal.objectives import Objective
from teal.reports.manifest import write_manifest
from teal.reports.plan import plot_plan, write_plan_page
from teal.runtime.arrays import Int64Array
from teal.runtime.storage import check_out_folder
from teal.studies.files import RESUME_HINT, instance_key, write_files
from teal.studies.journal import JOURNAL, Journal

FILES = TABLE, PARQUET, MANIFEST, PLOT, PAGE, LINKS = (
    "failures.csv", "failures.parquet", "manifest.json", "failures.png", "report.html", "links.csv"
)  # fmt: skip


def run_plan(config: PlanConfig, notify: Callable[[str], None]) -> PlanReport:
    """Solve what is missing, then write everything; an interrupted run leaves its journal.

    Raises:
        InputError: a fault in the settings, or results in OUT that must not be replaced.
    """
    out = config.out
    if not config.resume:
        check_out_folder(out, (JOURNAL, *FILES), overwrite=config.overwrite, hint=RESUME_HINT)
    instance = load_instance(config, notify)
    cables = cable_failures(instance.topology)
    groups = load_groups(config.groups, instance.topology) if config.groups else {}
    kinds = config.failures or ("cables",)
    singles = [NO_FAILURE, *failures_of(kinds, instance.topology, groups)]
    instance = instance.surviving([failure.links for failure in singles], notify)
    rows = rows_of(instance, config.split)[: config.limit or None]
    journal = Journal(out / JOURNAL, config, resume=config.resume)
    journal.require_content(instance_key(instance), config.topology)
    results = _sweep(instance, rows, config, journal, singles, "failures")
    if config.pairs:
        count = math.comb(len(cables), 2)
        cost = _costs(results, cables, instance.objective)
        pairs = pair_failures(cables, cost, config.max_pairs)
        if len(pairs) < count:
            notify(
                f"{len(pairs):,} of {count:,} pairs of cables ({100 * len(pairs) / count:.3g}%): those whose cables "
                "cost most alone (--max-pairs)"
            )
        instance = instance.surviving([pair.links for pair in pairs], notify)
        results = _sweep(instance, rows, config, journal, pairs, "pairs of cables")
    missed = sum(outage.gap > config.gap for outage in results)
    if missed:
        notify(f"{missed:,} of {len(results):,} cases did not reach a gap of {config.gap:g}: see the column gap")
    normal = _fullest(instance, journal, [NO_FAILURE.name])
    fullest = _fullest(instance, journal)
    report = PlanReport(instance.topology, instance.traffic, instance.objective, tuple(results), normal, fullest)
    write_files(
        out,
        {
            TABLE: partial(write_csv, rows=results),
            PARQUET: partial(write_parquet, rows=results),
            MANIFEST: partial(write_manifest, settings=config),
            PLOT: partial(plot_plan, outages=results, objective=instance.objective),
            LINKS: partial(write_csv, rows=report.links()),
            PAGE: partial(write_plan_page, report=report),
        },
    )
    journal.remove()
    return report


def _sweep(
    instance: Instance, rows: Int64Array, config: PlanConfig, journal: Journal, failures: Sequence[Failure], what: str
) -> list[Outage]:
    """Solve the parts of these failures that are missing; all outages so far."""
    done = {SweepPart(*entry["part"]) for entry in journal.entries("outages")}
    firsts = range(0, len(rows), BLOCK_MATRICES)
    parts = {SweepPart(int(rows[first]), failure.name) for first in firsts for failure in failures}
    fullest = _fullest(instance, journal)
    with tqdm(total=len(parts), initial=len(parts & done), desc=what, unit=f"x {BLOCK_MATRICES} matrices") as bar:
        for part, part_outages, peaks in outages(instance, rows, config.gap, failures, done):
            larger = fullest.larger(part.failure, peaks)
            fullest.add(part.failure, larger)
            found = [vars(outage) for outage in part_outages]
            journal.add("outages", {"part": part, "found": found, "peaks": larger})
            bar.update()
    return [from_text(Outage, o) for entry in journal.entries("outages") for o in entry["found"]]


def _fullest(instance: Instance, journal: Journal, failures: Sequence[str] | None = None) -> FullestLinks:
    """The largest utilisation of each link over the parts so far, of all failures or of some."""
    fullest = FullestLinks.none(instance.topology.num_links)
    for entry in journal.entries("outages"):
        failure = SweepPart(*entry["part"]).failure
        if failures is None or failure in failures:
            fullest.add(failure, entry["peaks"])
    return fullest


def _costs(results: Sequence[Outage], cables: Sequence[Failure], objective: Objective) -> dict[str, float]:
    """Mean cost of each cable's failure alone: of stranded demand and of the value lost."""
    by_name = {one.failure: one for one in by_failure(results, objective)}
    return {
        cable.name: float(np.nan_to_num(by_name[cable.name].mean + by_name[cable.name].stranded)) for cable in cables
    }
