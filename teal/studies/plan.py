"""All that one ``teal plan`` does: the sweep, block by block, and its files."""

from __future__ import annotations

from collections.abc import Callable

from tqdm import tqdm

from teal.config import PlanConfig
from teal.instance import load_instance
from teal.objectives import Objective
from teal.planning import BLOCK, Outage, Part, outages
from teal.reports.journal import Journal
from teal.reports.plan import plot_plan
from teal.reports.results import from_text, write_csv, write_manifest, write_parquet
from teal.storage import atomic_file, check_out_folder, content_key
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
    content = content_key(instance.topology.content_key(), instance.traffic.content_key(), instance.paths.key)
    journal.require_content(content, config.topology)
    done = {Part(*entry["part"]) for entry in journal.of("outages")}
    parts = -(-len(rows) // BLOCK) * (1 + len(instance.topology.cables()))
    with tqdm(total=parts, initial=len(done), desc="failing links", unit=f"link x {BLOCK} matrices") as bar:
        for part, found in outages(instance, rows, config.gap, done):
            journal.add("outages", {"part": part, "found": [vars(outage) for outage in found]})
            bar.update()
    results = [from_text(Outage, o) for entry in journal.of("outages") for o in entry["found"]]
    short = sum(outage.gap > config.gap for outage in results)
    if short:
        say(f"{short:,} of {len(results):,} answers did not come to a gap of {config.gap:g}: see the column gap")
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
