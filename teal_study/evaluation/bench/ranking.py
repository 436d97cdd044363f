"""Result files of any program: check without Teal's solvers and validator, and scores.

A result file is a table (CSV) with a row for each path that a demand uses:

    case,source,target,path,share
    b4/known/24,1,5,1|2|5,0.75

``path`` has the names of its nodes, joined by ``|``; ``share`` is its split ratio.  A second table
``case,seconds`` may have the time of each case by the program's own clock.

An allocation is valid if all paths lead from source to target over links that have not failed, and
shares are at least 0 and sum up to at most 1.  Under total_flow no link may carry more than its
capacity; under max_link_utilisation all demand must be carried; unsplittable demands have one path
each.  The relative tolerance is 1e-6.

The score of a case is value / bound under total_flow and bound / value under max_link_utilisation,
at most 1, and 0 for a missing or invalid case.  Programs are ranked by the mean over the
tracks of the mean over a track's cases.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from teal.errors import InputError
from teal.network import Topology
from teal_study.evaluation.bench.problems import TRACKS, BenchSet, Case

# Relative tolerance of capacities and shares.
_TOLERANCE = 1e-6
HEADER = ("case", "source", "target", "path", "share")

Paths = dict[tuple[int, int], list[tuple[list[int], float]]]
"""Links and share of every path, by source and target."""


@dataclasses.dataclass(frozen=True)
class Score:
    """Score of a program on a case.

    Attributes:
        program: name of the program.
        case: name of the case.
        track: track of the case.
        score: score from 0 to 1; 0 for a missing or invalid result.
        value: Gbit/s, or the largest utilisation; NaN if the result is invalid.
        bound: bound of the case.
        seconds: time by the program's own clock; NaN if unknown.
        fault: reason for which the result is invalid; ``""`` if it is valid.
        proved_gap: gap to the optimum over all paths that a proof of the value shows; NaN without a
            proof.
        proof: folder of the proof, or the reason for which there is none; ``""`` if no proof was
            requested.
    """

    program: str
    case: str
    track: str
    score: float
    value: float
    bound: float
    seconds: float
    fault: str
    proved_gap: float = math.nan
    proof: str = ""


def read_results(path: Path, bench: BenchSet) -> dict[str, Paths]:
    """Return the paths and shares of each demand in a result file, by name of the case.

    Args:
        path: the file.
        bench: benchmark set: networks, matrices and cases.

    Raises:
        InputError: another table, an unknown case, node or link, or a share that is no number.
    """
    # Cases by name; indices of links by the names of their ends, and of nodes by name, by network.
    cases = {case.name: case for case in bench.cases}
    link_indices = {name: _link_by_names(bench, name) for name in bench.networks}
    node_indices = {name: topology.node_index() for name, topology in bench.networks.items()}
    paths_by_case: dict[str, Paths] = {}
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            reader = csv.DictReader(stream)
            if tuple(reader.fieldnames or ()) != HEADER:
                raise InputError(
                    str(path), "line 1", ",".join(HEADER), ",".join(reader.fieldnames or ())
                )
            for line, row in enumerate(reader, start=2):
                where = f"line {line}"
                case = cases.get(row["case"])
                if case is None:
                    raise InputError(
                        str(path), where, "the name of a case of the set", repr(row["case"])
                    )
                # Nodes, links and share of the path.
                names = row["path"].split("|")
                try:
                    node_pair = (
                        node_indices[case.network][row["source"]],
                        node_indices[case.network][row["target"]],
                    )
                    path_links = [
                        link_indices[case.network][pair] for pair in itertools.pairwise(names)
                    ]
                    share = float(row["share"])
                except (KeyError, ValueError) as error:
                    fault = (
                        "not a node, a link of the network, or a number; correct source, target, "
                        f"path or share: {error}"
                    )
                    raise InputError.invalid(str(path), where, fault) from None
                if names[0] != row["source"] or names[-1] != row["target"]:
                    raise InputError(str(path), where, "a path from source to target", row["path"])
                paths_by_case.setdefault(case.name, {}).setdefault(node_pair, []).append(
                    (path_links, share)
                )
    except OSError as error:
        fault = f"cannot be read: {error.strerror or error}"
        remedy = f"give a table with the columns {','.join(HEADER)}"
        raise InputError.invalid(str(path), "", fault, remedy) from None
    return paths_by_case


def _link_by_names(bench: BenchSet, name: str) -> dict[tuple[str, str], int]:
    """Return the index of each link of a network, by (source name, target name).

    Args:
        bench: benchmark set: networks, matrices and cases.
        name: name of the network in the set.
    """
    topology = bench.networks[name]
    names = topology.node_names
    return {
        (names[s], names[t]): link
        for link, (s, t) in enumerate(zip(topology.link_source, topology.link_target, strict=True))
    }


def read_seconds(path: Path) -> dict[str, float]:
    """Return the seconds of each case, by its name, from a table ``case,seconds``; {} if there is
    no file.

    Raises:
        InputError: another table, or a time that is no number.
    """
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8") as stream:
        try:
            return {row["case"]: float(row["seconds"]) for row in csv.DictReader(stream)}
        except (KeyError, ValueError) as error:
            raise InputError.invalid(
                str(path), "", f"not a table with the columns case,seconds: {error}"
            ) from None


def rank(
    bench: BenchSet,
    programs: Mapping[str, Mapping[str, Paths]],
    seconds: Mapping[str, Mapping[str, float]],
) -> list[Score]:
    """Return the score of every program on every case, program by program, in the order of the
    cases.

    Args:
        bench: benchmark set: networks, matrices and cases.
        programs: for each program the paths and shares of each case.
        seconds: time of each case, by name of the program.
    """
    return [
        score_of(
            bench,
            case,
            name,
            results.get(case.name),
            seconds.get(name, {}).get(case.name, math.nan),
        )
        for name, results in programs.items()
        for case in bench.cases
    ]


def score_of(
    bench: BenchSet, case: Case, program: str, paths: Paths | None, seconds: float
) -> Score:
    """Return the score of a program on a case.

    Args:
        bench: benchmark set: networks, matrices and cases.
        case: the case.
        program: name of the program.
        paths: paths and shares of each demand; None without a result.
        seconds: time of the case; NaN if unknown.
    """
    # Flow is compared with its upper bound, utilisation with its lower bound.
    value, fault = (math.nan, "no result") if paths is None else _checked_value(bench, case, paths)
    score = 0.0
    if not fault:
        ratio = (
            value / case.bound
            if case.objective == "total_flow"
            else case.bound / max(value, 1e-300)
        )
        score = min(1.0, ratio)
    return Score(program, case.name, case.track, score, value, case.bound, seconds, fault)


def _checked_value(bench: BenchSet, case: Case, paths: Paths) -> tuple[float, str]:
    """Check an allocation, and compute its value.

    Args:
        bench: benchmark set: networks, matrices and cases.
        case: the case.
        paths: paths and shares of each demand.

    Returns:
        the value, NaN for an invalid allocation, and its fault, "" for a valid one.
    """
    topology = bench.network_of(case)
    traffic = bench.traffic[case.network]
    demand = {
        (int(s), int(t)): rate
        for (s, t), rate in zip(traffic.pairs, traffic.read([case.matrix])[0], strict=True)
    }
    # Check the shares of each demand, and add up loads and carried demand.
    load = np.zeros(topology.num_links)
    carried_rate = 0.0
    for node_pair, demand_paths in paths.items():
        rate = demand.get(node_pair, 0.0)
        total_share, fault = _check_shares(topology, case, node_pair, demand_paths)
        if fault:
            return math.nan, fault
        for links, share in demand_paths:
            np.add.at(load, links, max(share, 0.0) * rate)
        carried_rate += rate * min(total_share, 1.0)
    # Check the capacities, or that all demand is carried.
    is_live = topology.capacity > 0
    utilisation = float((load[is_live] / topology.capacity[is_live]).max(initial=0.0))
    if case.objective == "total_flow":
        if utilisation > 1 + _TOLERANCE:
            return math.nan, f"a link is loaded to {100 * utilisation:.4f}% of its capacity"
        return carried_rate, ""
    total_demand = sum(demand.values())
    if carried_rate < total_demand * (1 - _TOLERANCE):
        return math.nan, f"only {100 * carried_rate / total_demand:.4f}% of the demand is carried"
    return utilisation, ""


def _check_shares(
    topology: Topology,
    case: Case,
    node_pair: tuple[int, int],
    paths: Sequence[tuple[list[int], float]],
) -> tuple[float, str]:
    """Check the shares and paths of a demand.

    Args:
        topology: the network.
        case: the case.
        node_pair: source and target of the demand.
        paths: links and share of each of its paths.

    Returns:
        the sum of the shares, and the fault, "" for a valid demand.
    """
    names = topology.node_names
    pair_text = f"from {names[node_pair[0]]} to {names[node_pair[1]]}"
    total_share = 0.0
    for links, share in paths:
        if not (share >= -_TOLERANCE and math.isfinite(share)):
            return total_share, f"share {share:g} {pair_text} is not a number >= 0"
        total_share += share
        if share > 0 and (topology.capacity[links] <= 0).any():
            return total_share, f"a path {pair_text} uses a failed link"
    if total_share > 1 + _TOLERANCE:
        return total_share, f"the shares {pair_text} sum up to {total_share:.6g}, more than 1"
    if case.track == "unsplittable" and sum(share > _TOLERANCE for _, share in paths) > 1:
        return total_share, f"several paths {pair_text} for an unsplittable demand"
    return total_share, ""


def means(scores: Sequence[Score]) -> dict[str, dict[str, float]]:
    """Return the mean scores of each program, the best program first.

    Args:
        scores: scores of all programs.

    Returns:
        by program, the mean score in each track that occurs, and under ``all`` the mean of the
        tracks.
    """
    means_by_program: dict[str, dict[str, float]] = {}
    for program in dict.fromkeys(score.program for score in scores):
        mean_by_track: dict[str, float] = {
            track: float(np.mean(values))
            for track in TRACKS
            if (values := [s.score for s in scores if s.program == program and s.track == track])
        }
        means_by_program[program] = {
            **mean_by_track,
            "all": float(np.mean(list(mean_by_track.values()))),
        }
    return dict(sorted(means_by_program.items(), key=lambda item: -item[1]["all"]))
