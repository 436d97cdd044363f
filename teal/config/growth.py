"""Settings of growth in time, which commands share that say when links are full."""

from __future__ import annotations

import dataclasses

from teal.config.base import require
from teal.errors import InputError

_MOST_YEARS = 30.0  # of a horizon
_MAX_GROWTH = 1e6  # factor of all demands
_YEARS = {"y": 1.0, "q": 0.25, "m": 1 / 12}  # years of each unit of a horizon


@dataclasses.dataclass(frozen=True, kw_only=True)
class GrowthConfig:
    """How demands grow, and how full a link may be."""

    growth: float = 1.0
    """Factor of all demands: 1.4 for next year's traffic, if it grows by 40%."""
    growth_per_year: str = ""
    """Growth of all demands in a year: 0.3 for 30%, or fit, from the traffic (of eight weeks and more).  Prints when
    which link is full: passes --max-utilisation."""
    horizon: str = ""
    """With --growth-per-year: how far to look, such as 2y, 6q or 18m from the last matrix."""
    max_utilisation: float = 1.0
    """Largest utilisation that a link may have, such as 0.8."""

    def check_growth(self) -> None:
        """Raise InputError for a number out of its range, or a horizon without a growth."""
        require(self, "growth", f"a number above 0, up to {_MAX_GROWTH:g}", 0 < self.growth <= _MAX_GROWTH)
        require(self, "max_utilisation", "a finite number above 0", 0 < self.max_utilisation < float("inf"))
        require(self, "horizon", "--growth-per-year too", not self.horizon or bool(self.growth_per_year))
        _ = self.rate, self.horizon_years

    @property
    def rate(self) -> float | None:
        """Growth in a year, as a share; None where it is fitted or not asked for.

        Raises:
            InputError: no number above -1 and not ``fit``.
        """
        if self.growth_per_year in ("", "fit"):
            return None
        try:
            rate = float(self.growth_per_year)
        except ValueError:
            rate = float("nan")
        if not -1 < rate < float("inf"):
            raise InputError("--growth-per-year", "", "a share such as 0.3, or fit", repr(self.growth_per_year))
        return rate

    @property
    def horizon_years(self) -> float:
        """Years from the last matrix to the horizon; 0 for none.

        Raises:
            InputError: no number above 0 with a unit.
        """
        if not self.horizon:
            return 0.0
        number, unit = self.horizon[:-1], self.horizon[-1]
        try:
            years = float(number) * _YEARS[unit]
        except (ValueError, KeyError):
            years = 0.0
        if not 0 < years <= _MOST_YEARS:
            raise InputError("--horizon", "", "a time after the traffic, such as 2y, 6q or 18m", repr(self.horizon))
        return years
