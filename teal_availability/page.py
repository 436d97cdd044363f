"""Availability as tables, charts and a page."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from teal.app.chart import Chart, distribution
from teal.app.image import plot_panels
from teal.app.page import Section, write_page
from teal.app.table import Column, Table
from teal.app.text import digits, percent
from teal_availability.records import (
    AvailabilityFigures,
    ComponentRow,
    DemandRow,
    PromiseRow,
    SummaryRow,
    from_to,
    number_text,
    share_from_to,
    share_text,
)

_SHOWN = 25  # components on the page; components.csv has all
_LEAST_MINUTES = 1e-3  # a year, of an axis that is logarithmic


def _time(share: float) -> str:
    """A share of the time as text, at least; ``-`` for none."""
    return "-" if math.isnan(share) else share_text(share, up=False)


def _share(share: float) -> str:
    """A share of the traffic as text; ``-`` where none is known."""
    return "-" if math.isnan(share) else percent(share)


def _lost(row: SummaryRow | DemandRow | PromiseRow) -> str:
    """Minutes lost a year as text; ``-`` where they are not known."""
    if math.isnan(row.lost_minutes):
        return "-"
    return from_to(row.lost_minutes, row.lost_minutes_at_most)


def _minutes(minutes: float) -> str:
    return number_text(minutes, up=False)


def summary_table(report: AvailabilityFigures) -> Table:
    """A row for each way of routing."""

    def whole(row: SummaryRow) -> str:
        return share_from_to(row.whole_100, row.whole_100_at_most)

    def total(row: SummaryRow) -> str:
        return share_from_to(row.total_99, row.total_99_at_most)

    columns = (
        Column("routing", "routing"),
        Column("class", "of_class", optional=True),
        Column("minutes lost a year", "lost_minutes_at_most", text=_lost),
        Column("all demands whole", "whole_100", text=whole, most_is_best=True),
        Column("99% of traffic", "total_99", text=total, most_is_best=True),
    )
    title = f"{report.topology}, {report.traffic}: {_states_text(report)}"
    return Table(title, columns, report.summary)


def _states_text(report: AvailabilityFigures) -> str:
    return f"{report.states:,} states, {report.rest:.2g} of the time in others"


def component_table(report: AvailabilityFigures, routing: str, worst: int) -> Table:
    """The components whose failures cost most under one way of routing."""
    rows = [row for row in report.by_component if row.routing == routing]
    ranked: list[ComponentRow] = sorted(rows, key=lambda row: -row.gained)[: max(worst, _SHOWN)]
    columns = (
        Column("component", "component"),
        Column("kind", "kind"),
        Column("availability", "availability", _time),
        Column("lost while down", "lost_while_down", _minutes, most_is_best=True),
        Column("gained without failures", "gained", _minutes, most_is_best=True),
    )
    return Table(f"{routing}: minutes a year of all traffic", columns, ranked, worst)


def demand_table(report: AvailabilityFigures, routing: str, worst: int) -> Table:
    """The demands that lose most under one way of routing."""
    rows = [row for row in report.demands if row.routing == routing and row.rate > 0]
    ranked: list[DemandRow] = sorted(rows, key=lambda row: -row.lost_minutes_at_most)
    columns = (
        Column("demand", lambda row: f"{row.source} -> {row.target}"),
        Column("class", "of_class", optional=True),
        Column("Gbit/s", "rate", digits(3), most_is_best=True),
        Column("minutes lost a year", "lost_minutes_at_most", text=_lost, most_is_best=True),
        Column("whole", "time_100", _time),
        Column("90%", "time_90", _time),
    )
    return Table(f"{routing}: the least available demands", columns, ranked, worst)


def promise_table(report: AvailabilityFigures) -> Table:
    """A row for each promise."""
    columns = (
        Column("promise", "routing"),
        Column("class", "of_class", optional=True),
        Column("matrix", "matrix", str),
        Column("availability", "availability", _time, optional=True),
        Column("share", "share", percent),
        Column("at most", "share_at_most", _share),
        Column("gap", "gap", _share),
        Column("minutes lost a year", "lost_minutes_at_most", text=_lost, optional=True),
        Column("true share", "quantile", percent, optional=True),
        Column("demands left out", "left_out", str),
    )
    title = "promises: share of all traffic on average, of every demand, or of all demands at once"
    rows: list[PromiseRow] = report.promises
    return Table(title, columns, rows)


def charts_of(report: AvailabilityFigures) -> list[Chart]:
    """Minutes lost a year: of demands, and of components."""
    by_routing = {
        row.routing: [one for one in report.demands if one.routing == row.routing and one.rate > 0]
        for row in report.of_all
    }
    return [
        Chart(
            "demands",
            "Minutes lost a year",
            "Demands that lose at most so many minutes of their traffic a year, in the states that "
            "were looked at.",
            "minutes a year",
            "share of demands (%)",
            tuple(
                distribution(
                    name,
                    np.array([max(_LEAST_MINUTES, one.lost_minutes) for one in rows]),
                )
                for name, rows in by_routing.items()
            ),
            "log",
            shows_shares=True,
        ),
        Chart(
            "components",
            "Minutes gained a year",
            "Components that would bring at most so many minutes of all traffic a year, if they "
            "never failed.",
            "minutes a year",
            "share of components (%)",
            tuple(
                distribution(
                    row.routing,
                    np.array(
                        [
                            max(_LEAST_MINUTES, one.gained)
                            for one in report.by_component
                            if one.routing == row.routing
                        ]
                    ),
                )
                for row in report.of_all
            ),
            "log",
            shows_shares=True,
        ),
    ]


def write_availability_report(path: Path, report: AvailabilityFigures) -> None:
    """Write the page: its first sentence is the answer."""
    sections = [
        Section(
            title="All traffic",
            facts=_states_text(report),
            traffic=report.traffic,
            table=summary_table(report),
            charts=charts_of(report),
        )
    ]
    if report.promises:
        sections.append(
            Section(
                title="Promises",
                facts="Rates that are reserved on paths, certified by prices.",
                traffic=report.traffic,
                table=promise_table(report),
                charts=[],
            )
        )
    sections += [
        Section(
            title=f"{row.routing}: components",
            facts="Minutes a year of all traffic, of the states that were looked at.",
            traffic=report.traffic,
            table=component_table(report, row.routing, _SHOWN),
            charts=[],
        )
        for row in report.of_all
    ]
    write_page(path, f"Availability of {report.topology}", f"{report.answer}.", sections)


def plot_availability(path: Path, report: AvailabilityFigures) -> None:
    """Both charts as an image."""
    plot_panels(path, [(report.topology, charts_of(report))])
