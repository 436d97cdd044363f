"""`teal allocate`: allocate the missing parts of a history, then write the files about all
parts.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from teal.allocation.allocate import FIGURES_FILE, PATHS, AllocatedMatrix, sentences
from teal.allocation.allocate_files import MATRICES, PROOFS, PartFiles
from teal.allocation.settings import AllocateConfig
from teal.allocation.solve import signed_percent
from teal.app.command import EXIT_FAILED, EXIT_GAP, EXIT_OK, Notify, Outcome
from teal.app.instance import instance_key
from teal.app.run_files import (
    JOURNAL,
    RESUME_HINT,
    Journal,
    require_same,
    write_files,
    write_manifest,
)
from teal.errors import InputError
from teal.formats.allocations import write_candidates
from teal.formats.rows import from_text, write_csv
from teal.problem import Status
from teal.runtime.progress import progress_bar
from teal.runtime.storage import check_out_folder, remove_files

MANIFEST = "manifest.json"
# Largest expected compression ratio of the splits; 2 is typical.
_MAX_COMPRESSION = 4


def run_allocate(config: AllocateConfig, notify: Callable[[str], None]) -> list[AllocatedMatrix]:
    """Allocate the missing parts of the history, write all files, and return all figures.

    An interrupted run leaves its journal and its finished parts, from which ``--resume`` continues.

    Args:
        config: settings of `teal allocate`.
        notify: prints one line of text.

    Raises:
        InputError: invalid settings, or results in OUT that must not be replaced.
    """
    out = config.out
    # Prepare the folder; earlier results are removed once the settings are known to be valid.
    earlier_files = _earlier_files(out)
    if not config.resume:
        check_out_folder(out, earlier_files, overwrite=config.overwrite, hint=RESUME_HINT)
    part_files = PartFiles(config, notify)
    if not config.resume:
        remove_files(out, earlier_files)
    journal = Journal(out / JOURNAL, config, resume=config.resume)
    instance = part_files.allocator.instance
    require_same(journal, instance_key(instance), config.topology)
    write_candidates(out / PATHS, instance.topology, instance.paths)
    # Allocate the missing parts, then collect the figures of all parts from the journal, whose
    # entries have the index of a part and the figures of its matrices ("found").
    _complete_parts(part_files, journal, notify)
    matrices_of_part = {entry["part"]: entry["found"] for entry in journal.entries("part")}
    results = [
        from_text(AllocatedMatrix, matrix)
        for part in sorted(matrices_of_part)
        for matrix in matrices_of_part[part]
    ]
    write_files(
        out,
        {
            FIGURES_FILE: partial(write_csv, rows=results),
            MANIFEST: partial(write_manifest, settings=config),
        },
    )
    journal.remove()
    return results


def _earlier_files(out: Path) -> tuple[str, ...]:
    """Return the names, relative to ``out``, of all files that a run may have written there."""
    files = (
        *out.glob("part-*.parquet"),
        *out.glob(f"{MATRICES}/*"),
        *out.glob(f"{PROOFS}/*/*"),
    )
    return (
        JOURNAL,
        PATHS,
        FIGURES_FILE,
        MANIFEST,
        *(str(path.relative_to(out)) for path in files),
    )


def _complete_parts(files: PartFiles, journal: Journal, notify: Callable[[str], None]) -> None:
    """Allocate the unfinished parts, and add their figures to the journal.

    A part is finished if the journal has its entry and its file exists.

    Args:
        files: allocator of the parts, which writes their files.
        journal: finished parts of this run and, with ``--resume``, of earlier ones.
        notify: prints one line of text.
    """
    allocator = files.allocator
    # Number of matrices of each finished part.
    finished_parts = {
        entry["part"]: len(entry["found"])
        for entry in journal.entries("part")
        if files.file(entry["part"]).is_file()
    }
    missing = [part for part in range(allocator.num_parts) if part not in finished_parts]
    _check_disk_space(files, missing, notify)
    # Each part is added to the journal when its file is written.
    with progress_bar(
        total=allocator.num_matrices,
        initial=sum(finished_parts.values()),
        desc="allocating",
        unit="matrix",
    ) as bar:
        for part, matrices in _allocate_parts(files, missing):
            journal.add(
                "part", {"part": part, "found": [dataclasses.asdict(matrix) for matrix in matrices]}
            )
            bar.update(len(matrices))


def _allocate_parts(
    files: PartFiles, parts: Sequence[int]
) -> Iterator[tuple[int, list[AllocatedMatrix]]]:
    """Allocate parts, here or in Ray processes; yield index and figures of each finished part.

    Args:
        files: allocator of the parts, which writes their files.
        parts: indices of the parts.
    """
    if files.config.workers == 0:
        for part in parts:
            yield part, files.write_part(part)
    elif parts:
        from teal.allocation.allocate_workers import allocate

        yield from allocate(files.config, files.instance.paths, parts)


def _check_disk_space(
    files: PartFiles, parts: Sequence[int], notify: Callable[[str], None]
) -> None:
    """Print the size of the splits to write and the free disk space.

    Args:
        files: allocator of the parts, which writes their files.
        parts: indices of the parts to write.
        notify: prints one line of text.

    Raises:
        InputError: the splits do not fit on the disk, even at the largest expected compression.
    """
    config = files.config
    paths = files.instance.paths
    if config.figures_only or not parts:
        return
    # Matrices times paths; a split takes 1 byte as the weight of a table, else 4 bytes as float32.
    needed_bytes = len(parts) * config.part * paths.leaf.size * (1 if config.entries else 4)
    free_bytes = shutil.disk_usage(config.out).free
    notify(
        f"splits take up to {needed_bytes / 1e9:.3g} GB before compression; "
        f"{free_bytes / 1e9:.3g} GB are free in {config.out}"
    )
    if needed_bytes > _MAX_COMPRESSION * free_bytes:
        raise InputError.invalid(
            "--out",
            "",
            f"the splits need {needed_bytes / 1e9:.3g} GB before compression, and "
            f"{free_bytes / 1e9:.3g} GB are free",
            "free space, choose another disk, or use --figures-only",
        )


def allocate_outcome(config: AllocateConfig, notify: Notify) -> Outcome:
    """Run `teal allocate`; return its result as text, JSON data and exit code."""
    matrices = run_allocate(config, notify)
    # Count unusable matrices, and gaps above the target.
    usable = [matrix for matrix in matrices if Status(matrix.status).usable]
    gaps = np.array([matrix.gap for matrix in usable])
    num_unusable = len(matrices) - len(usable)
    num_above_gap = int((gaps > config.gap).sum())
    # Summarise the matrices, and the change of the value by rounding.
    count_text, *figure_texts = sentences(matrices)
    lines = [f"{config.out}: {count_text}"]
    if usable:
        lines.append(
            f"{figure_texts[0]}, {num_above_gap:,} matrices above {100 * config.gap:g}%; all "
            f"figures in {config.out}/{FIGURES_FILE}"
        )
        # Relative change of the sum of all values by rounding the splits.
        if config.entries or config.min_split:
            exact_value, value = (
                sum(getattr(matrix, name) for matrix in usable) for name in ("exact_value", "value")
            )
            value_change = (value - exact_value) / exact_value if exact_value else 0.0
            lines.append(
                "--min-split and --entries changed the sum of all values by "
                f"{signed_percent(value_change)}"
            )
    # The exit code tells unusable allocations and missed gaps.
    satisfied_demands = [matrix.satisfied_demand for matrix in usable]
    return Outcome(
        text="\n".join(lines),
        data={
            "out": str(config.out),
            "matrices": len(matrices),
            "unusable": num_unusable,
            "largest_gap": float(gaps.max(initial=0.0)),
            "mean_satisfied_demand": float(np.mean(satisfied_demands)) if usable else None,
        },
        exit_code=EXIT_FAILED if num_unusable else EXIT_GAP if num_above_gap else EXIT_OK,
    )
