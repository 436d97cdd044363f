"""Shapes in annotations: wrong ones against the checks under test, and none of the checkers outside
tests."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from teal.testing import random_problem


def test_arrays_of_wrong_shapes_are_refused_under_test() -> None:
    jaxtyping = pytest.importorskip(
        "jaxtyping", reason="needs jaxtyping and beartype: pip install '.[dev]'"
    )
    problem = random_problem(0)
    splits = problem.even_splits
    assert problem.value(splits).shape == (3,)
    with pytest.raises(jaxtyping.TypeCheckError, match="B D K"):
        problem.value(splits[0])
    with pytest.raises(jaxtyping.TypeCheckError, match="B E"):
        problem.ops.path_sum(torch.zeros(3))


@pytest.mark.slow
def test_importing_teal_loads_no_checker_of_shapes() -> None:
    code = "import sys, teal; teal.Problem; assert not {'jaxtyping', 'beartype'} & set(sys.modules), 'loaded'"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
