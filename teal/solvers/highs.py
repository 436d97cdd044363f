"""HiGHS as an engine: small linear programs on a machine without compiled kernels.

Compiling the kernels takes seconds; HiGHS solves a small program in less time.
"""

from __future__ import annotations

import torch

from teal.problem import Problem
from teal.runtime.interruptible import Steps
from teal.runtime.kernel_cache import is_interpreting
from teal.solvers.certified import certified_result
from teal.solvers.contract import Limits, Start
from teal.solvers.exact import exact_program
from teal.solvers.result import SolveResult, Stop

# Columns of all matrices up to which HiGHS, which cannot pause, replaces kernels that are not
# compiled yet.
_MAX_COLUMNS = 12_000


class Highs:
    """Engine that solves one linear program per matrix by HiGHS."""

    name = "highs"

    def accepts(self, problem: Problem) -> bool:
        """Return whether the program is small, linear and on the CPU, and no kernel is compiled."""
        if not is_interpreting() or problem.ops.device.type != "cpu":
            return False
        return problem.is_linear and problem.batch * int(problem.ops.mask.sum()) <= _MAX_COLUMNS

    def predict_seconds(self, problem: Problem, start: Start, gap: float) -> float:
        """Return 0: for a program that :meth:`accepts` allows, every other engine would have to be
        compiled.
        """
        del problem, start, gap
        return 0.0

    def solve(self, problem: Problem, start: Start, limits: Limits) -> Steps[SolveResult]:
        """Solve each matrix to its optimum; a matrix that the deadline cuts off gets even splits.

        Args:
            problem: B matrices over the columns and rows of a program.
            start: not used.
            limits: target gap and deadline.
        """
        del start
        # Optimal shares of the columns (B, D, K) and row prices (B, rows), matrix by matrix.
        problem64 = problem.to(torch.float64)
        shares = problem64.even_splits.clone()
        prices = torch.zeros_like(problem64.capacity)
        is_cut_off = [True] * problem64.batch
        for row in range(problem64.batch):
            yield
            if limits.deadline.is_over:
                break
            solution = exact_program(problem64.row(row).program, limits.deadline.remaining_s)
            if solution is None:
                break
            shares[row] = solution[0][0]
            prices[row] = solution[1][0]
            is_cut_off[row] = False
        # HiGHS's optimum is feasible within its tolerance only.
        stop_reasons = tuple(Stop.DEADLINE if is_late else Stop.STALLED for is_late in is_cut_off)
        return certified_result(problem64, shares, prices, limits.gap, stop_reasons=stop_reasons)
