"""The average hedge: the mean of the last splits of another one."""

from __future__ import annotations

import numpy as np
import torch

from teal.schemes.hedges import Past
from teal.schemes.hedges.average import Average
from tests.schemes.hedges.series import make_past


class _Counting:
    def __init__(self) -> None:
        self._count = 0.0

    def allocate(self, past: Past) -> torch.Tensor:
        self._count += 1
        return torch.full((3, 2), self._count, dtype=torch.float64)


def test_the_mean_of_the_last_three() -> None:
    hedge, past = Average(_Counting(), 3), make_past(np.ones((2, 3)))
    assert [float(hedge.allocate(past)[0, 0]) for _ in range(5)] == [1.0, 1.5, 2.0, 3.0, 4.0]
