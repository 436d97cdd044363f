"""A scheme of your own, compared with the others in the tables and the report of `teal evaluate`.

python docs/examples/own_scheme.py --topology b4 --traffic gravity:count=20,load=4 \
    --scheme even --scheme lp-all --failures 1,2 --out runs/mine
"""

import sys
import time

import teal
from teal.command import main


class Even:
    """Each demand in equal parts over its live paths, projected to a feasible allocation."""

    def solve(self, problem: teal.Problem) -> teal.Allocation:
        """Splits (B, D, K) for all B matrices at once; without prices, the bound is the trivial one."""
        begin = time.perf_counter()
        splits = teal.project(problem, problem.even_splits, refill=0)
        return teal.Allocation.of_batch(splits, None, time.perf_counter() - begin)


teal.register_scheme("even", lambda spec, model: Even())

if __name__ == "__main__":
    sys.exit(main(["evaluate", *sys.argv[1:]]))
