"""Hedge ``residual``: scenarios are a forecast plus its past errors (residual bootstrap).

Each demand is forecast by an AR(1) model about its mean over the fit, mu + phi (newest - mu).  phi
is its autocorrelation at the lead time, shrunk towards that of all demands if the fit is short.
Scenario s is max(0, forecast + error_s), with error_s the vector of all demands' errors in a past
interval, so correlated demands stay correlated.  With phi = 0 the scenarios are the last matrices,
as for ``saa``; with phi = 1 they are the newest one plus past changes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from teal.errors import InputError
from teal.runtime.arrays import FloatArray
from teal.schemes.past import Past
from teal.spec import Spec
from teal_next.saa import SampleAverage

# Number of matrices that the autocorrelation of all demands counts for.
_PRIOR_MATRICES = 8.0


class Residual:
    """Hedge ``residual``: splits with the least mean loss over forecasts plus past forecast errors.

    A hedge allocates for an interval whose traffic matrix is unknown.

    Args:
        window: number of scenarios.
        fit: number of matrices from which the parameters of the forecast and its errors are
            computed; fewer on large networks.
    """

    def __init__(self, window: int = 36, fit: int = 144) -> None:
        self._window = window
        self._fit = max(fit, window)
        self._sample_average = SampleAverage(window)

    def allocate(self, past: Past) -> Tensor:
        """Return split ratios (D, K) for the next interval.

        Args:
            past: network, and the matrices measured so far.
        """
        problem = past.scenarios(past.window_length(self._fit))
        scenarios = self.scenarios(problem.demand.numpy(), past.lead)
        return self._sample_average.allocate_for_scenarios(
            problem.with_demand(torch.from_numpy(scenarios))
        )

    def scenarios(self, demand: FloatArray, lead: int) -> FloatArray:
        """Return scenarios (S, D) in Gbit/s: a forecast plus past errors (residual bootstrap).

        With x_t the rate of a demand in interval t, mu its mean, and phi its autocorrelation at the
        lead time,

            forecast = mu + phi (newest - mu),   error_t = x_t - mu - phi (x_(t - lead) - mu),
            scenario_t = max(0, forecast + error_t)   for the last ``window`` intervals t.

        phi is shrunk towards the autocorrelation of all demands together, and clipped to [0, 1].
        There are at most T - lead scenarios.

        Args:
            demand: (T, D) Gbit/s, oldest first; returned unchanged if T <= lead.
            lead: number of intervals from the newest matrix to the forecast one.
        """
        mean = demand.mean(0)
        count = len(demand)
        if count <= lead:
            return demand
        # Deviations from the mean, in pairs that are ``lead`` intervals apart.
        deviations = demand - mean
        earlier_deviations = deviations[:-lead]
        later_deviations = deviations[lead:]
        # Autocorrelation phi of each demand, shrunk towards that of all demands together, which
        # counts as much as _PRIOR_MATRICES matrices.
        sum_of_products = (earlier_deviations * later_deviations).sum(0)
        sum_of_squares = (earlier_deviations**2).sum(0)
        common_phi = sum_of_products.sum() / max(sum_of_squares.sum(), 1e-300)
        prior_weight = _PRIOR_MATRICES / count
        phi = np.clip(
            (sum_of_products + prior_weight * common_phi * sum_of_squares)
            / np.maximum((1 + prior_weight) * sum_of_squares, 1e-300),
            0,
            1,
        )
        # Errors of past forecasts, the last ``window`` ones.
        errors = (later_deviations - phi * earlier_deviations)[-self._window :]
        # Forecast from the newest matrix, plus each error.
        return np.maximum(0.0, mean + phi * deviations[-1] + errors)


def make(spec: Spec, model: Path | None) -> Residual:
    """Make the scheme of a specification such as ``residual[:window=36,fit=144]`` (in matrices).

    Args:
        spec: the specification.
        model: ignored; this scheme has no model.
    """
    options = spec.parse_options(window=36, fit=144)
    for name in ("window", "fit"):
        if int(options[name]) < 1:
            raise InputError(spec.text, name, "at least 1 matrix", options[name])
    return Residual(int(options["window"]), int(options["fit"]))
