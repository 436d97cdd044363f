"""A proof of every valid result of `teal bench`, which a file without Teal checks
(:mod:`teal.proofs`).

Its prices are those of Teal's own optimum over all paths, found once for each case: the proof says
what the program reaches and what no program can exceed, so that a rank is believed without the
program that computed it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import torch
from torch import Tensor

from teal.errors import TealError
from teal.evaluation.bench.problems import BenchSet, Case, optimum_of
from teal.evaluation.bench.ranking import Paths, Score
from teal.formats.allocations import Demand
from teal.network import PathSet
from teal.problem import Allocation, Problem
from teal.proofs.flows import PathFlows, splits_over
from teal.proofs.write import proved_gap, write_proof


def prove_scores(
    bench: BenchSet,
    programs: Mapping[str, Mapping[str, Paths]],
    scores: Sequence[Score],
    folder: Path,
    report: Callable[[str], None] = lambda _: None,
) -> list[Score]:
    """Write ``folder/PROGRAM/CASE`` for every valid result; the scores with what the proofs say.

    Args:
        bench: the set.
        programs: results by name of the program, as in
            :func:`teal.evaluation.bench.ranking.read_results`.
        scores: scores of the results.
        folder: is made where there is none.
        report: called with the name of each case.
    """
    proved: dict[tuple[str, str], Score] = {}
    for case in bench.cases:
        report(case.name)
        valid = [score for score in scores if score.case == case.name and not score.fault]
        if not valid:
            continue
        problem, best = optimum_of(bench, case)
        for score in valid:
            score_folder = _folder_of(score)
            try:
                result = programs[score.program][case.name]
                sentences = _prove(
                    problem, best.paths, best.result.prices, result, case, folder / score_folder
                )
                proved[score.program, case.name] = dataclasses.replace(
                    score, proved_gap=proved_gap(sentences), proof=str(score_folder)
                )
            except TealError as error:
                proved[score.program, case.name] = dataclasses.replace(
                    score, proof=f"not proved: {error}"
                )
    return [proved.get((score.program, score.case), score) for score in scores]


def _folder_of(score: Score) -> Path:
    """PROGRAM/CASE, percent-encoded, so that different names have different folders."""
    return Path(*(quote(name, safe="") for name in (score.program, score.case)))


def _prove(
    problem: Problem, paths: PathSet, prices: Tensor, result: Paths, case: Case, folder: Path
) -> list[str]:
    """The sentences of the proof of a result.

    Args:
        problem: problem of the case.
        paths: over which ``prices`` were found.
        prices: (1, E).
        result: paths and shares.
        case: its name, for messages.
        folder: folder of the proof.
    """
    demand = problem.demand[0].numpy()
    rate = {
        (int(s), int(t)): float(amount)
        for (s, t), amount in zip(problem.paths.pairs, demand, strict=True)
    }
    flows: dict[Demand, PathFlows] = {
        (*ends, ""): _added(
            (tuple(links), max(0.0, share) * rate.get(ends, 0.0)) for links, share in of_demand
        )
        for ends, of_demand in result.items()
        if rate.get(ends, 0.0) > 0
    }
    more, splits = splits_over(flows, problem.topology, paths, demand, None, case.name)
    allocation = Allocation.of_batch(torch.from_numpy(splits)[None], prices, math.nan)
    return write_proof(folder, problem.with_paths(more), allocation, over_all=True, compressed=True)


def _added(flows: Iterable[tuple[tuple[int, ...], float]]) -> PathFlows:
    """Flows of equal paths together."""
    total: PathFlows = {}
    for links, flow in flows:
        total[links] = total.get(links, 0.0) + flow
    return total
