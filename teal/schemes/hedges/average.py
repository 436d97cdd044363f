"""The hedge ``average``: the mean of another hedge's last splits, which is calmer and sometimes better."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import torch
from torch import Tensor

from teal.errors import InputError
from teal.schemes.hedges.past import Hedge, Past
from teal.spec import Spec


class Average:
    """See the module.

    Args:
        hedge: whose splits are averaged.
        window: number of its last splits.
    """

    def __init__(self, hedge: Hedge, window: int = 6) -> None:
        self._hedge = hedge
        self._splits: deque[Tensor] = deque(maxlen=window)

    def allocate(self, past: Past) -> Tensor:
        """See Hedge."""
        self._splits.append(self._hedge.allocate(past))
        return torch.stack(list(self._splits)).mean(0)


def make(spec: Spec, model: Path | None) -> Average:
    """``average[:of=last,window=6]``."""
    from teal.schemes.hedges.registry import make_hedge

    options = spec.parse_options(of="last", window=6)
    if int(options["window"]) < 1:
        raise InputError(spec.text, "window", "at least 1", options["window"])
    return Average(make_hedge(str(options["of"]), model), int(options["window"]))
