"""The measures of wording, on a file of which each is known."""

from __future__ import annotations

from pathlib import Path

from tests.wording import measures

TEXT = """
def largest(found, rates):
    # Comment of a line
    first, last = rates[0], rates[-1]
    sizes = [
        1,
    ]  # behind a bracket
    # after a statement that ends with a bracket
    note = (
        "at most "
        "five words of a text"
    )
    other = (
        "a piece of several words and then "
        "two more"
    )
    return found, first, last, sizes, note, other
"""


def test_each_measure_counts_what_it_says() -> None:
    counted = measures({Path("a.py"): TEXT})
    assert counted["names of one plain word"] == 2, "found, other"
    assert counted["names of one plain word in public signatures"] == 1, "found"
    assert counted["comments behind closing brackets"] == 1
    assert counted["strings cut in pieces"] == 1, "the last piece may be short"
    assert counted["functions over 40 lines of code"] == 0
    lines = TEXT.count("\n")
    assert counted["full-line comments in a thousand lines"] == 2000 / lines
    assert counted["parallel assignments in a thousand lines"] == 1000 / lines
