"""HiGHS's answers against programs solved by hand: values, duals with their signs, and what has no
solution."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp

from teal.errors import SolverError
from teal.runtime.lp import RangeConstraint, solve_lp, solve_milp

# maximise 3 a + 2 b  s.t.  a + b <= 4,  a + 3 b <= 9,  0 <= a <= 3:  a = 3, b = 1, worth 11
COST, ROWS, RIGHT = np.array([-3.0, -2.0]), np.array([[1.0, 1.0], [1.0, 3.0]]), np.array([4.0, 9.0])


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("by_interior_points", [False, True])
def test_a_program_and_the_worth_of_its_rows(form: type, by_interior_points: bool) -> None:
    high = np.array([3.0, np.inf])
    found = solve_lp(COST, (form(ROWS), RIGHT), high=high, by_interior_points=by_interior_points)
    np.testing.assert_allclose(found.solution("test"), [3, 1], atol=1e-9)
    assert found.value == pytest.approx(-11)
    assert found.bound == found.value
    raised = [
        solve_lp(COST, (ROWS, RIGHT + step), high=high).value - found.value
        for step in np.eye(2) * 0.125
    ]
    np.testing.assert_allclose(found.duals, -np.array(raised) / 0.125, atol=1e-9)
    np.testing.assert_allclose(
        found.duals, [2, 0], atol=1e-9
    )  # one more in the first row is one more b


def test_rows_with_equality_and_a_variable_below_zero() -> None:
    equal = np.array([[1.0, -1.0]]), np.array([1.0])
    found = solve_lp(
        np.array([1.0, 1.0]), (np.array([[-1.0, -1.0]]), np.array([5.0])), equal, low=-np.inf
    )
    np.testing.assert_allclose(found.solution("test"), [-2, -3], atol=1e-9)


def test_a_program_without_a_solution_says_so() -> None:
    found = solve_lp(np.ones(1), (np.array([[1.0]]), np.array([-1.0])))
    assert found.is_infeasible
    assert not found.is_solved
    assert found.value == np.inf
    with pytest.raises(SolverError, match="packing: HiGHS"):
        found.solution("packing")
    unbounded = solve_lp(-np.ones(1), (np.array([[-1.0]]), np.array([0.0])))
    assert not unbounded.is_infeasible
    with pytest.raises(SolverError, match="packing"):
        unbounded.solution("packing")


def test_whole_numbers_their_bound_and_rows_with_two_limits() -> None:
    # minimise 5 a + 4 b  s.t.  7 <= 3 a + 2 b,  a <= 2:  a = 1, b = 2 costs 13 (a = 2, b = 1: 14; a
    # = 7/3: 11.67)
    rows = [
        RangeConstraint(np.array([[3.0, 2.0]]), low=7.0, high=7.5),
        RangeConstraint(sp.csr_array([[1.0, 0.0]]), high=2.0),
    ]
    found = solve_milp(np.array([5.0, 4.0]), rows, np.ones(2), relative_gap=1e-9)
    np.testing.assert_allclose(found.solution("test"), [1, 2], atol=1e-9)
    assert found.value == found.bound == pytest.approx(13)
    nothing = solve_milp(
        np.ones(1),
        [RangeConstraint(np.array([[2.0]]), low=3.0, high=3.5)],
        np.ones(1),
        relative_gap=1e-9,
    )
    assert nothing.is_infeasible
    assert nothing.x is None


def test_what_a_library_prints_while_it_solves_stays_out_of_standard_output() -> None:
    code = (
        "import ctypes; from teal.runtime.lp import _silence_stdout\n"
        "print('before')\n"
        "with _silence_stdout():\n    ctypes.CDLL(None).puts(b'in between')\n"
        "print('after')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "before\nafter\n"
