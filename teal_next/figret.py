"""The hedge ``figret``: ``dote`` with a penalty on demands that vary (Liu et al., SIGCOMM 2024).

To the loss is added, with sensitivity S,

    S * sum_d share[d] * max_k x[d, k] * largest / bottleneck[d, k],

where share[d] is the demand's share in the sum of all variances over time, bottleneck[d, k] the
smallest capacity of a path and largest the largest of them: a demand that varies much is spread
over paths, and over wide ones.
"""

from __future__ import annotations

from pathlib import Path

from teal.spec import Spec
from teal_next.dote import Dote, parse

_SENSITIVITY_WEIGHT = 0.03  # as in the authors' runs, where the penalty is scaled in another way


def make(spec: Spec, model: Path | None) -> Dote:
    """``figret[:window=12,steps=2000,sensitivity=0.03]``."""
    return parse(spec, _SENSITIVITY_WEIGHT)
