"""Settings of `teal update`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

from teal.config.base import TopologyFileConfig, require
from teal.config.option import OVERWRITE


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdateConfig(TopologyFileConfig):
    """Plan the steps from one allocation to another, such that no link is ever above its capacity.

    Within a step, routers may change in any order: every combination of old and new flows fits.  The fewest steps are
    found; where both allocations fill a link, something may have to be shed while the update lasts, and how much is
    printed.
    """

    before: Path
    """The allocation in force: a .json file of teal solve --out."""
    after: Path
    """The allocation to be installed, likewise."""
    topology: str
    """The network of both, as in solve."""
    max_steps: int = 6
    """Most steps that are tried; more need less slack."""
    out: Path
    """Folder for step-1.json, step-2.json, ...: what is in force after each step, as teal solve --out writes it."""
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        require(self, "max_steps", "a whole number of at least 1", self.max_steps >= 1)
