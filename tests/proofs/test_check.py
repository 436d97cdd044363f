"""The checker against a second evaluator in fractions, on true proofs and on proofs with faults."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
from pathlib import Path

import pytest

from teal.proofs import check
from teal.proofs.write import CHECKER, GROUPS, MATRIX, NETWORK, PROOF
from tests.proofs.cases import CASES, Case, write_case
from tests.proofs.exact import is_true
from tests.proofs.mutations import REMOVED_CHECKS, checker_without, mutated

_FAULTS = 60  # in the proof of each case


def _files(folder: Path) -> list[Path]:
    names = [NETWORK, MATRIX, PROOF, *([GROUPS] if (folder / GROUPS).exists() else [])]
    return [folder / name for name in names]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_fault_is_accepted_that_the_second_evaluator_finds(case: Case, tmp_path: Path) -> None:
    write_case(case, tmp_path, seed=3)
    files = _files(tmp_path)
    assert is_true(*files)
    text, pick, differ = files[2].read_text(encoding="utf-8"), random.Random(0), 0
    for _ in range(_FAULTS):
        fault = mutated(text, pick)
        files[2].write_text(fault, encoding="utf-8", newline="\n")
        try:
            check.check(*map(str, files))
        except ValueError:
            differ += 1
        else:
            assert is_true(*files), fault
    assert differ > _FAULTS / 4


@pytest.mark.parametrize("removed", REMOVED_CHECKS)
def test_every_check_is_needed(removed: str, tmp_path: Path) -> None:
    """Without it some file is accepted that is wrong."""
    checker, pick = checker_without(removed), random.Random(1)
    for number, case in enumerate(CASES):
        folder = tmp_path / str(number)
        write_case(case, folder, seed=3)
        files = _files(folder)
        text = files[2].read_text(encoding="utf-8")
        for _ in range(150):
            files[2].write_text(mutated(text, pick), encoding="utf-8", newline="\n")
            try:
                checker.check(*map(str, files))
            except Exception:
                continue
            if not is_true(*files):
                return
    pytest.fail(f"nothing needs the check {removed}")


def test_the_checker_is_one_short_file_that_needs_nothing(tmp_path: Path) -> None:
    sentences = write_case(CASES[0], tmp_path, seed=5)
    command = [sys.executable, "-I", "-S", CHECKER, NETWORK, MATRIX, PROOF]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == sentences
    assert len(Path(check.__file__).read_text(encoding="utf-8").splitlines()) <= 200
    (tmp_path / MATRIX).write_text((tmp_path / MATRIX).read_text(encoding="utf-8") + "n0,n1,1\n", encoding="utf-8")
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert refused.stderr.startswith("NOT PROVED: the proof is not of these files")


def test_costs_of_links_are_those_of_the_value_alone(tmp_path: Path) -> None:
    """The flow of a class has no costs: 2 Gbit/s fit, so that a bound of 0 is wrong, whatever a link costs."""
    (tmp_path / NETWORK).write_text("source,target,capacity,cost\na,b,3,5\n")
    (tmp_path / MATRIX).write_text("source,target,rate,class\na,b,2,gold\n")
    hashes = [hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in (NETWORK, MATRIX)]
    listing = hashlib.sha256(b"0 0\n").hexdigest()
    head = ["teal-proof 1", f"network {hashes[0]}", f"matrix {hashes[1]}", f"paths listed {listing}"]
    files = [str(tmp_path / name) for name in (NETWORK, MATRIX, PROOF)]
    for bound, is_proved in ((0, False), (2 * 2**120, True)):
        (tmp_path / PROOF).write_text("\n".join([*head, f"program class gold 0 {bound}", "flows", "0 0:0", "end", ""]))
        if is_proved:
            assert "class gold: the optimum is from 0.000000000 to 2.000000000" in check.check(*files)[0]
        else:
            with pytest.raises(ValueError, match="no such bound"):
                check.check(*files)


def test_a_network_solved_by_hand(tmp_path: Path) -> None:
    """Two demands over one link of 3 Gbit/s: 2 of 2 and 1 of 4 Gbit/s are optimal at the price 1 of the link."""
    (tmp_path / NETWORK).write_text("source,target,capacity\na,b,3\nb,a,0.1\n")
    (tmp_path / MATRIX).write_text("source,target,rate\na,b,2\na,b,4\n")

    def proof(first: float, second: float, value: float, bound: float, price: float = 1) -> str:
        one, claim = 2**60, 2**120
        hashes = [hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in (NETWORK, MATRIX)]
        listing = hashlib.sha256(b"0 0\n1 0\n").hexdigest()
        lines = ["teal-proof 1", f"network {hashes[0]}", f"matrix {hashes[1]}", f"paths listed {listing}"]
        lines += [f"program value - {int(value * claim)} {int(bound * claim)}", f"prices 0:{int(price * one)}"]
        lines += ["flows", f"0 {int(first * one)}:0", f"1 {int(second * one)}:0", "end", ""]
        (tmp_path / PROOF).write_text("\n".join(lines))
        return str(check.check(*(str(tmp_path / name) for name in (NETWORK, MATRIX, PROOF))))

    assert "value: the optimum is from 3.000000000 to 3.000000000, gap 0.000000%" in proof(2, 1, 3, 3)
    for arguments, reason in (
        ((2, 1.5, 3, 3), "link 0, a to b: 3.5 of 3.0 Gbit/s"),
        ((2.5, 0.5, 3, 3), "demand 0 from a to b exceeds its rate"),
        ((2, 0.5, 3, 3), "the flows do not reach the value"),
        ((2, 1, 3, 2.5), "the prices prove no such bound"),
        ((2, 1, 3, 3, 0.5), "the prices prove no such bound"),
    ):
        with pytest.raises(ValueError, match=reason):
            proof(*arguments)
