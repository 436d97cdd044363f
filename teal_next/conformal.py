"""Adaptive conformal limits of realised cost over the optimum.

With the last n ratios of realised cost over the optimum, the limit for the next interval is their
quantile at level ceil((n + 1) p) / n (split conformal prediction; Vovk et al. 2005): if intervals
are exchangeable, it holds with probability p.  Traffic drifts, so p follows the coverage (adaptive
conformal inference; Gibbs & Candes 2021):

    p <- p + step * (level - covered),

which brings the coverage to the target level over any series whose ratios do not keep rising: the
limit is never above the largest of the last ratios.  Entry point: :class:`ConformalLimit`.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np

# Change of p after an interval, per probability; larger follows drift faster, and varies more.
_PROBABILITY_STEP = 0.02
# Number of last ratios that count.
_KEPT_RATIOS = 200


class ConformalLimit:
    """Adaptive conformal limit: an upper limit of the next ratio that holds with a target
    probability.

    The limit is the quantile of the last n ratios at level ceil((n + 1) p) / n. The probability p
    starts at the target probability. After each interval p changes by
    step * (target - covered), with covered 1 if the limit held, else 0.

    Args:
        level: target probability of the limit, in (0, 1).
    """

    def __init__(self, level: float = 0.95) -> None:
        if not 0 < level < 1:
            raise ValueError(f"level {level} of a conformal limit is not in (0, 1)")
        self._level = level
        self._probability = level
        self._ratios: deque[float] = deque(maxlen=_KEPT_RATIOS)

    @property
    def limit(self) -> float:
        """Upper limit of the ratio in the next interval; infinite while too few are known."""
        num_ratios = len(self._ratios)
        rank = math.ceil((num_ratios + 1) * self._probability)
        if rank > num_ratios:
            # The quantile is above all n ratios: return the largest one if n would suffice for the
            # target probability, else no limit.
            return max(self._ratios) if num_ratios >= 1 / (1 - self._level) else math.inf
        # The ratio of this rank in ascending order; ranks begin at 1.
        return float(np.sort(list(self._ratios))[max(rank, 1) - 1])

    def state(self) -> dict[str, Any]:
        """Return level, adapted probability and ratios as JSON data, for :meth:`restore`."""
        return {"level": self._level, "now": self._probability, "scores": list(self._ratios)}

    def restore(self, state: Any) -> None:
        """Replace probability and ratios by those of a stored state.

        Args:
            state: result of :meth:`state`.

        Raises:
            ValueError: an invalid state, or a state with another level.
        """
        try:
            # Stored keys: "now" is the probability, "scores" are the ratios.
            level, probability, ratios = (
                float(state["level"]),
                float(state["now"]),
                [float(score) for score in state["scores"]],
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"invalid state of a conformal limit: {error}") from None
        if level != self._level or not 0 <= probability <= 1 or not all(map(math.isfinite, ratios)):
            raise ValueError(
                f"state of a conformal limit with level {level} and probability {probability}: "
                f"expected level {self._level}, a probability in [0, 1], and finite ratios"
            )
        self._probability = probability
        self._ratios = deque(ratios, maxlen=_KEPT_RATIOS)

    def observe(self, new_ratio: float) -> None:
        """Add the measured ratio of an interval, and adapt the probability.

        Args:
            new_ratio: ratio of realised cost to the optimum.
        """
        if math.isfinite(self.limit):
            # The probability falls where the limit held, and rises where it did not.
            self._probability += _PROBABILITY_STEP * (self._level - (new_ratio <= self.limit))
            self._probability = min(max(self._probability, 0.0), 1.0)
        self._ratios.append(new_ratio)
