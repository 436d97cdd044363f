"""Certificate lines of an objective that is a sequence of programs: a line per class or level."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from torch import Tensor

from teal.runtime.rounding import at_most, gap_text


@dataclasses.dataclass(frozen=True)
class Line:
    """Certified figures of a part of the demands of one matrix.

    Attributes:
        name: name of the part.
        demand: Gbit/s.
        value: carried flow, Gbit/s.
        bound: certified bound on the value, given the values of earlier parts, Gbit/s.
        gap: (bound - value) / bound, at least 0.
        more: further figures, by name; a figure named as the part itself replaces ``name`` in
            files.
    """

    name: str
    demand: float
    value: float
    bound: float
    gap: float
    more: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def record(self, part: str) -> dict[str, Any]:
        """Return all figures by their names in files and responses; infinite figures are None.

        Args:
            part: key of the name of the part, such as ``class``.
        """
        satisfied = self.value / self.demand if self.demand > 0 else 1.0
        figures = {"demand": self.demand, "value": self.value, "bound": self.bound, "gap": self.gap}
        figures = {**figures, "satisfied_demand": satisfied, **self.more}
        return {
            part: self.name,
            **{name: x if math.isfinite(x) else None for name, x in figures.items()},
        }

    def text(self, part: str, width: int = 0) -> str:
        """Format the line as text.

        Args:
            part: kind of the part, such as ``class``.
            width: minimum width of the name.
        """
        figures_text = (
            f"{self.value:.6g} of {self.demand:.6g} Gbit/s, bound {at_most(self.bound)}, gap "
            f"{gap_text(self.gap)}"
        )
        more_texts = [
            f"{name} {_plain(figure)}" for name, figure in self.more.items() if name != part
        ]
        return ", ".join([f"{self.name:{width}}  {figures_text}", *more_texts])


def _plain(figure: float) -> str:
    """Format a figure; an infinite one has no bound."""
    if math.isinf(figure):
        return "without a bound"
    return f"{figure:,}" if isinstance(figure, int) else f"{figure:.6g}"


@runtime_checkable
class Lines(Protocol):
    """Certificate lines of B matrices.

    Attributes:
        part: kind of a line, such as ``class``.
        parts: its plural, the key in files and responses.
    """

    part: ClassVar[str]
    parts: ClassVar[str]

    def rows(self, rows: Tensor) -> Self:
        """Return the lines of some of the matrices, by their indices."""
        ...

    def lines(self, row: int) -> tuple[Line, ...]:
        """Return the lines of one matrix."""
        ...

    def counts(self, row: int) -> dict[str, int]:
        """Return numbers of demands of one matrix, by their names in files."""
        ...

    def headline(self, row: int) -> str:
        """Return a sentence about one matrix, above its lines; "" for none."""
        ...


def records(lines: Lines, row: int) -> list[dict[str, Any]]:
    """Return the lines of one matrix as records, as :meth:`Line.record`."""
    return [line.record(lines.part) for line in lines.lines(row)]


def texts(lines: Lines, row: int) -> list[str]:
    """Return the lines of one matrix as text."""
    row_lines = lines.lines(row)
    headline = lines.headline(row)
    width = max((len(line.name) for line in row_lines), default=0)
    return [
        *([headline] if headline else []),
        *(f"  {line.text(lines.part, width)}" for line in row_lines),
    ]
