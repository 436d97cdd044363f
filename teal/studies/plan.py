"""`teal plan`: the sweep over failures, block by block, and its files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tqdm import tqdm

from teal.config import PlanConfig
from teal.evaluation.instance import load_instance
from teal.evaluation.plan import BLOCK, Outage, SweepPart, outages
from teal.formats.rows import from_text, write_csv, write_parquet
from teal.objectives import Objective
from teal.reports.manifest import write_manifest
from teal.reports.plan import plot_plan
from teal.runtime.storage import check_out_folder
from teal.studies.evaluate import rows_of
from teal.studies.files import RESUME_HINT, instance_key, write_files
from teal.studies.journal import JOURNAL, Journal

FILES = TABLE, PARQUET, MANIFEST, PLOT = ("failures.csv", "failures.parquet", "manifest.json", "failures.png")


def run_plan(config: PlanConfig, notify: Callable[[str], None]) -> list[Outage]:
    """Solve what is missing, then write everything; an interrupted run leaves its journal.

    Raises:
        InputError: a fault in the settings, or results in OUT that must not be replaced.
    """
    out = config.out
    if not config.resume:
        check_out_folder(out, (JOURNAL, *FILES), overwrite=config.overwrite, hint=RESUME_HINT)
    instance = load_instance(config, notify)
    rows = rows_of(instance, config.split)[: config.limit or None]
    journal = Journal(out / JOURNAL, config, resume=config.resume)
    journal.require_content(instance_key(instance), config.topology)
    done = {SweepPart(*entry["part"]) for entry in journal.entries("outages")}
    parts = -(-len(rows) // BLOCK) * (1 + len(instance.topology.cables()))
    with tqdm(total=parts, initial=len(done), desc="failing links", unit=f"link x {BLOCK} matrices") as bar:
        for part, part_outages in outages(instance, rows, config.gap, done):
            journal.add("outages", {"part": part, "found": [vars(outage) for outage in part_outages]})
            bar.update()
    results = [from_text(Outage, o) for entry in journal.entries("outages") for o in entry["found"]]
    missed = sum(outage.gap > config.gap for outage in results)
    if missed:
        notify(f"{missed:,} of {len(results):,} cases did not reach a gap of {config.gap:g}: see the column gap")
    higher_is_better = Objective(config.objective).higher_is_better
    write_files(
        out,
        {
            TABLE: partial(write_csv, rows=results),
            PARQUET: partial(write_parquet, rows=results),
            MANIFEST: partial(write_manifest, settings=config),
            PLOT: partial(plot_plan, outages=results, higher_is_better=higher_is_better),
        },
    )
    journal.remove()
    return results
