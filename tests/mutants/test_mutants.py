"""The list of mutants: each text occurs once in its file, and its test exists.  Running them takes
too long for CI."""

from __future__ import annotations

import ast

import pytest

from tests.mutants.__main__ import ROOT, load


def test_there_are_at_least_120_mutants_and_no_two_are_equal() -> None:
    mutants = load()
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in mutants}) == len(mutants) >= 120


@pytest.mark.slow
def test_every_mutant_can_be_put_into_its_file_and_has_a_test() -> None:
    for mutant in load():
        text = (ROOT / mutant.file).read_text()
        assert text.count(mutant.old) == 1, (
            f"{mutant.file}: {mutant.fault}: its text is not there once: change the entry"
        )
        ast.parse(text.replace(mutant.old, mutant.new))
        for test in mutant.test.split():
            file, _, name = test.partition("::")
            assert f"def {name.partition('[')[0]}" in (ROOT / file).read_text(), (
                f"there is no {test}"
            )
