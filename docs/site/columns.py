"""The reference of columns: the fields of each result's dataclass, in the words of its docstring."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

from teal.allocation.allocate import AllocatedMatrix
from teal.formats.rows import column_names
from teal.problem.assessment import Metrics
from teal_ip.counters.estimate import CheckedInterval, EstimatedInterval
from teal_ip.metrics.changes import MetricChange
from teal_ip.purchases.result import Purchase, ScenarioFit
from teal_ip.routing.growth import LinkForecast
from teal_ip.routing.simulate import FailureLoad
from teal_next.evaluation import NextRow, NextSummary
from teal_study.evaluation.audit import Generation
from teal_study.evaluation.bench.ranking import Score
from teal_study.evaluation.intervals import DifferenceRow, MeanRow
from teal_study.evaluation.race import RaceRun
from teal_study.evaluation.rows import Row
from teal_study.evaluation.sweep import SweepRun, SweepSummary
from teal_study.planning.plan import Outage, PlannedLink

# Command, file in its OUT, and the dataclass of which each row is one.
TABLES: tuple[tuple[str, str, type[Any]], ...] = (
    ("allocate", "figures.csv", AllocatedMatrix),
    ("evaluate", "results.csv", Row),
    ("evaluate", "summary.csv", MeanRow),
    ("evaluate", "differences.csv", DifferenceRow),
    ("evaluate --race", "race.csv", RaceRun),
    ("next-interval", "next_interval.csv", NextRow),
    ("next-interval", "next_interval_summary.csv", NextSummary),
    ("audit", "losses.csv", Generation),
    ("bench", "scores.csv", Score),
    ("sweep", "runs.csv", SweepRun),
    ("sweep", "summary.csv", SweepSummary),
    ("simulate", "failures.csv", FailureLoad),
    ("simulate", "forecast.csv", LinkForecast),
    ("metrics", "OUT.csv", MetricChange),
    ("plan", "failures.csv", Outage),
    ("plan", "links.csv", PlannedLink),
    ("upgrade", "purchases.csv", Purchase),
    ("upgrade", "scenarios.csv", ScenarioFit),
    ("estimate", "estimate.csv", EstimatedInterval),
    ("check", "OUT.csv", CheckedInterval),
)


def sentences(kind: type[Any]) -> dict[str, str]:
    """The text of each attribute in the docstrings of a dataclass and of those that it extends."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        text = inspect.cleandoc(one.__dict__.get("__doc__") or "")
        attributes = re.search(r"^Attributes:\n((?:    .*\n?|\n)*)", text, re.M)
        for names, body in re.findall(
            r"^    ([a-z_0-9, ]+): (.*(?:\n {6,}.*)*)", attributes[1] if attributes else "", re.M
        ):
            found |= dict.fromkeys(names.split(", "), " ".join(body.split()))
    return found


def reference() -> str:
    """All tables, as Markdown; the columns that all figures share stand once, before them."""
    common = {field.name for field in dataclasses.fields(Metrics)}
    parts = ["## Figures of an allocation\n", *_lines(Metrics, common)]
    for command, file, kind in TABLES:
        own = [
            name
            for name in column_names(kind)
            if not (issubclass(kind, Metrics) and name in common)
        ]
        more = ", and the figures of an allocation" if len(own) < len(column_names(kind)) else ""
        parts += [
            f"\n## {file} of teal {command}\n",
            f"A row: {_subject(kind)}{more}.\n",
            *_lines(kind, set(own)),
        ]
    return "\n".join(parts)


def _subject(kind: type[Any]) -> str:
    first = (
        " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())
        .rstrip(".")
        .split(" (see ")[0]
    )
    return _plain(first[:1].lower() + first[1:])


def _lines(kind: type[Any], names: set[str]) -> list[str]:
    texts = sentences(kind)
    rows = [f"| `{name}` | {_plain(texts[name])} |" for name in column_names(kind) if name in names]
    return ["| column | |", "|---|---|", *rows]


def _plain(text: str) -> str:
    """Roles of Sphinx as plain code, and bars escaped."""
    return (
        re.sub(r":\w+:`~?([^`<]*)(?:<[^`]*>)?`", r"`\1`", text)
        .replace("``", "`")
        .replace("|", "\\|")
    )
