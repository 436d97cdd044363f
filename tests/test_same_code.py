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

__all__ = ["longest"]

def longest(wanted, room):
    """The longest."""
    lower, upper = np.min(wanted), np.max(wanted)  # both ends
    if lower < 0:
        raise ValueError(f"it is below {lower} " "and more")
    return helper(getattr(room, "wanted"), wanted=upper)
'''


def _renamed(new: str) -> frozenset[tuple[str, str]] | None:
    """Renamed names of the example, where the project is the new source alone."""
    defined = frozenset(same_code.names_defined(new))
    renamed: frozenset[tuple[str, str]] | None = same_code.renamed_names(OLD, new, defined)
    return renamed


@pytest.mark.parametrize(
    "change",
    [
        [('"""What it does."""', '"""Return it."""\n# Comment')],
        [("from teal.old import helper", "from teal.new.place import helper")],
        [("longest", "max_step"), ("wanted", "target"), ("room", "slack")],
        [('__all__ = ["longest"]', '__all__ = ["helper", "longest"]')],
        [("it is below", "expected at least 0, read")],
        [('f"it is below {lower} " "and more"', '"a bound", f"{lower}"')],
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
    assert _renamed(new) is not None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("lower < 0", "lower <= 0"),
        ("lower < 0", "lower < 1"),
        ("lower < 0", "upper < 0"),
        ("import numpy as np", "import torch as np"),
        ("np.max", "np.median"),  # a library's function, which the project does not define
        ('getattr(room, "wanted")', 'getattr(room, "longest")'),  # the name stays ``wanted``
        ("lower, upper = np.min(wanted), np.max(wanted)", "upper, lower = 1, np.max(wanted)"),
        ("return helper(getattr(room", "return helper(getattr(wanted"),  # two parameters as one
        ("def longest(wanted, room):", "def longest(wanted, room=1):"),
    ],
)
def test_another_operation_value_or_library_function_is_a_change(before: str, after: str) -> None:
    assert before in OLD
    new = OLD.replace(before, after)
    assert _renamed(new) is None


def test_parallel_assignments_that_read_a_target_stay_one_step() -> None:
    swap = "a, b = b, a"
    in_turn = "a = b\nb = a"
    assert same_code.renamed_names(swap, in_turn) is None
    assert same_code.renamed_names("a, b = 1, c", "a = 1\nb = c") == set()


def test_a_variable_is_renamed_in_its_function_and_an_attribute_in_its_definition() -> None:
    old = "def f(found):\n    return found\ndef g(found):\n    return found.room\n"
    new = "def f(path):\n    return path\ndef g(link):\n    return link.slack\n"
    expected = {("found", "path"), ("found", "link"), ("room", "slack")}
    assert same_code.renamed_names(old, new) == expected
    # Two attributes that change places are not the same code.
    old = "def f(box):\n    return box.low - box.high - box.low\n"
    assert same_code.renamed_names(old, old.replace("box.low", "box.high")) is None
    assert same_code.renamed_names(old, old.replace("box.low - box", "box.high - box")) is None
    # A free variable of an inner function is that of the outer one.
    old = "def f(a, b):\n    def g():\n        return a\n    return g() - b\n"
    assert same_code.renamed_names(old, old.replace("return a", "return b")) is None
