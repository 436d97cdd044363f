"""One self-contained page with tables, charts and maps."""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from teal.reports.chart import Chart, Styles
from teal.reports.interactive import figure
from teal.web import network_map_js, plotly_js

_ASSETS = Path(__file__).parent / "assets"


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: what is shown.
        number: to sort by; NaN stays last; None for a text.
    """

    text: str
    number: float | None = None

    @property
    def sort(self) -> str:
        """What the page sorts by."""
        if self.number is None:
            return self.text
        return "" if math.isnan(self.number) else repr(float(self.number))


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        label: heading.
        is_number: whether it is sorted and aligned as numbers.
        most_is_best: whether the largest number is the best, which a first click puts on top.
    """

    label: str
    is_number: bool = True
    most_is_best: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Section:
    """One network on the page.

    Attributes:
        title: name of the network, with the traffic where the page has several of one network.
        facts: a line about the network.
        traffic: name of the traffic.
        columns: of the table, after the one of the scheme.
        lines: of the table: scheme, cells.
        notes: of failed schemes.
        charts: in their order.
        map: see :func:`teal.reports.maps.network_map`; None for no map.
        map_first: whether the map stands above the table.
        row_label: heading of the first column.
        findings: sentences that say what the table shows.
        case_label: of the choice of what the map shows.
        scheme_label: of the choice of whose loads it shows.
    """

    title: str
    facts: str
    traffic: str
    columns: Sequence[Column]
    lines: Sequence[tuple[str, Sequence[Cell]]]
    charts: Sequence[Chart]
    notes: Sequence[str] = ()
    map: dict[str, Any] | None = None
    map_first: bool = False
    row_label: str = "scheme"
    findings: Sequence[str] = ()
    case_label: str = "Matrix"
    scheme_label: str = "Scheme"


def write_page(path: Path, heading: str, introduction: str, sections: Sequence[Section]) -> None:
    """Write the page.  It contains everything, also Plotly's JavaScript (4.5 MB), and loads nothing from elsewhere.

    Args:
        path: of the file.
        heading: of the page.
        introduction: a paragraph; what stands between backquotes is shown as code.
        sections: at least one.
    """
    import jinja2

    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(_ASSETS), autoescape=True, trim_blocks=True)
    styles = Styles(tuple(dict.fromkeys(s.scheme for one in sections for chart in one.charts for s in chart.series)))
    figures = {
        f"chart-{number}-{i}": figure(chart, styles)
        for number, section in enumerate(sections)
        for i, chart in enumerate(section.charts)
    }
    page = environment.get_template("report.html").render(
        heading=heading,
        introduction=introduction.split("`"),
        sections=sections,
        made=f"{version('teal-te')} on {datetime.date.today().isoformat()}",
        style=(_ASSETS / "report.css").read_text(encoding="utf-8"),
        script=(_ASSETS / "report.js").read_text(encoding="utf-8"),
        plotly=plotly_js(),
        network_map=network_map_js(),
        figures=figures,
        maps={f"network-{number}": one.map for number, one in enumerate(sections) if one.map is not None},
    )
    path.write_text(page, encoding="utf-8")
