"""A limit for what an allocation will cost over the optimum, that holds with a given probability.

With the last n ratios of realised cost over the optimum, the limit for the next interval is their
quantile at level ceil((n + 1) p) / n (split conformal prediction; Vovk et al. 2005): if intervals
are exchangeable, it holds with probability p.  Traffic drifts, so p follows what was covered
(adaptive conformal inference; Gibbs & Candes 2021):

    p <- p + step * (level - covered),

which brings the covered share to the asked level over any series whose ratios do not keep rising:
the limit is never above the largest of the last ratios.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np

# change of p after an interval, per probability; larger follows drift faster, and swings more
_PROBABILITY_STEP = 0.02
_KEPT_RATIOS = 200  # ratios that count


class ConformalLimit:
    """A limit of the ratio that holds with a probability (equations in the module).

    Args:
        level: probability with which the limit is to hold, in (0, 1).
    """

    def __init__(self, level: float = 0.95) -> None:
        if not 0 < level < 1:
            raise ValueError(f"a level in (0, 1), not {level}")
        self._level, self._now = level, level
        self._scores: deque[float] = deque(maxlen=_KEPT_RATIOS)

    @property
    def limit(self) -> float:
        """For the next interval; infinite until enough intervals were seen."""
        count = len(self._scores)
        rank = math.ceil((count + 1) * self._now)
        if rank > count:
            # Adaptation may ask for more than all scores can prove; the largest one is then the
            # best that there is.
            return max(self._scores) if count >= 1 / (1 - self._level) else math.inf
        return float(np.sort(list(self._scores))[max(rank, 1) - 1])

    def state(self) -> dict[str, Any]:
        """The observed ratios, for :meth:`restore`."""
        return {"level": self._level, "now": self._now, "scores": list(self._scores)}

    def restore(self, state: Any) -> None:
        """Go on from what :meth:`state` gave.

        Raises:
            ValueError: anything else, or a limit of another level.
        """
        try:
            level, now, scores = (
                float(state["level"]),
                float(state["now"]),
                [float(score) for score in state["scores"]],
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not the state of a limit: {error}") from None
        if level != self._level or not 0 <= now <= 1 or not all(map(math.isfinite, scores)):
            raise ValueError("the state of another limit")
        self._now, self._scores = now, deque(scores, maxlen=_KEPT_RATIOS)

    def observe(self, score: float) -> None:
        """Take the ratio of an interval."""
        if math.isfinite(self.limit):
            self._now += _PROBABILITY_STEP * (self._level - (score <= self.limit))
            self._now = min(max(self._now, 0.0), 1.0)
        self._scores.append(score)
