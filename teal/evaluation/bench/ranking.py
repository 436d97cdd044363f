"""Results of any program as a file, checked by arithmetic of its own, and scores.

A result file is a table (CSV) with a row for each path that a demand uses:

    case,source,target,path,share
    b4/known/24,1,5,1|2|5,0.75

``path`` are the names of its nodes, joined by ``|``; ``share`` is the part of the demand that it
carries.  A second table ``case,seconds`` may say how long each case took, by the program's own
clock.

An allocation is valid if all paths lead from source to target over links that work, shares are at
least 0 and sum up to at most 1; under total_flow no link may carry more than its capacity, under
max_link_utilisation all demand must be carried; unsplittable demands have one path each.  A
tolerance of 1e-6, relative, is granted.

The score of a case is value / bound under total_flow and bound / value under max_link_utilisation,
at most 1, and 0 for a case that is missing or not valid.  Programs are ranked by the mean over the
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
from teal.evaluation.bench.problems import TRACKS, BenchSet, Case
from teal.network import Topology

# Relative tolerance of capacities and shares.
_TOLERANCE = 1e-6
HEADER = ("case", "source", "target", "path", "share")

Paths = dict[tuple[int, int], list[tuple[list[int], float]]]
"""Links and share of every path, by source and target."""


@dataclasses.dataclass(frozen=True)
class Score:
    """A program on a case.

    Attributes:
        program: its name.
        case: name of the case.
        track: track of the case.
        score: from 0 to 1.
        value: Gbit/s, or the largest utilisation; NaN if it is not valid.
        bound: bound of the case.
        seconds: by the program's own clock; NaN if it did not say.
        fault: why it is not valid; ``""`` if it is.
        proved_gap: gap to the optimum over all paths that a proof of the value shows; NaN without a
            proof.
        proof: folder of the proof, or why there is none; ``""`` where none was asked for.
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
    """The paths and shares of each case.

    Raises:
        InputError: another table, an unknown case, node or link, or a share that is no number.
    """
    cases = {case.name: case for case in bench.cases}
    links = {name: _links(bench, name) for name in bench.networks}
    nodes = {name: topology.node_index() for name, topology in bench.networks.items()}
    path_sets: dict[str, Paths] = {}
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
                    raise InputError(str(path), where, "a case of the set", repr(row["case"]))
                # Nodes, links and share of the path.
                names = row["path"].split("|")
                try:
                    ends = nodes[case.network][row["source"]], nodes[case.network][row["target"]]
                    hops = [links[case.network][pair] for pair in itertools.pairwise(names)]
                    share = float(row["share"])
                except (KeyError, ValueError) as error:
                    raise InputError(
                        str(path), where, "nodes and links of the network, and a share", error
                    ) from None
                if names[0] != row["source"] or names[-1] != row["target"]:
                    raise InputError(str(path), where, "a path from source to target", row["path"])
                path_sets.setdefault(case.name, {}).setdefault(ends, []).append((hops, share))
    except OSError as error:
        raise InputError(
            str(path), "", "a table of " + ",".join(HEADER), error.strerror or error
        ) from None
    return path_sets


def _links(bench: BenchSet, name: str) -> dict[tuple[str, str], int]:
    topology = bench.networks[name]
    names = topology.node_names
    return {
        (names[s], names[t]): link
        for link, (s, t) in enumerate(zip(topology.link_source, topology.link_target, strict=True))
    }


def read_seconds(path: Path) -> dict[str, float]:
    """Seconds of each case, of a table ``case,seconds``; {} if there is none."""
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8") as stream:
        try:
            return {row["case"]: float(row["seconds"]) for row in csv.DictReader(stream)}
        except (KeyError, ValueError) as error:
            raise InputError(str(path), "", "case,seconds", str(error)) from None


def rank(
    bench: BenchSet,
    programs: Mapping[str, Mapping[str, Paths]],
    seconds: Mapping[str, Mapping[str, float]],
) -> list[Score]:
    """The score of every program on every case, in their order.

    Args:
        bench: the set.
        programs: results by name of the program, as in :func:`read_results`.
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
    """A program on a case; ``paths`` None if it gave none."""
    value, fault = (math.nan, "no result") if paths is None else _value(bench, case, paths)
    score = 0.0
    if not fault:
        ratio = (
            value / case.bound
            if case.objective == "total_flow"
            else case.bound / max(value, 1e-300)
        )
        score = min(1.0, ratio)
    return Score(program, case.name, case.track, score, value, case.bound, seconds, fault)


def _value(bench: BenchSet, case: Case, paths: Paths) -> tuple[float, str]:
    """Return the value of an allocation, NaN for an invalid one, and its fault, "" for a valid
    one.
    """
    topology = bench.network_of(case)
    traffic = bench.traffic[case.network]
    demand = {
        (int(s), int(t)): rate
        for (s, t), rate in zip(traffic.pairs, traffic.read([case.matrix])[0], strict=True)
    }
    # Check the shares of each demand, and add up loads and carried demand.
    load = np.zeros(topology.num_links)
    carried = 0.0
    for ends, demand_paths in paths.items():
        rate = demand.get(ends, 0.0)
        total_share, fault = _check_shares(topology, case, ends, demand_paths)
        if fault:
            return math.nan, fault
        for links, share in demand_paths:
            np.add.at(load, links, max(share, 0.0) * rate)
        carried += rate * min(total_share, 1.0)
    # Check the capacities, or that all demand is carried.
    live = topology.capacity > 0
    utilisation = float((load[live] / topology.capacity[live]).max(initial=0.0))
    if case.objective == "total_flow":
        if utilisation > 1 + _TOLERANCE:
            return math.nan, f"a link at {100 * utilisation:.4f}% of its capacity"
        return carried, ""
    total_demand = sum(demand.values())
    if carried < total_demand * (1 - _TOLERANCE):
        return math.nan, f"only {100 * carried / total_demand:.4f}% of the demand carried"
    return utilisation, ""


def _check_shares(
    topology: Topology,
    case: Case,
    ends: tuple[int, int],
    paths: Sequence[tuple[list[int], float]],
) -> tuple[float, str]:
    """Return the sum of a demand's shares, and its fault, "" for a valid one.

    Args:
        topology: the network.
        case: the case.
        ends: source and target of the demand.
        paths: links and share of each of its paths.
    """
    names = topology.node_names
    pair = f"from {names[ends[0]]} to {names[ends[1]]}"
    total = 0.0
    for links, share in paths:
        if not (share >= -_TOLERANCE and math.isfinite(share)):
            return total, f"a share of {share:g} {pair}"
        total += share
        if share > 0 and (topology.capacity[links] <= 0).any():
            return total, f"a path {pair} over a link that has failed"
    if total > 1 + _TOLERANCE:
        return total, f"shares that sum up to {total:.6g} {pair}"
    if case.track == "unsplittable" and sum(share > _TOLERANCE for _, share in paths) > 1:
        return total, f"several paths {pair}"
    return total, ""


def means(scores: Sequence[Score]) -> dict[str, dict[str, float]]:
    """Mean score of each program: of each track that the set has, and ``all``, the mean of these;
    the best first.
    """
    table: dict[str, dict[str, float]] = {}
    for program in dict.fromkeys(score.program for score in scores):
        of_track: dict[str, float] = {
            track: float(np.mean(values))
            for track in TRACKS
            if (values := [s.score for s in scores if s.program == program and s.track == track])
        }
        table[program] = {**of_track, "all": float(np.mean(list(of_track.values())))}
    return dict(sorted(table.items(), key=lambda item: -item[1]["all"]))
