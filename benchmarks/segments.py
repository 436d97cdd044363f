"""Measure two-segment routing on Repetita's instances: time to certified gaps, smallest number of
policies, and routing with one segment list per demand.

    python benchmarks/segments.py FOLDER [--match TEXT] [--gap 0.01 --gap 0.001] [--policies] [--out FILE.csv]

FOLDER holds pairs of NAME.graph and NAME*.demands, from https://github.com/svissicchio/Repetita.
For each: utilisation of ECMP, of two-segment routing with its bound, and seconds to each gap (the
second run, without compilation).  With --policies also the smallest number of policies at a
utilisation of 1% above the optimum, with its bound, and the utilisation with one list per demand.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path

import numpy as np

from teal.formats import load_topology, load_traffic
from teal.network.ecmp import EcmpDag
from teal.runtime.interruptible import Deadline
from teal_ip.segments.columns import finish
from teal_ip.segments.one_list import one_list
from teal_ip.segments.problem import SegmentProblem
from teal_ip.segments.search import solve
from teal_ip.segments.static_lists import fewest_policies

_SECONDS = 60.0  # time limit of each search


def main() -> None:
    """Measure every pair of a graph and a file of demands; print the rows and write
    them to --out.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--match", default="")
    parser.add_argument("--gap", type=float, action="append")
    parser.add_argument("--policies", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    # A row for each file of demands of each graph.
    rows = []
    for graph in sorted(
        entry for entry in options.folder.glob("*.graph") if options.match in entry.name
    ):
        topology = load_topology(str(graph))
        metric = np.ones(topology.num_links) if topology.metric is None else topology.metric
        dag = EcmpDag.of(topology, metric)
        for file in sorted(options.folder.glob(f"{graph.stem}*.demands")):
            traffic = load_traffic(str(file), topology)
            row = _measure(
                dag,
                traffic.pairs,
                traffic.read([0])[0],
                options.gap or [0.01, 0.001],
                options.policies,
            )
            rows.append({"instance": file.stem, **row})
            print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    if options.out and rows:
        with options.out.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


def _measure(dag, pairs, demand, gaps, policies):  # type: ignore[no-untyped-def]
    """Return the row of an instance, by column.

    Args:
        dag: shortest paths of the network.
        pairs: source and target of each demand, (D, 2) node indices.
        demand: rate of each demand, (D,) Gbit/s.
        gaps: relative gaps to reach, the widest first.
        policies: whether to search for few policies, and for one list per demand.
    """
    problem = SegmentProblem.of(dag, pairs, demand, minimises_utilisation=True)
    # ECMP: a midpoint at the target stands for the shortest paths alone.
    target_midpoints = np.ascontiguousarray(problem.target[:, None])
    ecmp = problem.utilisation(problem.loads(target_midpoints, np.ones(target_midpoints.shape)))
    row = {"demands": len(problem.demand), "ecmp": f"{ecmp:.4f}"}
    # Two-segment routing to each gap, twice; the second run is timed, without compilation.
    result = solve(problem, 1.0)
    seconds = 0.0
    for gap in gaps:
        for _ in range(2):
            begin = time.perf_counter()
            result = solve(problem, gap, Deadline.after(_SECONDS))
            if result.stopped_by == "stalled":
                result = finish(problem, result, gap, Deadline.after(_SECONDS))
            seconds = time.perf_counter() - begin
        row[f"s to {100 * gap:g}%"] = f"{seconds:.3f}" if result.gap <= gap else f"> {seconds:.1f}"
        row["value"] = f"{result.value:.4f}"
        row["gap"] = f"{100 * result.gap:.3f}%"
    if policies:
        # The smallest number of policies at 1% above the optimum.
        few = fewest_policies(problem, result, result.value * 1.01, Deadline.after(_SECONDS))
        row |= {
            "policies at 1%": few.policies,
            "at least": few.bound,
            "policies s": f"{few.solve_s:.2f}",
        }
        # One list per demand: the better one of two starting points.
        near_optimal_policies = fewest_policies(
            problem, result, result.value * 1.001, Deadline.after(_SECONDS)
        )
        starts = [
            (result.mid, result.share),
            (near_optimal_policies.mid, near_optimal_policies.share),
        ]
        lists = [one_list(problem, *start, Deadline.after(_SECONDS)) for start in starts]
        best = min(lists, key=lambda entry: entry.utilisation)
        row |= {
            "one list": f"{best.utilisation:.4f}",
            "one list s": f"{sum(entry.solve_s for entry in lists):.2f}",
        }
    return row


if __name__ == "__main__":
    main()
