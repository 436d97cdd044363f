"""The certificate of an objective that is a sequence of programs, line by line: a class, a level of
rates.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from torch import Tensor

from teal.runtime.rounding import at_most, gap_text


@dataclasses.dataclass(frozen=True)
class Line:
    """The certified figures of a part of the demands of one matrix.

    Attributes:
        name: name of the part.
        demand: Gbit/s.
        value: Gbit/s that are carried.
        bound: certified bound on the value beside what the parts before have, Gbit/s.
        gap: (bound - value) / bound, at least 0.
        more: further figures of such parts, by their names; where one has the name of the part
            itself, files have this number in the place of ``name``.
    """

    name: str
    demand: float
    value: float
    bound: float
    gap: float
    more: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def record(self, part: str) -> dict[str, Any]:
        """All figures by their names in files and responses; infinite ones are None.

        Args:
            part: under which the name of the part stands, such as ``class``.
        """
        satisfied = self.value / self.demand if self.demand > 0 else 1.0
        figures = {"demand": self.demand, "value": self.value, "bound": self.bound, "gap": self.gap}
        figures = {**figures, "satisfied_demand": satisfied, **self.more}
        return {
            part: self.name,
            **{name: x if math.isfinite(x) else None for name, x in figures.items()},
        }

    def text(self, part: str, width: int = 0) -> str:
        """The line for people.

        Args:
            part: what it is of.
            width: characters that the name is filled to.
        """
        carried = (
            f"{self.value:.6g} of {self.demand:.6g} Gbit/s, bound {at_most(self.bound)}, gap "
            f"{gap_text(self.gap)}"
        )
        more = [f"{name} {_plain(figure)}" for name, figure in self.more.items() if name != part]
        return ", ".join([f"{self.name:{width}}  {carried}", *more])


def _plain(figure: float) -> str:
    """A figure as text; one without a bound is infinite."""
    if math.isinf(figure):
        return "without a bound"
    return f"{figure:,}" if isinstance(figure, int) else f"{figure:.6g}"


@runtime_checkable
class Lines(Protocol):
    """The lines of B matrices.

    Attributes:
        part: what a line is of, such as ``class``.
        parts: the same for several, under which they stand in files and responses.
    """

    part: ClassVar[str]
    parts: ClassVar[str]

    def rows(self, rows: Tensor) -> Self:
        """The lines of some of the matrices, by their numbers."""
        ...

    def lines(self, row: int) -> tuple[Line, ...]:
        """The lines of one matrix."""
        ...

    def counts(self, row: int) -> dict[str, int]:
        """Numbers of demands of one matrix, by their names in files."""
        ...

    def headline(self, row: int) -> str:
        """A sentence about one matrix, above its lines; "" for none."""
        ...


def records(lines: Lines, row: int) -> list[dict[str, Any]]:
    """The lines of one matrix, as :meth:`Line.record`."""
    return [line.record(lines.part) for line in lines.lines(row)]


def texts(lines: Lines, row: int) -> list[str]:
    """The lines of one matrix as text."""
    of_row, headline = lines.lines(row), lines.headline(row)
    width = max((len(line.name) for line in of_row), default=0)
    return [
        *([headline] if headline else []),
        *(f"  {line.text(lines.part, width)}" for line in of_row),
    ]
