"""Hedge ``figret``: ``dote`` with a penalty on variable demands (FIGRET; Liu et al., SIGCOMM 2024).

With sensitivity S, the loss has the additional term

    S * sum_d share[d] * max_k x[d, k] * largest / bottleneck[d, k],

where x[d, k] are the split ratios, share[d] is the demand's share in the sum of all variances over
time, bottleneck[d, k] the smallest link capacity of a path, and largest the largest bottleneck of
all paths: a variable demand is spread over several paths of large capacity.
"""

from __future__ import annotations

from pathlib import Path

from teal.spec import Spec
from teal_next.dote import Dote, dote_from_spec

# As in the authors' runs, whose penalty has another scale.
_SENSITIVITY_WEIGHT = 0.03


def make(spec: Spec, model: Path | None) -> Dote:
    """Make the hedge of a specification such as ``figret[:window=12,steps=2000,sensitivity=0.03]``.

    Args:
        spec: the specification.
        model: ignored; the hedge is trained on the past.
    """
    return dote_from_spec(spec, _SENSITIVITY_WEIGHT)
