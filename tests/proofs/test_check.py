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
from tests.proofs.truth import Truth

_FAULTS = 60  # in the proof of each case


def _files(folder: Path) -> list[Path]:
    names = [NETWORK, MATRIX, PROOF, *([GROUPS] if (folder / GROUPS).exists() else [])]
    return [folder / name for name in names]


@pytest.mark.slow
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
            sentences = check.check(*map(str, files))
        except ValueError:
            differ += 1
        else:
            assert is_true(*files), fault
            truth = Truth(*files)
            assert all(
                truth.holds(sentence, number) for number, sentence in enumerate(sentences)
            ), fault
    assert differ > _FAULTS / 4


@pytest.mark.slow
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


def test_the_checker_is_one_file_that_needs_nothing(tmp_path: Path) -> None:
    sentences = write_case(CASES[0], tmp_path, seed=5)
    command = [sys.executable, "-I", "-S", CHECKER, NETWORK, MATRIX, PROOF]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == sentences
    (tmp_path / MATRIX).write_text(
        (tmp_path / MATRIX).read_text(encoding="utf-8") + "n0,n1,1\n", encoding="utf-8"
    )
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert refused.stderr.startswith("NOT PROVED: the proof is not of these files")


def test_costs_of_links_are_those_of_the_value_alone(tmp_path: Path) -> None:
    """The flow of a class has no costs: 2 Gbit/s fit, so that a bound of 0 is wrong, whatever a
    link costs."""
    (tmp_path / NETWORK).write_text("source,target,capacity,cost\na,b,3,5\n")
    (tmp_path / MATRIX).write_text("source,target,rate,class\na,b,2,gold\n")
    hashes = [
        hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in (NETWORK, MATRIX)
    ]
    listing = hashlib.sha256(b"0 0\n").hexdigest()
    head = [
        "teal-proof 1",
        f"network {hashes[0]}",
        f"matrix {hashes[1]}",
        f"paths listed {listing}",
    ]
    files = [str(tmp_path / name) for name in (NETWORK, MATRIX, PROOF)]
    for bound, is_proved in ((0, False), (2 * 2**120, True)):
        (tmp_path / PROOF).write_text(
            "\n".join([*head, f"program class gold 0 {bound}", "flows", "0 0:0", "end", ""])
        )
        if is_proved:
            assert (
                "class gold: the optimum is from 0.000000000 to 2.000000000"
                in check.check(*files)[0]
            )
        else:
            with pytest.raises(ValueError, match="the claimed bound"):
                check.check(*files)


def test_a_network_solved_by_hand(tmp_path: Path) -> None:
    """Two demands over one link of 3 Gbit/s: 2 of 2 and 1 of 4 Gbit/s are optimal at the price 1 of
    the link."""
    (tmp_path / NETWORK).write_text("source,target,capacity\na,b,3\nb,a,0.1\n")
    (tmp_path / MATRIX).write_text("source,target,rate\na,b,2\na,b,4\n")

    def proof(first: float, second: float, value: float, bound: float, price: float = 1) -> str:
        one, claim = 2**60, 2**120
        hashes = [
            hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in (NETWORK, MATRIX)
        ]
        listing = hashlib.sha256(b"0 0\n1 0\n").hexdigest()
        lines = [
            "teal-proof 1",
            f"network {hashes[0]}",
            f"matrix {hashes[1]}",
            f"paths listed {listing}",
        ]
        lines += [
            f"program value - {int(value * claim)} {int(bound * claim)}",
            f"prices 0:{int(price * one)}",
        ]
        lines += ["flows", f"0 {int(first * one)}:0", f"1 {int(second * one)}:0", "end", ""]
        (tmp_path / PROOF).write_text("\n".join(lines))
        return str(check.check(*(str(tmp_path / name) for name in (NETWORK, MATRIX, PROOF))))

    assert "value: the optimum is from 3.000000000 to 3.000000000, gap 0.000000%" in proof(
        2, 1, 3, 3
    )
    for arguments, reason in (
        ((2, 1.5, 3, 3), "link 0, a to b: 3.5 of 3.0 Gbit/s"),
        ((2.5, 0.5, 3, 3), "demand 0 from a to b exceeds its rate"),
        ((2, 0.5, 3, 3), "the flows do not reach the claimed value"),
        ((2, 1, 3, 2.5), "the prices do not prove the claimed bound"),
        ((2, 1, 3, 3, 0.5), "the prices do not prove the claimed bound"),
    ):
        with pytest.raises(ValueError, match=reason):
            proof(*arguments)


