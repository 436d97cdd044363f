"""PDLP on a GPU: MPAX (Lu, Peng and Yang, 2024), a public implementation in JAX, as a scheme.

It solves the path-form LP of :mod:`baselines.pdlp`, scaled in the same way.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import time

import numpy as np
import scipy.sparse as sp

from baselines.pdlp import Pdlp, ScaledProgram, Solved
from teal.errors import SolverError


@dataclasses.dataclass(frozen=True)
class Mpax(Pdlp):
    """MPAX's r2HPDHG, the algorithm of cuPDLPx, on the device that JAX chooses."""

    def check(self) -> None:
        """Raise SolverError if mpax or jax is not installed."""
        if any(importlib.util.find_spec(name) is None for name in ("mpax", "jax")):
            raise SolverError("mpax: mpax or jax is not installed; run pip install mpax jax")

    def run(self, program: ScaledProgram) -> Solved:
        """Solve a linear program twice; return the solution, with the time of the second solve,
        which compiles nothing.
        """
        import jax
        from jax.experimental import sparse
        from mpax import create_lp, r2HPDHG
        from mpax.utils import TerminationStatus

        jax.config.update("jax_enable_x64", True)
        # MPAX's form: minimise c x subject to A x = b, G x >= h and x >= 0.
        count = len(program.cost)
        nothing = sp.csr_array((0, count))
        a_eq = nothing if program.a_eq is None else program.a_eq
        b_eq = np.zeros(0) if program.b_eq is None else program.b_eq
        linear_program = create_lp(
            program.cost,
            sparse.BCSR.from_scipy_sparse(sp.csr_array(a_eq)),
            b_eq,
            sparse.BCSR.from_scipy_sparse(sp.csr_array(-program.a_ub)),
            -program.b_ub,
            np.zeros(count),
            np.full(count, np.inf),
        )
        solver = r2HPDHG(eps_abs=self.accuracy, eps_rel=self.accuracy)
        seconds = 0.0
        for _ in range(2):
            begin = time.perf_counter()
            result = solver.optimize(linear_program)
            jax.block_until_ready(result.primal_solution)
            seconds = time.perf_counter() - begin
        is_solved = int(result.termination_status) == int(TerminationStatus.OPTIMAL)
        dual = np.asarray(result.dual_solution)[len(b_eq) :]
        x = np.asarray(result.primal_solution)
        return Solved(x, dual, "optimal" if is_solved else "failed", seconds)
