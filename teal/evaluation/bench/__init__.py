"""A frozen set of problems with certified optima, and results of any program, validated and ranked.

- :mod:`problems`: the set: networks, matrices, cases, how they are made, written and read.
- :mod:`runs`: schemes of Teal on the set.
- :mod:`ranking`: results as files, checked by arithmetic of their own, and scores.
"""

from teal.evaluation.bench.problems import BenchSet, Case, make_set, read_set, write_set
from teal.evaluation.bench.ranking import Score, rank, read_results
from teal.evaluation.bench.runs import run_scheme, write_results

__all__ = [
    "BenchSet",
    "Case",
    "Score",
    "make_set",
    "rank",
    "read_results",
    "read_set",
    "run_scheme",
    "write_results",
    "write_set",
]
