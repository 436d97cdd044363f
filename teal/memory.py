"""Memory that is asked for before it is used."""

from __future__ import annotations

import re
from pathlib import Path

from teal.errors import InputError

_GIB = 1 << 30
_CGROUP = Path("/sys/fs/cgroup")
_KEEP_FREE = 0.05  # of what is there


def available() -> int:
    """Bytes that this process may still take: of the machine, and of its container if that has a limit."""
    import psutil

    free = int(psutil.virtual_memory().available)
    try:
        limit, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        cache = re.search(r"^inactive_file (\d+)$", (_CGROUP / "memory.stat").read_text(), re.MULTILINE)
        return min(free, int(limit) - int(used) + (int(cache[1]) if cache else 0))  # cache is given back on demand
    except (OSError, ValueError):  # no cgroup, or "max"
        return free


def require(where: str, needed: int, remedy: str) -> None:
    """Raise InputError if ``needed`` bytes are not to be had; ``remedy`` says what would reduce them."""
    free = available()
    if needed > (1 - _KEEP_FREE) * free:
        expected = f"about {needed / _GIB:.1f} GiB of memory; {remedy}"
        raise InputError(where, "memory", expected, f"{free / _GIB:.1f} GiB free")
