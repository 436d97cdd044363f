"""The hedge ``forecast``: the optimum of a forecast matrix.

- ``ewma``: the exponentially weighted mean of the last matrices, weights falling to 1/e in a third of the window;
- ``ridge``: sum over lags of coefficient times rate, the coefficients shared by all demands (each over its mean) and
  fitted to the window by ridge regression;
- ``day``: the rate at the same time of the days before, or the newest matrix where there is none.

Persistence, the newest matrix as the forecast, is the hedge ``last``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from teal.errors import InputError
from teal.runtime.arrays import FloatArray
from teal.schemes.hedges.last import Last
from teal.schemes.hedges.past import Past
from teal.spec import Spec

_KINDS = ("ewma", "ridge", "day")
_RIDGE_LAGS = 4  # matrices from which ridge regression forecasts the next one
_RIDGE_SHARE = 1e-3  # share of the mean square of a lag that is added to the normal equations
_MOST_DAYS = 7  # days that count for ``day``
_DAY_S = 86_400  # seconds


class Forecast:
    """See the module.

    Args:
        kind: of the forecast.
        window: number of matrices.
    """

    def __init__(self, kind: str = "ewma", window: int = 12) -> None:
        self._kind, self._window, self._solver = kind, window, Last()

    def allocate(self, past: Past) -> Tensor:
        """See Hedge."""
        forecast = {"ewma": self._ewma, "ridge": self._ridge, "day": _of_days}[self._kind](past)
        return self._solver.allocate_for(torch.from_numpy(forecast)[None], past)

    def _ewma(self, past: Past) -> FloatArray:
        demand = past.last(self._window).demand.numpy()
        weights = np.exp(-3.0 * np.arange(len(demand))[::-1] / self._window)
        return weights @ demand / weights.sum()

    def _ridge(self, past: Past) -> FloatArray:
        demand = past.last(past.most(self._window)).demand.numpy()
        lead, count = past.lead, len(demand)
        if count < _RIDGE_LAGS + lead + 1:
            return demand[-1]
        relative = demand / np.maximum(demand.mean(0), 1e-300)
        starts = np.arange(count - _RIDGE_LAGS - lead + 1)
        lags = np.stack([relative[starts + lag] for lag in range(_RIDGE_LAGS)], -1).reshape(-1, _RIDGE_LAGS)
        wanted = relative[starts + _RIDGE_LAGS - 1 + lead].reshape(-1)
        squares = lags.T @ lags
        squares += _RIDGE_SHARE * np.trace(squares) / _RIDGE_LAGS * np.eye(_RIDGE_LAGS)
        return np.maximum(0.0, np.linalg.solve(squares, lags.T @ wanted) @ demand[-_RIDGE_LAGS:])


def _of_days(past: Past) -> FloatArray:
    """Mean of the matrices at the target's time on earlier days."""
    age = (past.target - past.traffic.timestamps).astype("timedelta64[s]").astype(np.int64)
    rows = np.flatnonzero((age % _DAY_S == 0) & (age <= _MOST_DAYS * _DAY_S))
    demand = past.traffic.read(rows)
    demand = demand[demand.sum(1) > 0]  # the others are gaps
    return demand.mean(0) if len(demand) else past.last(1).demand[0].numpy()


def make(spec: Spec, model: Path | None) -> Forecast:
    """``forecast[:kind=ewma,window=12]``."""
    options = spec.parse_options(kind="ewma", window=12)
    if options["kind"] not in _KINDS:
        raise InputError(spec.text, "kind", "one of: " + ", ".join(_KINDS), options["kind"])
    if int(options["window"]) < 1:
        raise InputError(spec.text, "window", "at least 1 matrix", options["window"])
    return Forecast(str(options["kind"]), int(options["window"]))
