"""Hedge ``peak``: the optimum of each demand's peak rate in a window, with a limit on each path's
share.

Jupiter hedges like this (Poutievski et al., SIGCOMM 2022): a path carries at most the share

    limit[d, k] = bottleneck[d, k] / sum_j bottleneck[d, j] / spread

of its demand, so that spread = 1 splits in proportion to the paths' capacities and spread = 0 is
unlimited.  Here the optimum without limits is computed first, and the excess over a limit moves to
the other paths, in proportion to the slack of their limits.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from teal.errors import InputError
from teal.schemes.past import Past
from teal.spec import Spec
from teal_next.last import Last


class Peak:
    """Hedge ``peak``: optimal splits for the peak rates of a window, with a limit on the share of
    each path.

    A hedge allocates for an interval whose traffic matrix is unknown.

    Args:
        window: number of newest matrices; the peak rate of a demand is its largest rate in these.
        spread: strength of the limits, in [0, 1]: 0 for none, 1 for splits in proportion to the
            paths' bottleneck capacities.
    """

    def __init__(self, window: int = 12, spread: float = 0.0) -> None:
        self._window = window
        self._spread = spread
        self._solver = Last()

    def allocate(self, past: Past) -> Tensor:
        """Return split ratios (D, K) for the next interval.

        Args:
            past: network, and the matrices measured so far.
        """
        # Optimal splits for the largest rate of each demand in the window.
        window_problem = past.last(self._window)
        splits = self._solver.allocate_for(window_problem.demand.amax(0, keepdim=True), past)
        if not self._spread:
            return splits
        # Limits in proportion to the bottleneck capacities (D, K) of the paths.
        bottleneck = window_problem.bottleneck[0]
        share = bottleneck / bottleneck.sum(-1, keepdim=True).clamp(min=1e-300)
        return clip_to_limits(splits, share / self._spread)


def clip_to_limits(splits: Tensor, limit: Tensor) -> Tensor:
    """Return splits (D, K) clipped to limits; the excess of a demand moves to its other paths, in
    proportion to the slack of their limits.

    Args:
        splits: (D, K) split ratios that sum to 1 or less.
        limit: (D, K) limits, whose sum over the live paths of a demand is at least 1.
    """
    clipped = torch.minimum(splits, limit)
    # Share that each path may still take, and share of the demand that no path carries now.
    slack = limit - clipped
    excess = (splits - clipped).sum(-1, keepdim=True)
    return clipped + excess * slack / slack.sum(-1, keepdim=True).clamp(min=1e-300)


def make(spec: Spec, model: Path | None) -> Peak:
    """Make the hedge of a specification such as ``peak[:window=12,spread=0]``.

    Args:
        spec: the specification.
        model: ignored; the hedge has no model.
    """
    options = spec.parse_options(window=12, spread=0.0)
    window = int(options["window"])
    spread = float(options["spread"])
    if window < 1:
        raise InputError(spec.text, "window", "at least 1 matrix", window)
    if not 0 <= spread <= 1:
        raise InputError(spec.text, "spread", "a number in [0, 1]", spread)
    return Peak(window, spread)
