"""Settings of `teal report`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from teal.config.base import require


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """Make one report of several evaluations: a self-contained page with tables, charts and maps, or figures."""

    results: tuple[Path, ...]
    """Folder written by teal evaluate, with or without --next-interval; repeat for more of the same kind."""
    out: Path | None = None
    """Write the report to this .html file."""
    figures: Path | None = None
    """Write every chart into this folder, as .svg and .pdf for papers."""
    overwrite: bool = False
    """Replace OUT, or the files of the same names in FIGURES, if they exist."""

    def __post_init__(self) -> None:
        """Raise InputError if there is nothing to write."""
        require(self, "out", "a file, or --figures with a folder", self.out is not None or self.figures is not None)