_SQUARE = 2**120


@pytest.mark.parametrize(
    ("program", "flow", "words"),
    [
        # One link of 10 Gbit/s and a demand of 8: the optimum is 8, a utilisation of 0.8, and a
        # share of 1.
        (f"value - {_SQUARE} {_SQUARE}\nmultiplier  {7 * 2**60}", 1, "was not expected"),
        (f"utilisation - {50 * _SQUARE} {50 * _SQUARE}", 8, "do not prove the claimed bound"),
        (f"concurrent - {_SQUARE // 8} {_SQUARE // 8}", 1, "do not prove the claimed bound"),
        (f"concurrent - {7 * _SQUARE} {_SQUARE}", 8, "a smaller share|contradicts the bound"),
        (f"value -\rproved:\xa0true 0 {8 * _SQUARE}", 1, "is not a program"),
        (f"class platinum 0 {10 * _SQUARE}", 1, "no demand has such a class"),
        (f"class gold {_SQUARE} {8 * _SQUARE}\nmultiplier gold 1", 1, "was not expected"),
        (
            f"value - {9 * _SQUARE} {8 * _SQUARE}",
            8,
            "do not reach|contradicts the bound|the claimed bound",
        ),
        ("level 1e-999 0 0", 1, "do not prove the claimed bound"),
    ],
)
def test_a_false_statement_is_refused(program: str, flow: int, words: str, tmp_path: Path) -> None:
    files = _by_hand(tmp_path, "a,b,8,gold", program, f"0 {flow * 2**60}:0")
    with pytest.raises(ValueError, match=words):
        check.check(*files)


def test_demands_without_a_path_are_counted(tmp_path: Path) -> None:
    files = _by_hand(
        tmp_path,
        "a,b,8,gold\na,b,9,gold\na,b,0,gold",
        f"value - 0 {10 * _SQUARE}\nprices 0:{2**60}",
        f"0 {2**60}:0\n1\n2",
    )
    assert check.check(*files)[0].endswith(
        "from 0.000000000 to 10.000000000, gap 100.000000%, 1 demands without a path"
    )


def test_what_is_printed_is_rounded_outwards(tmp_path: Path) -> None:
    """A claim of 1 - 2^-120 and of 8 + 2^-120 Gbit/s, whose gap is 87.5% and a little more."""
    files = _by_hand(
        tmp_path, "a,b,8,gold", f"value - {_SQUARE - 1} {8 * _SQUARE + 1}", f"0 {2**60}:0"
    )
    assert "from 0.999999999 to 8.000000001, gap 87.500001%" in check.check(*files)[0]


