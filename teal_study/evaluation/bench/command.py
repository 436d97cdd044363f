"""``teal bench``: the benchmark set, schemes on it, and the ranking, with their files."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from teal.app.chart import Chart, Series
from teal.app.command import Notify, Outcome
from teal.app.page import Section, write_page
from teal.app.run_files import write_files
from teal.app.table import Column, Table
from teal.app.text import percent, time_text
from teal.errors import InputError
from teal.formats.rows import write_csv
from teal.runtime.progress import progress_bar
from teal.runtime.storage import check_out_folder
from teal_study.evaluation.bench.problems import (
    KEY,
    NAME,
    SET_FILE,
    TRACKS,
    BenchSet,
    make_set,
    read_set,
    write_set,
)
from teal_study.evaluation.bench.proofs import prove_scores
from teal_study.evaluation.bench.ranking import Score, means, rank, read_results, read_seconds
from teal_study.evaluation.bench.runs import run_scheme, write_results
from teal_study.evaluation.settings import BenchConfig

# Maximum number of invalid results that the page lists.
_MAX_FAULTS = 50


@dataclasses.dataclass(frozen=True)
class Measure:
    """Row of ``ranking.csv``.

    Attributes:
        program: name of the program.
        measure: name of the metric: a track or ``all`` (mean scores, from 0 to 1), ``median_s``
            (median time of a case) or ``not_valid`` (number of cases).
        value: value of the metric.
    """

    program: str
    measure: str
    value: float


def ranking_rows(scores: Sequence[Score]) -> list[Measure]:
    """Return the metrics of each program, in the order of the ranking.

    Args:
        scores: scores of all programs.
    """
    rows = []
    for program, mean_scores in means(scores).items():
        program_scores = [score for score in scores if score.program == program]
        measures = {
            **mean_scores,
            "median_s": _median_s(program_scores),
            "not_valid": float(sum(bool(score.fault) for score in program_scores)),
        }
        rows += [Measure(program, name, value) for name, value in measures.items()]
    return rows


def ranking_table(scores: Sequence[Score]) -> Table:
    """Return the table of the ranking: for each program, the best first, mean scores, median time
    and number of invalid results.
    """
    ranking = means(scores)
    scores_by_program = {
        name: [score for score in scores if score.program == name] for name in ranking
    }

    def mean_column(track: str) -> Column:
        """Return the column of the mean scores in a track, or of all tracks."""
        return Column(track, lambda name: ranking[name][track], percent, most_is_best=True)

    columns = (
        Column("program", str),
        *map(mean_column, (*_tracks(scores), "all")),
        Column("median time", lambda name: _median_s(scores_by_program[name]), time_text),
        Column(
            "not valid",
            lambda name: sum(bool(score.fault) for score in scores_by_program[name]),
            str,
        ),
    )
    return Table(f"{NAME}: mean score, 100% is the certified bound", columns, list(ranking))


def write_bench_page(path: Path, scores: Sequence[Score]) -> None:
    """Write a page with the ranking, scores by case as a chart, and the faults of invalid results.

    Args:
        path: file to write.
        scores: scores of all programs.
    """
    # One series of scores for each program.
    tracks = _tracks(scores)
    ranking = means(scores)
    series = tuple(
        Series(
            program,
            "points",
            [s.case for s in program_scores],
            [100 * s.score for s in program_scores],
        )
        for program in ranking
        if (program_scores := [score for score in scores if score.program == program])
    )
    # One section, with the ranking and the chart of scores.
    best_program, best_means = next(iter(ranking.items()))
    section = Section(
        title=NAME,
        facts=f"{len({s.case for s in scores})} cases in {len(tracks)} tracks",
        traffic="the frozen set",
        table=ranking_table(scores),
        charts=(
            Chart(
                "scores",
                "Score of every case",
                "100% is the certified bound, which in some cases no program can reach.",
                "case",
                "score, %",
                series,
                x_scale="category",
            ),
        ),
        notes=[f"{s.program}, {s.case}: {s.fault}" for s in scores if s.fault][:_MAX_FAULTS],
        findings=[
            f"First: {best_program}, {percent(best_means['all'])} on average over the tracks."
        ],
    )
    write_page(
        path,
        f"{', '.join(ranking)} on {NAME}",
        "Results of any program, checked without Teal's solvers.  A score is value / bound for "
        "flow, and bound / value for utilisation; times are as reported by the programs.",
        [section],
    )


def _tracks(scores: Sequence[Score]) -> list[str]:
    """Return the tracks of which there are scores, in the order of TRACKS."""
    return [track for track in TRACKS if any(score.track == track for score in scores)]


def _median_s(scores: Sequence[Score]) -> float:
    """Return the median of the times of cases, seconds, without unknown ones; NaN if no time is
    known.
    """
    seconds = [score.seconds for score in scores if not math.isnan(score.seconds)]
    return float(np.median(seconds)) if seconds else math.nan


FILES = SCORES, RANKING, PAGE = ("scores.csv", "ranking.csv", "report.html")
# Folder of the proofs.
PROOFS = "proofs"


def set_of(config: BenchConfig, notify: Callable[[str], None]) -> BenchSet:
    """Return the set of the settings' folder; make and write it if the folder has none.

    Args:
        config: the settings.
        notify: called with the size and the content hash of a new set.

    Raises:
        InputError: a network that the set does not have, or an invalid set.
    """
    if (config.set / SET_FILE).is_file():
        if config.network:
            fault = f"{config.set} has a set already, whose networks are fixed"
            raise InputError.invalid("--network", "", fault, "drop --network")
        return read_set(config.set)
    with progress_bar(desc="problems", unit="case") as bar:

        def report(_: str, number: int, total: int) -> None:
            """Advance the progress bar to the case of an index, of a total number of cases."""
            bar.total = total
            bar.update(number + 1 - bar.n)

        bench = make_set(report, config.network) if config.network else make_set(report)
    write_set(config.set, bench)
    notify(f"{config.set}: wrote {len(bench.cases)} cases on {', '.join(bench.networks)}")
    if not config.network:
        comparison = (
            "the frozen set"
            if bench.key == KEY
            else f"NOT the frozen set, whose key is {KEY} (another version of NumPy or topohub?)"
        )
        notify(f"content key {bench.key}: {comparison}")
    return bench


def result_file(scheme: str) -> str:
    """Return the file name of a scheme's results: its specification, with - instead of characters
    that file names do not allow.
    """
    return re.sub(r"[^\w.=-]+", "-", scheme).strip("-") + ".csv"


def run_bench(config: BenchConfig, notify: Callable[[str], None]) -> list[Score]:
    """Run the schemes, check and rank all results, write the files, and return the scores.

    Args:
        config: the settings.
        notify: called with the progress.

    Raises:
        InputError: an unknown scheme, an invalid result file, or existing output without
            --overwrite.
    """
    # Files of results: of the schemes, and of other programs.
    out_files = (
        {}
        if config.out is None
        else {scheme: config.out / result_file(scheme) for scheme in config.scheme}
    )
    if config.out is not None:
        names = [*FILES, *(path.name for path in out_files.values())]
        check_out_folder(config.out, names, overwrite=config.overwrite)
    files = [*out_files.values(), *config.results]
    if len({path.stem for path in files}) < len(files):
        stems = ", ".join(path.stem for path in files)
        fault = f"the file names, which are the names of the programs, are not unique: {stems}"
        raise InputError.invalid("--results", "", fault, "rename a file")
    # Run the schemes.
    bench = set_of(config, notify)
    other_results = {path.stem: read_results(path, bench) for path in config.results}
    _run_schemes(config, bench, out_files, notify)
    if not files:
        return []
    # Rank all results, and prove them; programs are named after their files.
    programs = {path.stem: read_results(path, bench) for path in out_files.values()} | other_results
    seconds_by_program = {
        path.stem: read_seconds(path.with_suffix(".seconds.csv")) for path in files
    }
    scores = rank(bench, programs, seconds_by_program)
    if config.out is None:
        return scores
    if config.prove:
        with progress_bar(total=len(bench.cases), desc="proofs", unit="case") as bar:
            scores = prove_scores(
                bench, programs, scores, config.out / PROOFS, lambda _: bar.update()
            )
    write_files(
        config.out,
        {
            SCORES: partial(write_csv, rows=scores),
            RANKING: partial(write_csv, rows=ranking_rows(scores)),
            PAGE: partial(write_bench_page, scores=scores),
        },
    )
    return scores


def _run_schemes(
    config: BenchConfig,
    bench: BenchSet,
    out_files: Mapping[str, Path],
    notify: Callable[[str], None],
) -> None:
    """Run each scheme on the set, and write its results.

    Args:
        config: the settings.
        bench: benchmark set: networks, matrices and cases.
        out_files: result file of each scheme.
        notify: called with the number of skipped cases.
    """
    for scheme, path in out_files.items():
        with progress_bar(total=len(bench.cases), desc=scheme, unit="case") as bar:
            results, seconds = run_scheme(bench, scheme, config.model, lambda _: bar.update())
        write_results(path, bench, results, seconds)
        num_missing = len(bench.cases) - len(results)
        if num_missing:
            notify(f"{scheme}: skipped {num_missing} cases in which it has no explicit paths")


# Maximum number of lines about invalid results, and about unproved ones.
_MAX_LISTED = 5


def bench_outcome(config: BenchConfig, notify: Notify) -> Outcome:
    """Run ``teal bench``; return the ranking, the faults of invalid results, and the files.

    Args:
        config: the settings.
        notify: called with the progress.
    """
    # Without results there is only the set.
    scores = run_bench(config, notify)
    if not scores:
        text = (
            f"{config.set} has the set; --scheme runs a scheme on it, --results ranks result files"
        )
        return Outcome(text=text, data={"set": str(config.set)})
    # Faults of invalid results, and valid results without a proof.
    faults = {f"{score.program}, {score.case}": score.fault for score in scores if score.fault}
    lines = [f"{name}: {fault}" for name, fault in list(faults.items())[:_MAX_LISTED]]
    if config.prove and config.out is not None:
        valid_scores = [score for score in scores if not score.fault]
        unproved_scores = [score for score in valid_scores if math.isnan(score.proved_gap)]
        lines.append(
            f"{config.out / PROOFS}: {len(valid_scores) - len(unproved_scores)} of "
            f"{len(valid_scores)} valid results have a proof"
        )
        lines += [
            f"{score.program}, {score.case}: {score.proof}"
            for score in unproved_scores[:_MAX_LISTED]
        ]
    if config.out is not None:
        lines.append(f"{config.out / PAGE}: open it in a browser")
    return Outcome(
        tables=[ranking_table(scores)],
        written="\n".join(lines),
        data={"set": str(config.set), "means": means(scores), "not_valid": faults},
    )
