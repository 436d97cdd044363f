"""`teal bench`: the set, a scheme on it, and the ranking, with their files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tqdm import tqdm

from teal.config.bench import BenchMakeConfig, BenchRankConfig, BenchRunConfig
from teal.errors import InputError
from teal.evaluation.bench import (
    BenchSet,
    Score,
    make_set,
    rank,
    read_results,
    read_set,
    run_scheme,
    write_results,
    write_set,
)
from teal.evaluation.bench.problems import KEY, SET_FILE
from teal.evaluation.bench.proofs import prove_scores
from teal.evaluation.bench.ranking import read_seconds
from teal.formats.rows import write_csv
from teal.reports.bench import write_bench_page
from teal.runtime.storage import check_out_file, check_out_folder
from teal.studies.files import write_files

FILES = SCORES, PAGE = ("scores.csv", "report.html")
PROOFS = "proofs"  # folder


def run_make(config: BenchMakeConfig, notify: Callable[[str], None]) -> BenchSet:
    """Make and write the set.

    Raises:
        InputError: a network that the set does not have, or an output that must not be replaced.
    """
    check_out_folder(config.out, (SET_FILE,), overwrite=config.overwrite)
    with tqdm(desc="problems", unit="case") as bar:

        def report(_: str, number: int, total: int) -> None:
            bar.total = total
            bar.update(number + 1 - bar.n)

        bench = make_set(report, config.network) if config.network else make_set(report)
    write_set(config.out, bench)
    if not config.network:
        same = (
            "the frozen set"
            if bench.key == KEY
            else f"NOT the frozen set, whose key is {KEY}: another NumPy or topohub?"
        )
        notify(f"content key {bench.key}: {same}")
    return bench


def run_bench(config: BenchRunConfig, notify: Callable[[str], None]) -> int:
    """Run the scheme; the number of cases that it has results of.

    Raises:
        InputError: no set there, an unknown scheme, or an output that must not be replaced.
    """
    check_out_file(config.out, (".csv",), overwrite=config.overwrite)
    bench = read_set(config.set)
    with tqdm(total=len(bench.cases), desc=config.scheme, unit="case") as bar:
        results, seconds = run_scheme(bench, config.scheme, config.model, lambda _: bar.update())
    write_results(config.out, bench, results, seconds)
    missing = len(bench.cases) - len(results)
    if missing:
        notify(f"{missing} cases without explicit paths are left out")
    return len(results)


def run_rank(config: BenchRankConfig) -> list[Score]:
    """Check and rank.

    Raises:
        InputError: no set there, a faulty result file, or an output that must not be replaced.
    """
    if config.out is not None:
        check_out_folder(config.out, FILES, overwrite=config.overwrite)
    bench = read_set(config.set)
    names = [path.stem for path in config.results]
    if len(set(names)) < len(names):
        raise InputError("--results", "", "files of different names, which are those of the programs", ", ".join(names))
    programs = {path.stem: read_results(path, bench) for path in config.results}
    seconds = {path.stem: read_seconds(path.with_suffix(".seconds.csv")) for path in config.results}
    scores = rank(bench, programs, seconds)
    if config.prove and config.out is not None:
        with tqdm(total=len(bench.cases), desc="proofs", unit="case") as bar:
            scores = prove_scores(bench, programs, scores, config.out / PROOFS, lambda _: bar.update())
    if config.out is not None:
        write_files(
            config.out,
            {SCORES: partial(write_csv, rows=scores), PAGE: partial(write_bench_page, scores=scores)},
        )
    return scores