@pytest.mark.parametrize(
    ("network", "matrix"),
    [
        ("a,b", "a,b,8,gold"),
        ("a,b,10", "a,b,8"),
        ("a,b,10,9", "a,b,8,gold"),
        ("a,b,nan", "a,b,8,gold"),
        ("a,b,10", "a,b,-8,gold"),
    ],
)
def test_damaged_tables_are_refused_by_a_line(network: str, matrix: str, tmp_path: Path) -> None:
    files = _by_hand(
        tmp_path, matrix, f"value - 0 {10 * _SQUARE}\nprices 0:{2**60}", "0 0:0", network
    )
    done = subprocess.run(
        [sys.executable, check.__file__, *files], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("NOT PROVED: ")
    assert "Traceback" not in done.stderr
    usage = subprocess.run(
        [sys.executable, check.__file__], capture_output=True, text=True, check=False
    )
    assert usage.returncode == 1


_SMALLEST = "1e-30"  # rounded down 0 units of 2^-60, and rounded up 1


@pytest.mark.parametrize(
    ("network", "matrix", "true", "false", "flow"),
    [
        # Network, demand, a claim that holds, one that is better by rounding alone, and the flow of
        # either.
        ("a,b,8,0", f"a,b,{_SMALLEST},1", f"value - 0 {2**60}", "value - 0 0", 0),
        ("a,b,8,0", f"a,b,8,{_SMALLEST}", f"value - 0 {2**63}", "value - 0 0", 0),
        ("a,b,8,0", f"a,b,8,{_SMALLEST}", f"value - 0 {2**63}", f"value - 1 {2**63}", 8),
        (
            f"a,b,{_SMALLEST},0",
            "a,b,8,1",
            f"value - 0 {2**60}\nprices 0:{2**60}",
            f"value - 0 0\nprices 0:{2**60}",
            0,
        ),
        (
            f"a,b,8,{_SMALLEST}",
            "a,b,1,1",
            f"value - 0 {_SQUARE}",
            f"value - 0 {_SQUARE - 2**60}",
            0,
        ),
        (
            f"a,b,8,{_SMALLEST}",
            "a,b,8,1",
            f"value - {8 * (_SQUARE - 2**60)} {8 * _SQUARE}",
            f"value - {8 * (_SQUARE - 2**60) + 1} {8 * _SQUARE}",
            8,
        ),
        (
            "a,b,8,0",
            f"a,b,{_SMALLEST},1",
            f"utilisation - {2**57} 0\nprices 0:{2**60}",
            f"utilisation - {2**57} {2**57}\nprices 0:{2**60}",
            2**-60,
        ),
    ],
)
def test_every_number_is_rounded_against_the_claim(
    network: str, matrix: str, true: str, false: str, flow: float, tmp_path: Path
) -> None:
    flows = f"0 {int(flow * 2**60)}:0"
    columns = "source,target,capacity,cost", "source,target,rate,weight"
    assert check.check(*_by_hand(tmp_path, matrix, true, flows, network, columns))
    with pytest.raises(
        ValueError, match=r"do not reach the claimed value|do not prove the claimed bound"
    ):
        check.check(*_by_hand(tmp_path, matrix, false, flows, network, columns))


def test_flows_keep_capacities_and_rates_to_the_last_unit(tmp_path: Path) -> None:
    """0.1 Gbit/s are not an integral number of units: as many as fit below are accepted, and not one
    more."""
    fits = 2**60 // 10
    for network, matrix, words in (
        ("a,b,0.1", "a,b,1,", "link 0, a to b"),
        ("a,b,1", "a,b,0.1,", "exceeds its rate"),
    ):
        assert check.check(
            *_by_hand(tmp_path, matrix, f"value - 0 {_SQUARE}", f"0 {fits}:0", network)
        )
        with pytest.raises(ValueError, match=words):
            check.check(
                *_by_hand(tmp_path, matrix, f"value - 0 {_SQUARE}", f"0 {fits + 1}:0", network)
            )


def test_a_group_takes_all_paths_of_a_demand_that_it_crosses(tmp_path: Path) -> None:
    """3 Gbit/s over three parallel links of which two fail together: 1 is left, and no promise of 2
    holds."""
    groups = tmp_path / GROUPS
    groups.write_text("group,link\nduct,0\nduct,1\n")
    flows = f"0 {2**60}:0 {2**60}:1 {2**60}:2"
    for value, is_proved in ((1, True), (2, False)):
        program = f"promise - {value * _SQUARE} {3 * _SQUARE}"
        files = [*_by_hand(tmp_path, "a,b,3,", program, flows, "a,b,1\na,b,1\na,b,1"), str(groups)]
        if is_proved:
            assert (
                "promise: the optimum is from 1.000000000 to 3.000000000" in check.check(*files)[0]
            )
        else:
            with pytest.raises(ValueError, match="the flows do not reach the claimed value"):
                check.check(*files)


def _by_hand(
    folder: Path,
    matrix: str,
    program: str,
    flows: str,
    network: str = "a,b,10",
    columns: tuple[str, str] = ("source,target,capacity", "source,target,rate,class"),
) -> list[str]:
    """Files about links from a to b, with the hashes that they need."""
    (folder / NETWORK).write_text(f"{columns[0]}\n{network}\n")
    (folder / MATRIX).write_text(f"{columns[1]}\n{matrix}\n")
    hashes = [
        hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in (NETWORK, MATRIX)
    ]
    listing = "".join(
        " ".join([words[0], *(word.rpartition(":")[2] for word in words[1:])]) + "\n"
        for words in map(str.split, flows.split("\n"))
    )
    listed = f"paths listed {hashlib.sha256(listing.encode()).hexdigest()}"
    head = [
        "teal-proof 1",
        f"network {hashes[0]}",
        f"matrix {hashes[1]}",
        listed,
        f"program {program}",
    ]
    (folder / PROOF).write_bytes("\n".join([*head, "flows", flows, "end", ""]).encode())
    return [str(folder / name) for name in (NETWORK, MATRIX, PROOF)]
