"""Wait policy of OpenMP threads: spin briefly, then sleep.

Numba's kernels and torch run on thread teams of OpenMP libraries, which synchronise at the end of
each parallel loop.  GNU's library (libgomp) by default spins 300,000 times, some milliseconds,
before a thread sleeps.  Where other processes use the cores, such a thread occupies the core of the
thread it waits for: beside eight busy processes each parallel loop then takes milliseconds instead
of tenths of one.  10,000 iterations (0.1 to 0.5 ms) cover the time between loops on an idle
machine, so that nothing is lost there (``benchmarks/busy_machine.py``).

The libraries read these settings once, on loading: they take effect for Numba's kernels if Teal is
imported before the first parallel kernel runs, and for torch's operations if Teal is imported
before torch.  torch has its own copy of the library, which Numba would also use if torch was
imported first; Teal then makes Numba load another one (:mod:`teal.runtime.parallel`).  Small
networks are solved with one torch thread in any case, since waking threads takes longer than
torch's operations on them.
"""

from __future__ import annotations

import os
import sys

# Iterations that a thread of libgomp spins before it sleeps.
SPIN_COUNT = 10_000
_USER_SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


# Whether torch was loaded before these settings, so that its threads spin for the default time.
_was_torch_loaded = False


def set_wait_policy() -> None:
    """Limit the spin time of OpenMP threads in this process and its children by environment
    variables, unless the user has set one.

    ``GOMP_SPINCOUNT`` is for libgomp, where it overrides ``OMP_WAIT_POLICY``, which other libraries
    read.
    """
    global _was_torch_loaded
    if not any(name in os.environ for name in _USER_SETTINGS):
        _was_torch_loaded = "torch" in sys.modules
        os.environ["GOMP_SPINCOUNT"] = str(SPIN_COUNT)
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"


def torch_spins_long() -> bool:
    """Return whether torch was imported before Teal, so that its threads spin for milliseconds."""
    return _was_torch_loaded
