"""Charts as data; :mod:`teal.app.page` draws them on HTML pages, :mod:`teal.app.image` in files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from teal.network.traffic import spread
from teal.runtime.arrays import FloatArray

# Okabe and Ito's palette, which is distinguishable with colour blindness; then further colours.
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442"),
    *("#332288", "#882255", "#117733", "#999933", "#44AA99", "#AA4499", "#661100", "#888888"),
)
# Line widths in pixels: the first scheme's, the minimum, and the decrease from one to the next.
_MAX_LINE_WIDTH = 3.6
_MIN_LINE_WIDTH = 1.4
_LINE_WIDTH_STEP = 0.6
# Range of an axis in per cent, with a margin above 100%.
_SHARE_RANGE = 0.0, 103.0

Kind = Literal["line", "marked", "points", "mean"]
Scale = Literal["linear", "log", "category", "time"]


@dataclasses.dataclass(frozen=True, eq=False)
class Series:
    """Points of one scheme in a chart.

    Attributes:
        scheme: name of the scheme.
        kind: ``line``, ``marked`` (line with marks), ``points`` (small marks), or ``mean`` (large
            marks).
        x: x of each point: numbers, categories, or times as text.
        y: y of each point; None where it is unknown.
    """

    scheme: str
    kind: Kind
    x: Sequence[Any]
    y: Sequence[float | None]


@dataclasses.dataclass(frozen=True, eq=False)
class Chart:
    """Chart as data: its series, and the texts and scales of its axes.

    Attributes:
        name: name of the chart's image file, without suffix.
        title: title of the chart, one line.
        text: description of the chart, a sentence.
        x_label: label of the horizontal axis.
        y_label: label of the vertical axis.
        series: series in the order in which they are drawn.
        x_scale: scale of the horizontal axis.
        shows_shares: whether the vertical axis is in per cent from 0 to 100; otherwise its range
            fits the values.
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
        """Return the chart with renamed schemes, by a map from present to new names."""
        series = (
            dataclasses.replace(plotted, scheme=labels.get(plotted.scheme, plotted.scheme))
            for plotted in self.series
        )
        return dataclasses.replace(self, series=tuple(series))

    @property
    def y_range(self) -> tuple[float, float] | None:
        """Lower and upper end of the vertical axis, in per cent; None to fit it to the values."""
        return _SHARE_RANGE if self.shows_shares else None


@dataclasses.dataclass(frozen=True)
class Styles:
    """Colour, line width and marks of each scheme, equal in all charts of a page.

    Coinciding lines stay visible, since each is narrower than the one drawn before it and has
    another dash pattern.

    Attributes:
        schemes: names of the schemes, in the order in which styles are assigned.
    """

    schemes: tuple[str, ...]

    def number(self, scheme: str) -> int:
        """Return the index of a scheme in the order in which styles are assigned, from 0."""
        return self.schemes.index(scheme)

    def colour(self, scheme: str) -> str:
        """Return the colour of a scheme as #rrggbb."""
        return COLOURS[self.number(scheme) % len(COLOURS)]

    def width(self, scheme: str) -> float:
        """Return the line width of a scheme in pixels: each is narrower than the one before, down
        to a minimum.
        """
        return max(_MIN_LINE_WIDTH, _MAX_LINE_WIDTH - _LINE_WIDTH_STEP * self.number(scheme))

    def pick(self, scheme: str, looks: Sequence[str]) -> str:
        """Return the marker or dash pattern of a scheme, one of ``looks``; schemes with the same
        colour get different ones.
        """
        # Schemes beyond the palette repeat its colours, and get the next look.
        index = self.number(scheme)
        return looks[(index + index // len(COLOURS)) % len(looks)]


# Maximum number of points of a distribution; more are subsampled evenly.
MAX_POINTS = 400


def distribution(scheme: str, values: FloatArray) -> Series:
    """Return the empirical distribution function of values as a step line, in per cent.

    Args:
        scheme: name of the scheme.
        values: (n,) values; NaN is ignored.
    """
    values = np.sort(values[~np.isnan(values)])
    # Indices of at most MAX_POINTS sorted values, and the percentage of values up to each.
    drawn_indices = spread(np.arange(len(values)), MAX_POINTS)
    percentage = 100 * (drawn_indices + 1) / max(1, len(values))
    # Each value has two points: the lower and the upper end of its step.
    step_percentages = (
        np.concatenate([[0.0], np.repeat(percentage, 2)[:-1]]) if len(drawn_indices) else percentage
    )
    return Series(
        scheme, "line", np.repeat(values[drawn_indices], 2).tolist(), step_percentages.tolist()
    )
