"""How threads of OpenMP wait for each other: briefly in a loop, then asleep.

Numba's kernels and torch run on teams of threads of OpenMP libraries, which wait at the end of each
parallel loop. GNU's library (libgomp) by default repeats a test 300,000 times before a thread
sleeps, some milliseconds.  Where other processes use the cores, such a thread takes the core that
the thread it waits for needs: beside eight busy processes each parallel loop then takes
milliseconds instead of some tenths of one.  10,000 repetitions (0.1 to 0.5 ms) last from one loop
to the next on an idle machine, so that nothing is lost there (``benchmarks/busy_machine.py``).

The libraries read these settings once, when they are loaded: they take effect for Numba's kernels
where Teal is imported before the first parallel kernel runs, and for torch's operations where Teal
is imported before torch.  torch has a copy of the library of its own, which Numba would use too if
torch was imported first; Teal then lets Numba load another one (:mod:`teal.runtime.parallel`).
Small networks are solved with one thread of torch in any case, since torch's operations on them
take less time than its threads need to wake.
"""

from __future__ import annotations

import os
import sys

SPIN_COUNT = 10_000  # repetitions of the test for which a thread of libgomp waits before it sleeps
_USERS_SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


_is_torch_earlier = (
    False  # whether torch was loaded before these settings, so that its threads wait as usual
)


def set_wait_policy() -> None:
    """Set the environment variables of this process and of those that it starts, unless the user
    has set one.

    ``GOMP_SPINCOUNT`` is for libgomp, where it prevails over ``OMP_WAIT_POLICY``, which other
    libraries read.
    """
    global _is_torch_earlier
    if not any(name in os.environ for name in _USERS_SETTINGS):
        _is_torch_earlier = "torch" in sys.modules
        os.environ["GOMP_SPINCOUNT"] = str(SPIN_COUNT)
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"


def waits_of_torch_are_long() -> bool:
    """Whether torch was imported before Teal, so that its threads wait in a loop for
    milliseconds.
    """
    return _is_torch_earlier
