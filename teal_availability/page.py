"""Availability results as tables, charts and an HTML page."""

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

# Maximum number of components in a table of the page; components.csv has all.
_MAX_PAGE_ROWS = 25
# Smallest value, in minutes a year, of a logarithmic axis.
_MIN_MINUTES = 1e-3


def _time_text(share: float) -> str:
    """Format a share of the time as a percentage, rounded down; ``-`` for NaN."""
    return "-" if math.isnan(share) else share_text(share, up=False)


def _share_text(share: float) -> str:
    """Format a share of the traffic as a percentage; ``-`` for NaN."""
    return "-" if math.isnan(share) else percent(share)


def _lost_minutes_text(row: SummaryRow | DemandRow | PromiseRow) -> str:
    """Format the lower and upper bound on the minutes lost a year; ``-`` for NaN."""
    if math.isnan(row.lost_minutes):
        return "-"
    return from_to(row.lost_minutes, row.lost_minutes_at_most)


def _minutes_text(minutes: float) -> str:
    """Format a number of minutes, rounded down."""
    return number_text(minutes, up=False)


def summary_table(report: AvailabilityFigures) -> Table:
    """Return a table with a row for each routing scheme, and with classes for each class."""

    def fully_served(row: SummaryRow) -> str:
        """Format the share of the time in which every demand is fully served."""
        return share_from_to(row.whole_100, row.whole_100_at_most)

    def mostly_served(row: SummaryRow) -> str:
        """Format the share of the time in which 99% of the total traffic is delivered."""
        return share_from_to(row.total_99, row.total_99_at_most)

    columns = (
        Column("routing", "routing"),
        Column("class", "of_class", optional=True),
        Column("minutes lost a year", "lost_minutes_at_most", text=_lost_minutes_text),
        Column("all demands fully served", "whole_100", text=fully_served, most_is_best=True),
        Column("99% of traffic", "total_99", text=mostly_served, most_is_best=True),
    )
    title = f"{report.topology}, {report.traffic}: {_states_text(report)}"
    return Table(title, columns, report.summary)


def _states_text(report: AvailabilityFigures) -> str:
    """Describe the number of listed states, and the total probability of the unlisted ones."""
    return f"{report.states:,} states, {report.rest:.2g} of the time in unlisted states"


def component_table(report: AvailabilityFigures, routing: str, worst: int) -> Table:
    """Return a table of the components whose failures lose the most traffic under one routing
    scheme.

    Args:
        report: the results.
        routing: name of the routing scheme.
        worst: number of components to list.
    """
    routing_rows = [row for row in report.by_component if row.routing == routing]
    ranked: list[ComponentRow] = sorted(routing_rows, key=lambda row: -row.gained)[
        : max(worst, _MAX_PAGE_ROWS)
    ]
    columns = (
        Column("component", "component"),
        Column("kind", "kind"),
        Column("availability", "availability", _time_text),
        Column("lost while down", "lost_while_down", _minutes_text, most_is_best=True),
        Column("gained without failures", "gained", _minutes_text, most_is_best=True),
    )
    return Table(f"{routing}: minutes a year of all traffic", columns, ranked, worst)


def demand_table(report: AvailabilityFigures, routing: str, worst: int) -> Table:
    """Return a table of the demands that lose the most minutes a year under one routing scheme.

    Args:
        report: the results.
        routing: name of the routing scheme.
        worst: number of demands to list.
    """
    rows = [row for row in report.demands if row.routing == routing and row.rate > 0]
    ranked: list[DemandRow] = sorted(rows, key=lambda row: -row.lost_minutes_at_most)
    columns = (
        Column("demand", lambda row: f"{row.source} -> {row.target}"),
        Column("class", "of_class", optional=True),
        Column("Gbit/s", "rate", digits(3), most_is_best=True),
        Column(
            "minutes lost a year",
            "lost_minutes_at_most",
            text=_lost_minutes_text,
            most_is_best=True,
        ),
        Column("fully served", "time_100", _time_text),
        Column("90%", "time_90", _time_text),
    )
    return Table(f"{routing}: the least available demands", columns, ranked, worst)


