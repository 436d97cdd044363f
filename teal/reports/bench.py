"""The ranking of `teal bench` as a table and a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.markup import escape
from rich.table import Table

from teal.evaluation.bench.problems import NAME, TRACKS
from teal.evaluation.bench.ranking import Score, means
from teal.reports.chart import Chart, Series
from teal.reports.page import Cell, Column, Section, write_page
from teal.reports.text import percent, time_text

_MOST_FAULTS = 50  # listed on the page


def render_ranking(scores: Sequence[Score]) -> Table:
    """A row for each program, the best first: mean score of each track, and over all, time, faults."""
    table = Table(title=f"{NAME}: mean score, 100% is the certified bound", title_justify="left")
    tracks = _tracks(scores)
    for column in ("program", *tracks, "all", "median time", "not valid"):
        table.add_column(column, justify="left" if column == "program" else "right")
    for program, values in means(scores).items():
        own = [score for score in scores if score.program == program]
        table.add_row(
            escape(program), *(percent(values[track]) for track in (*tracks, "all")), time_text(_median_s(own)),
            str(sum(bool(score.fault) for score in own)),
        )  # fmt: skip
    return table


def write_bench_page(path: Path, scores: Sequence[Score]) -> None:
    """A page with the ranking, scores by case as a chart, and what is not valid and why."""
    tracks, ranking = _tracks(scores), means(scores)
    lines = []
    for program, values in ranking.items():
        own = [score for score in scores if score.program == program]
        faults, seconds = sum(bool(score.fault) for score in own), _median_s(own)
        lines.append((program, [
            *(Cell(percent(values[track]), values[track]) for track in (*tracks, "all")),
            Cell(time_text(seconds), seconds), Cell(str(faults), faults),
        ]))  # fmt: skip
    series = tuple(
        Series(program, "points", [s.case for s in own], [100 * s.score for s in own])
        for program in ranking
        if (own := [score for score in scores if score.program == program])
    )
    best = next(iter(ranking.items()))
    section = Section(
        title=NAME, facts=f"{len({s.case for s in scores})} cases in {len(tracks)} tracks", traffic="the frozen set",
        columns=[
            *(Column(track, most_is_best=True) for track in (*tracks, "all")), Column("median time"),
            Column("not valid"),
        ],
        lines=lines,
        charts=(
            Chart("scores", "Score of every case", "100% is the certified bound, which in some cases no program can "
                  "reach.", "case", "score, %", series, x_scale="category"),
        ),
        notes=[f"{s.program}, {s.case}: {s.fault}" for s in scores if s.fault][:_MOST_FAULTS],
        row_label="program", findings=[f"First: {best[0]}, {percent(best[1]['all'])} on average over the tracks."],
    )  # fmt: skip
    write_page(
        path, f"{', '.join(ranking)} on {NAME}",
        "Results of any program, checked by plain arithmetic.  A score is value over bound for flow, and bound over "
        "value for utilisation; times are those that the programs say.", [section],
    )  # fmt: skip


def _tracks(scores: Sequence[Score]) -> list[str]:
    return [track for track in TRACKS if any(score.track == track for score in scores)]


def _median_s(scores: Sequence[Score]) -> float:
    known = [score.seconds for score in scores if not math.isnan(score.seconds)]
    return float(np.median(known)) if known else math.nan
