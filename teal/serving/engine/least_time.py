"""How long the engine usually takes for an answer on a network, and how long it cannot pause: as
measured so far.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from teal.serving.engine.wanted import Wanted
from teal.solvers.pdhg import MAX_LANES

# seconds that the engine works on a request before others may come next; see
# teal.serving.engine.queue
SLICE_S = 0.5
_MAX_SLICE_S = 60.0  # seconds
_NEWEST_SHARE = 0.2  # weight of the newest measurement in the usual time
# share of the time for one matrix that a batch takes once, until it is measured; 0.4 on GEANT
_FIXED_SHARE = 0.4
_MAX_FIXED_SHARE = 0.95  # so that more matrices always count as more work
# of the length of a slice after one that was not longer, so that one slow iteration is forgotten
_SLICE_DECAY = 0.7


# Seconds to write a demand by name, until it is measured; arrays are faster.  0.25 s for 20,000 on
# a virtual Xeon.
_WRITING_S = 1.2e-5
_MIN_WRITTEN = 1_000  # demands of an answer from which on its time says what one more takes


class LeastTimes:
    """Seconds for an answer without iterations (set-up, check, measurement), by
    :attr:`Wanted.kind`.

    Attributes:
        slice_s: seconds of a slice; longer where one iteration or gap check takes longer.
    """

    def __init__(self) -> None:
        self.slice_s = SLICE_S
        # Of one matrix, by Wanted.kind: the usual time, and the shortest that was ever measured.
        self._usual: dict[tuple[Any, ...], float] = {}
        self._shortest: dict[tuple[Any, ...], float] = {}
        self._plain_s = 0.0  # without further wishes
        self._fixed_share = _FIXED_SHARE
        self._writing_s = {True: _WRITING_S, False: 0.0}  # of a demand, by whether it is by name

    def calibrate(self, wanted: Wanted, one_s: float, batch_s: float | None) -> None:
        """Take the times without further wishes.

        Args:
            wanted: without classes and conditions.
            one_s: seconds for one matrix.
            batch_s: for MAX_LANES matrices; None if they were not timed.
        """
        self._plain_s = self._usual[wanted.kind] = self._shortest[wanted.kind] = one_s
        if batch_s is not None:
            each = (batch_s - one_s) / (MAX_LANES - 1)
            self._fixed_share = min(_MAX_FIXED_SHARE, max(0.0, 1 - each / one_s))

    def usual_s(self, matrices: int, wanted: Wanted) -> float:
        """Seconds that the engine usually takes for so many matrices.

        Where none was measured for this kind, the time without further wishes is multiplied.
        """
        return self._usual.get(wanted.kind, self._plain_s * wanted.assumed_work) * self._work(
            matrices
        )

    def shortest_s(self, matrices: int, wanted: Wanted) -> float:
        """The least time from the shortest one that was measured; 0 if none was."""
        return self._shortest.get(wanted.kind, 0.0) * self._work(matrices)

    def _work(self, matrices: int) -> float:
        """Work for ``matrices``, as a multiple of that for one."""
        return self._fixed_share * -(-matrices // MAX_LANES) + (1 - self._fixed_share) * matrices

    def note(self, matrices: int, wanted: Wanted, seconds: float) -> None:
        """Take note of the time of matrices that were answered without iterations."""
        of_one, usual = seconds / self._work(matrices), self.usual_s(1, wanted)
        self._usual[wanted.kind] = usual + _NEWEST_SHARE * (of_one - usual)
        self._shortest[wanted.kind] = min(of_one, self._shortest.get(wanted.kind, of_one))

    def note_overrun(self, seconds: float, slice_s: float) -> None:
        """Take note of how long the engine worked, where that is longer than its slice because it
        could not pause.

        Args:
            seconds: time that it worked.
            slice_s: time that it was given.
        """
        unpaused = seconds if seconds > slice_s else 0.0
        self.slice_s = min(_MAX_SLICE_S, max(SLICE_S, _SLICE_DECAY * self.slice_s, unpaused))

    def writing_s(self, demands: int, is_named: bool) -> float:
        """Seconds that it usually takes to write the answer, after the engine has done its work.

        Args:
            demands: in the answer.
            is_named: whether they are written by name, not as arrays.
        """
        return self._writing_s[is_named] * demands

    def note_writing(self, demands: int, is_named: bool, seconds: float) -> None:
        """Take note of how long it took; arguments as in :meth:`writing_s`."""
        usual = self._writing_s[is_named]
        if demands >= _MIN_WRITTEN:
            self._writing_s[is_named] = usual + _NEWEST_SHARE * (seconds / demands - usual)


# Weight of the newest time of a solver: the slower one is measured seldom, and may have become
# faster.
_NEWEST_SHARE_OF_SOLVER = 0.5
_TRIED_EVERY = 32  # requests of a kind, after which the slower solver is measured again


class SolverTimes:
    """Seconds that a matrix has taken with a model and without one, by kind of search.

    Whether a model saves time depends on the network, the model and the machine, so that both ways
    are measured on the requests themselves: each once, then the one that has been faster, and the
    other one now and then.
    """

    def __init__(self) -> None:
        self._usual: dict[tuple[SearchKind, bool], float] = {}
        self._requests: dict[SearchKind, int] = {}

    def prefer_model(self, kind: SearchKind) -> bool:
        """Whether the next matrices of a kind are to be solved with the model."""
        with_model, without = (self._usual.get((kind, has_model)) for has_model in (True, False))
        if with_model is None or without is None:
            return with_model is None
        self._requests[kind] = self._requests.get(kind, 0) + 1
        return (with_model < without) != (self._requests[kind] % _TRIED_EVERY == 0)

    def note(self, kind: SearchKind, has_model: bool, seconds: float) -> None:
        """Take note of the seconds of one matrix that was searched for and reached the target."""
        usual = self._usual.get((kind, has_model), seconds)
        changed = _NEWEST_SHARE_OF_SOLVER * (seconds - usual)
        self._usual[kind, has_model] = usual + changed


class SearchKind(NamedTuple):
    """Searches that take about the same time on a network.

    Attributes:
        objective: objective of the matrices.
        wanted: :attr:`Wanted.kind`.
        decade: logarithm of the gap to base 10, rounded.
        is_warm: whether there is an allocation of before to start from.
    """

    objective: str
    wanted: tuple[Any, ...]
    decade: int
    is_warm: bool

    @classmethod
    def of(cls, wanted: Wanted, gap: float, *, is_warm: bool) -> SearchKind:
        """The kind of a search to a gap."""
        decade = round(math.log10(max(gap, 1e-12)))
        return cls(wanted.objective, wanted.kind, decade, is_warm)