def promise_table(report: AvailabilityFigures) -> Table:
    """Return a table with a row for each bandwidth guarantee (promise) and matrix."""
    columns = (
        Column("promise", "routing"),
        Column("class", "of_class", optional=True),
        Column("matrix", "matrix", str),
        Column("availability", "availability", _time_text, optional=True),
        Column("share", "share", percent),
        Column("at most", "share_at_most", _share_text),
        Column("gap", "gap", _share_text),
        Column(
            "minutes lost a year", "lost_minutes_at_most", text=_lost_minutes_text, optional=True
        ),
        Column("quantile share", "quantile", percent, optional=True),
        Column("quantile at most", "quantile_at_most", percent, optional=True),
        Column("demands excluded", "left_out", str),
    )
    title = "promises: mean share of all traffic, of every demand, or of the least served demand"
    rows: list[PromiseRow] = report.promises
    return Table(title, columns, rows)


def charts_of(report: AvailabilityFigures) -> list[Chart]:
    """Return two charts: minutes lost a year by demand, and minutes gained a year by component."""
    return [_lost_by_demand(report), _gained_by_component(report)]


def _lost_by_demand(report: AvailabilityFigures) -> Chart:
    """Return a chart of the distribution of lost minutes over the demands, by routing scheme."""
    # Lost minutes of each demand by routing scheme, at least the smallest value of the axis.
    lost_minutes = {
        row.routing: [
            max(_MIN_MINUTES, demand.lost_minutes)
            for demand in report.demands
            if demand.routing == row.routing and demand.rate > 0
        ]
        for row in report.of_all
    }
    return Chart(
        "demands",
        "Minutes lost a year",
        "Share of demands that lose at most this many minutes of their traffic a year, in the "
        "listed states.",
        "minutes a year",
        "share of demands (%)",
        tuple(distribution(name, np.array(minutes)) for name, minutes in lost_minutes.items()),
        "log",
        shows_shares=True,
    )


def _gained_by_component(report: AvailabilityFigures) -> Chart:
    """Return a chart of the distribution of gained minutes over components, by routing scheme."""
    # Gained minutes of each component, for each routing scheme.
    gained_minutes = [
        [
            max(_MIN_MINUTES, component.gained)
            for component in report.by_component
            if component.routing == row.routing
        ]
        for row in report.of_all
    ]
    return Chart(
        "components",
        "Minutes gained a year",
        "Share of components that would gain at most this many minutes of all traffic a year "
        "without failures.",
        "minutes a year",
        "share of components (%)",
        tuple(
            distribution(row.routing, np.array(minutes))
            for row, minutes in zip(report.of_all, gained_minutes, strict=True)
        ),
        "log",
        shows_shares=True,
    )


def write_availability_report(path: Path, report: AvailabilityFigures) -> None:
    """Write the HTML page of an availability study; its first sentence is the answer.

    Args:
        path: the file.
        report: the results.
    """
    # Summary of all traffic, guarantees if there are any, then the components by scheme.
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
                facts="Rates reserved on paths, certified by link prices.",
                traffic=report.traffic,
                table=promise_table(report),
                charts=[],
            )
        )
    # One section for each routing scheme.
    sections += [
        Section(
            title=f"{row.routing}: components",
            facts="Minutes a year of all traffic, in the listed states.",
            traffic=report.traffic,
            table=component_table(report, row.routing, _MAX_PAGE_ROWS),
            charts=[],
        )
        for row in report.of_all
    ]
    write_page(path, f"Availability of {report.topology}", f"{report.answer}.", sections)


def plot_availability(path: Path, report: AvailabilityFigures) -> None:
    """Draw the charts of lost and gained minutes as an image.

    Args:
        path: the image file.
        report: the results.
    """
    plot_panels(path, [(report.topology, charts_of(report))])
