"""Proofs of every valid result of ``teal bench``, which a checker without Teal verifies
(:mod:`teal.proofs`).

The prices are those of Teal's optimum over all paths, computed once per case.  A proof states the
value of a program's result, and a bound for any program, so that a rank needs no trust in the
program.
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
from teal.formats.allocations import Demand
from teal.network import PathSet
from teal.problem import Allocation, Problem
from teal.proofs.flows import PathFlows, splits_over
from teal.proofs.write import proved_gap, write_proof
from teal_study.evaluation.bench.problems import BenchSet, Case, optimum_of
from teal_study.evaluation.bench.ranking import Paths, Score


def prove_scores(
    bench: BenchSet,
    programs: Mapping[str, Mapping[str, Paths]],
    scores: Sequence[Score],
    folder: Path,
    report: Callable[[str], None] = lambda _: None,
) -> list[Score]:
    """Write a proof to ``folder/PROGRAM/CASE`` for every valid result; return the scores with
    proved gaps.

    Args:
        bench: benchmark set: networks, matrices and cases.
        programs: for each program the paths and shares of each case.
        scores: scores of the results.
        folder: folder of the proofs, made if missing.
        report: called with the name of each case.
    """
    # Scores with a proof, or with the reason why there is none, by (program, case).
    proved_scores: dict[tuple[str, str], Score] = {}
    for case in bench.cases:
        report(case.name)
        valid_scores = [score for score in scores if score.case == case.name and not score.fault]
        if not valid_scores:
            continue
        # The dual prices of the case's optimum prove the bound of every result.
        problem, optimum = optimum_of(bench, case)
        for score in valid_scores:
            score_folder = _proof_folder(score)
            try:
                result = programs[score.program][case.name]
                sentences = _prove(
                    problem,
                    optimum.paths,
                    optimum.result.prices,
                    result,
                    case,
                    folder / score_folder,
                )
                proved_scores[score.program, case.name] = dataclasses.replace(
                    score, proved_gap=proved_gap(sentences), proof=str(score_folder)
                )
            except TealError as error:
                proved_scores[score.program, case.name] = dataclasses.replace(
                    score, proof=f"not proved: {error}"
                )
    return [proved_scores.get((score.program, score.case), score) for score in scores]


def _proof_folder(score: Score) -> Path:
    """Return the relative folder PROGRAM/CASE of the proof of a result, whose names are
    percent-encoded, so that different names have different folders.
    """
    return Path(*(quote(name, safe="") for name in (score.program, score.case)))


def _prove(
    problem: Problem, paths: PathSet, prices: Tensor, result: Paths, case: Case, folder: Path
) -> list[str]:
    """Write the proof of a result; return the sentences that it proves.

    Args:
        problem: problem of the case.
        paths: candidate paths over which ``prices`` were computed.
        prices: (1, E) dual prices of links.
        result: paths and shares of each demand.
        case: the case, whose name appears in messages.
        folder: folder of the proof.
    """
    # Rate by (source, target), Gbit/s; flow of each demand by path: its share of this rate.
    demand = problem.demand[0].numpy()
    rate_by_pair = {
        (int(s), int(t)): float(amount)
        for (s, t), amount in zip(problem.paths.pairs, demand, strict=True)
    }
    flows: dict[Demand, PathFlows] = {
        (*node_pair, ""): _sum_by_path(
            (tuple(links), max(0.0, share) * rate_by_pair.get(node_pair, 0.0))
            for links, share in demand_paths
        )
        for node_pair, demand_paths in result.items()
        if rate_by_pair.get(node_pair, 0.0) > 0
    }
    # Splits over the candidate paths and those of the result; solve times are unknown (NaN).
    all_paths, splits = splits_over(flows, problem.topology, paths, demand, None, case.name)
    allocation = Allocation.of_batch(torch.from_numpy(splits)[None], prices, math.nan)
    return write_proof(
        folder, problem.with_paths(all_paths), allocation, over_all=True, compressed=True
    )


def _sum_by_path(flows: Iterable[tuple[tuple[int, ...], float]]) -> PathFlows:
    """Return the flow of each path, Gbit/s, by its links; flows of equal paths are added up.

    Args:
        flows: links and flow of each path.
    """
    flow_by_path: PathFlows = {}
    for links, flow in flows:
        flow_by_path[links] = flow_by_path.get(links, 0.0) + flow
    return flow_by_path
