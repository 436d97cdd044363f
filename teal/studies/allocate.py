"""All that one ``teal allocate`` does: the parts that are missing, then the files about all of them."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator, Sequence

from tqdm import tqdm

from teal.bulk import Allocated, Bulk
from teal.config import AllocateConfig
from teal.errors import InputError
from teal.formats.allocations import write_candidates
from teal.reports.journal import Journal
from teal.reports.results import from_text, write_csv, write_manifest
from teal.storage import atomic_file, check_out_folder, content_key
from teal.studies.evaluate import JOURNAL

PATHS, FIGURES, MANIFEST = "paths.parquet", "figures.csv", "manifest.json"


def run_allocate(config: AllocateConfig, say: Callable[[str], None]) -> list[Allocated]:
    """Allocate what is missing, then write everything; a run that breaks off leaves its journal and its parts.

    Raises:
        InputError: a fault in the settings, or results in OUT that nobody allowed to replace.
    """
    out = config.out
    files = (JOURNAL, PATHS, FIGURES, MANIFEST, *(path.name for path in out.glob("part-*.parquet")))
    if not config.resume:
        check_out_folder(out, files, overwrite=config.overwrite, hint="--resume or --overwrite")
    bulk = Bulk(config, say)
    if not config.resume:  # now that nothing is wrong with the settings
        for name in files:
            (out / name).unlink(missing_ok=True)
    journal = Journal(out / JOURNAL, config, resume=config.resume)
    instance = bulk.instance
    content = content_key(instance.topology.content_key(), instance.traffic.content_key(), instance.paths.key)
    journal.require_content(content, config.topology)
    write_candidates(out / PATHS, instance.topology, instance.paths)
    done = {entry["part"]: len(entry["found"]) for entry in journal.of("part") if bulk.file(entry["part"]).is_file()}
    missing = [part for part in range(bulk.num_parts) if part not in done]
    _check_room(bulk, missing, say)
    with tqdm(total=bulk.num_matrices, initial=sum(done.values()), desc="allocating", unit="matrix") as bar:
        for part, found in _worked(bulk, missing):
            journal.add("part", {"part": part, "found": [dataclasses.asdict(one) for one in found]})
            bar.update(len(found))
    figures = {entry["part"]: entry["found"] for entry in journal.of("part")}
    results = [from_text(Allocated, one) for part in sorted(figures) for one in figures[part]]
    with atomic_file(out / FIGURES) as temporary:
        write_csv(temporary, results)
    with atomic_file(out / MANIFEST) as temporary:
        write_manifest(temporary, config)
    journal.remove()
    return results


def _worked(bulk: Bulk, parts: Sequence[int]) -> Iterator[tuple[int, list[Allocated]]]:
    if bulk.config.workers == 0:
        for part in parts:
            yield part, bulk.work(part)
    elif parts:
        from teal.distributed.allocate import allocate

        yield from allocate(bulk.config, parts)


def _check_room(bulk: Bulk, parts: Sequence[int], say: Callable[[str], None]) -> None:
    """Say how much will be written, before it is; refuse what the disk has no room for."""
    config, paths = bulk.config, bulk.instance.paths
    if config.figures_only or not parts:
        return
    need = len(parts) * config.part * paths.leaf.size * (1 if config.entries else 4)
    free = shutil.disk_usage(config.out).free
    say(f"splits take up to {need / 1e9:.3g} GB before compression; {free / 1e9:.3g} GB are free in {config.out}")
    if need > 4 * free:  # they compress to a half, seldom to less than a quarter
        raise InputError("--out", "", f"room for {need / 1e9:.3g} GB, or --figures-only", f"{free / 1e9:.3g} GB")
