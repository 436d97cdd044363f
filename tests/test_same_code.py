"""Commits compared by what their code does: what counts as a change, and what does not."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
same_code: Any = importlib.import_module("same_code")

OLD = '''
"""What it does."""
import numpy as np
from teal.old import helper

def longest(wanted, room):
    """The longest."""
    lower, upper = np.min(wanted), np.max(wanted)  # both ends
    if lower < 0:
        raise ValueError(f"below {lower} " "and more")
    return helper(room, wanted=upper)
'''


@pytest.mark.parametrize(
    "change",
    [
        [('"""What it does."""', '"""Return it."""\n# Comment')],
        [("from teal.old import helper", "from teal.new.place import helper")],
        [("longest", "max_step"), ("wanted", "target"), ("room", "slack")],
        [(' "and more"', ' "or so"')],
        [
            (
                "lower, upper = np.min(wanted), np.max(wanted)",
                "lower = np.min(wanted)\n    upper = np.max(wanted)",
            )
        ],
    ],
)
def test_names_docstrings_messages_and_parallel_assignments_are_no_change(
    change: list[tuple[str, str]],
) -> None:
    new = OLD
    for before, after in change:
        assert before in new
        new = new.replace(before, after)
    defined = same_code.names_defined(new)
    assert same_code.is_same_code(OLD, new, same_code.Renaming(frozenset(defined)))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("lower < 0", "lower <= 0"),
        ("lower < 0", "lower < 1"),
        ("lower < 0", "upper < 0"),
        ("import numpy as np", "import torch as np"),
        ("np.max", "np.median"),  # a library's function, which the project does not define
        ("wanted=upper", "room=upper"),  # two old names would become one
        ("lower, upper = np.min(wanted), np.max(wanted)", "upper, lower = 1, np.max(wanted)"),
        ("def longest(wanted, room):", "def longest(wanted, room=1):"),
    ],
)
def test_another_operation_value_or_library_function_is_a_change(before: str, after: str) -> None:
    assert before in OLD
    new = OLD.replace(before, after)
    defined = same_code.names_defined(new)
    assert not same_code.is_same_code(OLD, new, same_code.Renaming(frozenset(defined)))


def test_parallel_assignments_that_read_a_target_stay_one_step() -> None:
    swap = "a, b = b, a"
    in_turn = "a = b\nb = a"
    assert not same_code.is_same_code(swap, in_turn)
    assert same_code.is_same_code("a, b = 1, c", "a = 1\nb = c")


def test_the_renaming_is_told() -> None:
    renaming = same_code.Renaming()
    assert same_code.is_same_code("found = f(wanted)", "result = f(target)", renaming)
    assert renaming.changed == {"found": "result", "wanted": "target"}
