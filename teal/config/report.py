"""Settings of `teal report`."""

from __future__ import annotations

import dataclasses
from pathlib import Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """Make one report of several evaluations: a self-contained page with tables, charts and maps."""

    results: tuple[Path, ...]
    """Folder written by teal evaluate; repeat for more."""
    out: Path
    """Write the report to this .html file."""
    overwrite: bool = False
    """Replace OUT if it exists."""
