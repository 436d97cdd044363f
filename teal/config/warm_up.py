"""Settings of `teal warm-up`."""

from __future__ import annotations

import dataclasses

from teal.config.base import require


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmUpConfig:
    """Compile all kernels for this machine, a minute or two, once; other commands then start at once.

    Without it, a command compiles what it needs when it first runs.  What is compiled is kept in Teal's cache folder,
    or in the one that NUMBA_CACHE_DIR names.
    """

    workers: int = 0
    """Number of processes; 0 for one per core."""

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        require(self, "workers", "a whole number of at least 0", self.workers >= 0)
