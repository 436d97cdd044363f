"""Priority classes: time and gaps of three classes beside one, and what the residual form costs.

    python benchmarks/priority.py TOPOLOGY LOAD [GAP]

Classes gold, silver, bronze have a tenth, three tenths and six tenths of every demand.
"""

from __future__ import annotations

import sys
from functools import partial

from timing import median_s

import teal
from teal.problem import Assessment

_SHARES = {"gold": 0.1, "silver": 0.3, "bronze": 0.6}
_REPEATS = 5


def _line(name: str, seconds: float, assessment: Assessment) -> str:
    assert assessment.classes is not None
    parts = [
        f"{100 * line.value / line.demand:.2f}% (gap {100 * line.gap:.2f}%)"
        for line in assessment.classes.lines(0)
    ]
    return f"| {name} | {' | '.join(parts)} | {seconds:.3g} s |"


def main(topology_name: str, load: str, gap: str = "0.01") -> None:
    """Print the table of one network."""
    topology = teal.load_topology(topology_name)
    traffic = teal.load_traffic(f"gravity:seed=0,load={load},count=1", topology)
    paths = teal.compute_paths(topology, traffic.pairs)
    demand = traffic.read([0])
    line = teal.Problem.create(topology, paths, teal.Objective(), demand)
    three = teal.priority_problem(
        topology, paths, {name: share * demand for name, share in _SHARES.items()}
    )
    print(f"{topology.name}, load {load}, {paths.num_demands:,} pairs, gap {gap}")
    print("| | gold | silver | bronze | time |\n|---|---|---|---|---|")
    print(
        f"| one class | | | | {median_s(lambda: teal.solve(line, gap=float(gap)), _REPEATS):.3g} s |"
    )
    for name in (f"pdhg:gap={gap}", f"pdhg:gap={gap},form=residual"):
        scheme = teal.make_scheme(name)
        allocation = scheme.solve(three)
        seconds = median_s(partial(scheme.solve, three), _REPEATS)
        print(_line(f"`{name}`", seconds, teal.assess(three, allocation)))
    if paths.num_demands < 2000:
        allocation = teal.make_scheme("lp-all").solve(three)
        print(_line("`lp-all`", allocation.solve_s[0], teal.assess(three, allocation)))


if __name__ == "__main__":
    main(*sys.argv[1:])
