"""`teal allocate`: the parts of a history that are missing, then the files about all of them."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from tqdm import tqdm

from teal.config import AllocateConfig
from teal.errors import InputError
from teal.evaluation.allocate import MATRICES, PROOFS, AllocatedMatrix, HistoryAllocator
from teal.formats.allocations import write_candidates
from teal.formats.rows import from_text, write_csv
from teal.reports.manifest import write_manifest
from teal.runtime.storage import check_out_folder, remove_files
from teal.studies.files import RESUME_HINT, instance_key, write_files
from teal.studies.journal import JOURNAL, Journal

PATHS, FIGURES_FILE, MANIFEST = "paths.parquet", "figures.csv", "manifest.json"
_MAX_COMPRESSION = 4  # splits compress to a half, seldom to less than a quarter


def run_allocate(config: AllocateConfig, notify: Callable[[str], None]) -> list[AllocatedMatrix]:
    """Allocate what is missing, then write everything; an interrupted run leaves its journal and its parts.

    Raises:
        InputError: a fault in the settings, or results in OUT that must not be replaced.
    """
    out = config.out
    of_earlier_run = (*out.glob("part-*.parquet"), *out.glob(f"{MATRICES}/*"), *out.glob(f"{PROOFS}/*/*"))
    files = (JOURNAL, PATHS, FIGURES_FILE, MANIFEST, *(str(path.relative_to(out)) for path in of_earlier_run))
    if not config.resume:
        check_out_folder(out, files, overwrite=config.overwrite, hint=RESUME_HINT)
    allocator = HistoryAllocator(config, notify)
    if not config.resume:  # only now, when the settings are known to be valid
        remove_files(out, files)
    journal = Journal(out / JOURNAL, config, resume=config.resume)
    instance = allocator.instance
    journal.require_content(instance_key(instance), config.topology)
    write_candidates(out / PATHS, instance.topology, instance.paths)
    done = {
        entry["part"]: len(entry["found"])
        for entry in journal.entries("part")
        if allocator.file(entry["part"]).is_file()
    }
    missing = [part for part in range(allocator.num_parts) if part not in done]
    _check_disk_space(allocator, missing, notify)
    with tqdm(total=allocator.num_matrices, initial=sum(done.values()), desc="allocating", unit="matrix") as bar:
        for part, matrices in _allocate_parts(allocator, missing):
            journal.add("part", {"part": part, "found": [dataclasses.asdict(matrix) for matrix in matrices]})
            bar.update(len(matrices))
    by_part = {entry["part"]: entry["found"] for entry in journal.entries("part")}
    results = [from_text(AllocatedMatrix, matrix) for part in sorted(by_part) for matrix in by_part[part]]
    write_files(
        out, {FIGURES_FILE: partial(write_csv, rows=results), MANIFEST: partial(write_manifest, settings=config)}
    )
    journal.remove()
    return results


def _allocate_parts(allocator: HistoryAllocator, parts: Sequence[int]) -> Iterator[tuple[int, list[AllocatedMatrix]]]:
    """Each part as it is done."""
    if allocator.config.workers == 0:
        for part in parts:
            yield part, allocator.allocate_part(part)
    elif parts:
        from teal.distributed.allocate import allocate

        yield from allocate(allocator.config, parts)


def _check_disk_space(allocator: HistoryAllocator, parts: Sequence[int], notify: Callable[[str], None]) -> None:
    """Report how much will be written, and raise InputError if the disk has no space for it."""
    config, paths = allocator.config, allocator.instance.paths
    if config.figures_only or not parts:
        return
    needed = len(parts) * config.part * paths.leaf.size * (1 if config.entries else 4)
    free = shutil.disk_usage(config.out).free
    notify(f"splits take up to {needed / 1e9:.3g} GB before compression; {free / 1e9:.3g} GB are free in {config.out}")
    if needed > _MAX_COMPRESSION * free:
        raise InputError("--out", "", f"space for {needed / 1e9:.3g} GB, or --figures-only", f"{free / 1e9:.3g} GB")
