"""The result of `teal estimate` as a page, and that of `teal check` as tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from rich.markup import escape
from rich.table import Table

from teal.evaluation.counters import CheckedInterval, EstimateRun
from teal.reports.page import Cell, Column, Section, write_page
from teal.reports.text import percent
from teal.web.layout import drawing, packed_utilisation

_MOST_DEMANDS = 200  # rows of the page's table


def write_estimate_page(path: Path, run: EstimateRun) -> None:
    """A page with the largest demands, their intervals and, where it is known, the truth; a map of the residuals."""
    topology, traffic = run.topology, run.traffic
    mean = traffic.mean()
    lower, upper = run.lower.mean(0), run.upper.mean(0)
    truth = None if run.truth is None or np.isnan(run.truth).all() else np.nanmean(run.truth, 0)
    lines = []
    for d in np.argsort(-mean)[:_MOST_DEMANDS].tolist():
        source, target = (topology.node_names[node] for node in traffic.pairs[d])
        known = math.isfinite(lower[d])
        cells = [
            Cell(f"{mean[d]:.4g}", mean[d]),
            Cell(f"{lower[d]:.4g} to {upper[d]:.4g}" if known else "", upper[d] - lower[d]),
        ]
        if truth is not None:
            cells.append(Cell(f"{truth[d]:.4g}", truth[d]))
        lines.append((f"{source} -> {target}", cells))
    columns = [Column("mean, Gbit/s", most_is_best=True), Column("interval, mean of its ends")]
    live = topology.capacity > 0
    share = np.where(live, np.abs(run.residual) / np.where(live, topology.capacity, 1), np.nan)
    drawn = drawing(
        topology.node_names, topology.coordinates, topology.link_source, topology.link_target, topology.capacity
    )
    section = Section(
        title=topology.name,
        facts=f"{traffic.num_matrices:,} matrices of {traffic.num_demands:,} demands",
        traffic="counters",
        columns=columns if truth is None else [*columns, Column("truth, Gbit/s")],
        lines=lines,
        charts=(),
        row_label="demand",
        map={
            **drawn, "cases": ["mean of what no matrix explains, share of the capacity"], "schemes": ["residual"],
            "utilisation": {"0/0": packed_utilisation(share.astype(np.float32))},
        },
    )  # fmt: skip
    write_page(path, f"Matrices of {topology.name}, from counters", _sentences(run.describe()), [section])


def render_checks(rows: Sequence[CheckedInterval], most: int = 20) -> Iterator[Table]:
    """A table of the intervals with an alarm, or, without any, of those nearest to one."""
    alarms = [row for row in rows if row.alarm]
    shown = alarms or sorted(rows, key=lambda row: row.mean_statistic - row.limit, reverse=True)
    title = f"{len(alarms):,} of {len(rows):,} intervals raise an alarm" if alarms else "no alarm; nearest to one"
    table = Table(title=title, title_justify="left")
    for column in ("interval", "statistic", "limit", "ends disagree", "counters named", "suspects"):
        table.add_column(column, justify="left" if column in ("interval", "suspects") else "right")
    for row in shown[:most]:
        table.add_row(
            row.timestamp, f"{row.mean_statistic:.3f}", f"{row.limit:.3f}", percent(row.disagreeing), str(row.blamed),
            escape(row.unit or row.suspects),
        )  # fmt: skip
    yield table


def _sentences(text: str) -> str:
    """Lines as sentences of a paragraph."""
    return " ".join(f"{line[:1].upper()}{line[1:]}." for line in text.splitlines())
