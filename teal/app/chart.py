"""A chart as data, which :mod:`teal.app.page` draws on a page and :mod:`teal.app.image` in a
file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from teal.network.traffic import spread
from teal.runtime.arrays import FloatArray

# Okabe and Ito's palette, which people with colour blindness can tell apart; then others.
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442"),
    *("#332288", "#882255", "#117733", "#999933", "#44AA99", "#AA4499", "#661100", "#888888"),
)
# Line widths, in pixels; each scheme's is narrower than the one before.
_WIDEST = 3.6
_NARROWEST = 1.4
_NARROWER = 0.6
# Per cent; a line at 100% stays clear of the border.
_SHARE_RANGE = 0.0, 103.0

Kind = Literal["line", "marked", "points", "mean"]
Scale = Literal["linear", "log", "category", "time"]


@dataclasses.dataclass(frozen=True, eq=False)
class Series:
    """One scheme in a chart.

    Attributes:
        scheme: its name.
        kind: a line, a line with marks, small marks, or one large mark.
        x: numbers, categories, or times as text.
        y: numbers; None where there is none.
    """

    scheme: str
    kind: Kind
    x: Sequence[Any]
    y: Sequence[float | None]


@dataclasses.dataclass(frozen=True, eq=False)
class Chart:
    """One chart.

    Attributes:
        name: name of the file that shows it, without ending.
        title: a line.
        text: what is shown, a sentence.
        x_label, y_label: titles of the axes.
        series: in the order in which they are drawn.
        x_scale: scale of the horizontal axis.
        shows_shares: whether the vertical axis is for shares in per cent; else it fits the values.
    """

    name: str
    title: str
    text: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    x_scale: Scale = "linear"
    shows_shares: bool = False

    def labelled(self, labels: Mapping[str, str]) -> Chart:
        """The chart with other names of schemes."""
        series = (
            dataclasses.replace(plotted, scheme=labels.get(plotted.scheme, plotted.scheme))
            for plotted in self.series
        )
        return dataclasses.replace(self, series=tuple(series))

    @property
    def y_range(self) -> tuple[float, float] | None:
        """Least and largest value of the vertical axis; None to fit."""
        return _SHARE_RANGE if self.shows_shares else None


@dataclasses.dataclass(frozen=True)
class Styles:
    """How each scheme looks in all charts of a page.

    Lines that coincide stay visible: each is narrower than the one drawn before it, and has another
    dash.

    Attributes:
        schemes: in the order in which looks are assigned.
    """

    schemes: tuple[str, ...]

    def number(self, scheme: str) -> int:
        """Position of the scheme."""
        return self.schemes.index(scheme)

    def colour(self, scheme: str) -> str:
        """As #rrggbb."""
        return COLOURS[self.number(scheme) % len(COLOURS)]

    def width(self, scheme: str) -> float:
        """Width of its line, pixels."""
        return max(_NARROWEST, _WIDEST - _NARROWER * self.number(scheme))

    def pick(self, scheme: str, looks: Sequence[str]) -> str:
        """One of the looks; schemes with the same colour get different ones."""
        number = self.number(scheme)
        return looks[(number + number // len(COLOURS)) % len(looks)]


# Points of a scheme in a chart; more are thinned out evenly.
MAX_POINTS = 400


def distribution(scheme: str, values: FloatArray) -> Series:
    """The share of the values, in per cent, that are at most so large: a line of steps."""
    values = np.sort(values[~np.isnan(values)])
    drawn = spread(np.arange(len(values)), MAX_POINTS)
    share = 100 * (drawn + 1) / max(1, len(values))
    steps = np.concatenate([[0.0], np.repeat(share, 2)[:-1]]) if len(drawn) else share
    return Series(scheme, "line", np.repeat(values[drawn], 2).tolist(), steps.tolist())
