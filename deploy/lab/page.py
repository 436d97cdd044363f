"""The experiment as a page: predicted beside measured loads, utilisation in time, and what happened
when.
"""

from __future__ import annotations

import math
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from deploy.lab.experiment import Experiment
from teal.app.chart import Chart, Series
from teal.app.page import Section, write_page
from teal.app.table import Column, Table
from teal.app.text import digits
from teal.app.web.layout import drawing_of, utilisation_map

_EVENTS = ("installed", "link", "measured", "resumed")


def write_page_of(path: Path, run: Experiment) -> None:
    """Write the page of a finished experiment."""
    topology = run.lab.topology
    figures = run.figures
    start = run.samples[0]["time"] if run.samples else 0.0
    seconds = [round(one["time"] - start, 1) for one in run.samples]
    utilisation = (
        np.array([one["utilisation"] for one in run.samples]) if run.samples else np.zeros((0, 1))
    )
    measured = np.array([row["measured"] / row["capacity"] for row in run.table])
    predicted = np.array([row["predicted"] / row["capacity"] for row in run.table])
    order = np.argsort(-predicted)
    events = [one for one in run.events if one["event"] in _EVENTS]
    charts = (
        Chart(
            "time",
            "Largest utilisation in time",
            "Of any link, once a second, as the interfaces counted it; what the "
            "controller did stands beside it.",
            "seconds",
            "utilisation, %",
            (
                Series(
                    "fullest link",
                    "line",
                    seconds,
                    (100 * utilisation.max(1, initial=0.0)).tolist(),
                ),
                *(
                    Series(
                        name,
                        "points",
                        [round(one["time"] - start, 1) for one in events if one["event"] == name],
                        [105.0 for one in events if one["event"] == name],
                    )
                    for name in _EVENTS
                    if any(one["event"] == name for one in events)
                ),
            ),
        ),
        Chart(
            "loads",
            "Predicted and measured load",
            "Of each link with Teal's splits in force, the fullest first.",
            "links",
            "utilisation, %",
            (
                Series(
                    "predicted",
                    "line",
                    list(range(1, len(order) + 1)),
                    (100 * predicted[order]).tolist(),
                ),
                Series(
                    "measured",
                    "points",
                    list(range(1, len(order) + 1)),
                    (100 * measured[order]).tolist(),
                ),
            ),
        ),
    )
    columns = (
        Column("link", itemgetter("link")),
        Column("capacity, Gbit/s", itemgetter("capacity"), digits(4)),
        Column("predicted", itemgetter("predicted"), digits(4)),
        Column("measured", itemgetter("measured"), digits(4)),
        Column(
            "difference", _error, lambda error: "-" if math.isnan(error) else f"{100 * error:+.2f}%"
        ),
    )
    shown = {"measured, splits of Teal in force": {"Teal": measured}}
    section = Section(
        title=topology.name,
        facts=f"{topology.num_nodes} routers in network namespaces, OSPFv3, SRv6",
        traffic="laboratory",
        table=Table("", columns, run.table),
        charts=charts,
        map=utilisation_map(drawing_of(topology), shown),
    )
    teal = figures["teal"]
    igp = figures["igp"]
    cut = figures["cut"]
    updates = figures["updates"]
    text = (
        f"Fullest link {100 * igp['largest_utilisation']:.1f}% with the IGP, "
        f"{100 * teal['largest_utilisation']:.1f}% "
        f"with Teal's splits (certified optimum {100 * teal['certified_optimum']:.1f}%).  Measured "
        "loads are within "
        f"{100 * teal['largest_error']:.2f}% of predicted ones.  {updates['lost_packets']} of "
        f"{updates['sent_packets']:,} packets lost in {updates['number']} updates.  After the cut "
        f"of {cut['cable']} "
        f"traffic flowed again in {_seconds(cut['flowing_again_s'])}, new splits were in force in "
        f"{_seconds(cut['splits_in_force_s'])}."
    )
    write_page(path, "Teal on real routers", text, [section])


def _error(row: dict[str, Any]) -> float:
    """Relative difference of the measured load from the predicted one; NaN where none is
    predicted.
    """
    return row["measured"] / max(row["predicted"], 1e-300) - 1 if row["predicted"] > 0 else math.nan


def _seconds(value: float | None) -> str:
    return "more than 30 s" if value is None else f"{value:.1f} s"
