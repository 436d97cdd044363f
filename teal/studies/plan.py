"""All that one ``teal plan`` does: the sweep, block by block, and its files."""

from __future__ import annotations

from collections.abc import Callable

from tqdm import tqdm

from teal.config import PlanConfig
from teal.instance import load_instance
from teal.objectives import Objective
from teal.planning import BLOCK, Outage, outages
from teal.reports.journal import Journal
from teal.reports.plan import plot_plan
from teal.reports.results import from_text, write_csv, write_manifest, write_parquet
from teal.storage import atomic_file, check_out_folder
from teal.studies.evaluate import JOURNAL, rows_of

FILES = ("failures.csv", "failures.parquet", "manifest.json", "failures.png")


def run_plan(config: PlanConfig, say: Callable[[str], None]) -> list[Outage]:
    """Measure what is missing, then write everything; a run that breaks off leaves its journal.

    Raises:
        InputError: a fault in the settings, or results in OUT that nobody allowed to replace.
    """
    out = config.out
    if not config.resume:
        check_out_folder(out, (JOURNAL, *FILES), overwrite=config.overwrite, hint="--resume or --overwrite")
    instance = load_instance(config, say)
    rows = rows_of(instance, config.split)[: config.limit or None]
    journal = Journal(out / JOURNAL, config, resume=config.resume)
    done = {entry["first"] for entry in journal.of("block")}
    blocks = -(-len(rows) // BLOCK)
    with tqdm(total=blocks, initial=len(done), desc="failing links", unit=f"block of {BLOCK} matrices") as bar:
        for first, found in outages(instance, rows, config.gap, done):
            journal.add("block", {"first": first, "outages": [vars(outage) for outage in found]})
            bar.update()
    results = [from_text(Outage, o) for entry in journal.of("block") for o in entry["outages"]]
    table, parquet, manifest, plot = (out / name for name in FILES)
    with atomic_file(table) as temporary:
        write_csv(temporary, results)
    with atomic_file(parquet) as temporary:
        write_parquet(temporary, results)
    with atomic_file(manifest) as temporary:
        write_manifest(temporary, config)
    with atomic_file(plot) as temporary:
        plot_plan(temporary, results, higher_is_better=Objective(config.objective).higher_is_better)
    journal.remove()
    return results
