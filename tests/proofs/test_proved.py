"""Proofs and allocations with one change each, all changes of some kinds: none is accepted that
claims more than is so.

Changed proofs are judged by the second evaluator and by linear programs, changed allocations by
adding up what the file says, a member that occurs twice in an object twice.
"""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from teal.errors import TealError
from teal.formats.allocations import Demand, write_allocation
from teal.network import compute_paths
from teal.problem import Allocation, Problem
from teal.problem.priority import priority_problem
from teal.proofs import check
from teal.proofs.flows import PathFlows, read_flows, splits_over
from teal.proofs.write import GROUPS, MATRIX, NETWORK, PROOF, write_proof
from teal.solvers.pipeline import solve
from teal.testing import make_topology
from tests.proofs.exact import is_true
from tests.proofs.mutations import Lines
from tests.proofs.truth import Truth

# a and b have two links between them, so that one name has a number; capacities are not what
# demands need.
_TOPOLOGY = make_topology([(0, 1, 2.0), (0, 1, 3.0), (1, 2, 4.0), (0, 2, 1.0)])
_PAIRS = np.array([[0, 1], [0, 2], [1, 2]], dtype=np.int32)
_DEMAND = np.array([[4.0, 3.0, 2.5]])
_Rates = defaultdict[Any, float]  # Gbit/s by what is named
_PATHS = compute_paths(_TOPOLOGY, _PAIRS, num_paths=3, cache=False)


def _problem(kind: str) -> Problem:
    if kind == "class":
        return priority_problem(_TOPOLOGY, _PATHS, {"gold": _DEMAND / 2, "silver": _DEMAND / 2})
    if kind == "promise":
        return _problem("value").with_protection([[0], [2, 3]])
    names = {
        "value": "total_flow",
        "utilisation": "max_link_utilisation",
        "concurrent": "max_concurrent_flow",
        "level": "max_min",
    }
    return Problem.create(_TOPOLOGY, _PATHS, names[kind], _DEMAND)


def _numbers(text: str) -> list[str]:
    """What a number may be changed to."""
    if not text.isdigit():
        return ["0", "-1", "", f"{text}{text}", f"{text}0", "nan", "1e9"]
    value = int(text)
    return [
        *map(str, sorted({0, value - 1, value + 1, value + (value >> 16), 2 * value} - {value})),
        "",
        "\u0661",
    ]


def _changed_lines(lines: list[str]) -> Iterator[list[str]]:
    """Lists of lines with one change: a line, a word or a number that is missing, there twice,
    moved or another one."""
    for at, line in enumerate(lines):
        yield lines[:at] + lines[at + 1 :]
        yield [*lines[:at], line, *lines[at:]]
        yield [*lines[:at], *lines[at : at + 2][::-1], *lines[at + 2 :]]
        words = line.split(" ")
        for place, word in enumerate(words):
            for other in ([], [word, word], [*words[place + 1 : place + 2], word]):
                rest = words[place + 1 + (len(other) == 2 and other[0] != word) :]
                yield [*lines[:at], " ".join([*words[:place], *other, *rest]), *lines[at + 1 :]]
        most = 1 if len(word) == 64 else None  # of the digits of a hash
        for found in itertools.islice(re.finditer(r"\d+", line), most):
            for number in _numbers(found[0]):
                yield [
                    *lines[:at],
                    line[: found.start()] + number + line[found.end() :],
                    *lines[at + 1 :],
                ]


@pytest.mark.parametrize(
    "kind", ["value", "class", "promise", "utilisation", "concurrent", "level"]
)
def test_no_changed_proof_claims_more(kind: str, tmp_path: Path) -> None:
    problem = _problem(kind)
    write_proof(tmp_path, problem, solve(problem, gap=1e-6).allocation)
    files = [
        tmp_path / name for name in (NETWORK, MATRIX, PROOF, GROUPS) if (tmp_path / name).exists()
    ]
    text = files[2].read_text(encoding="utf-8")
    tried = refused = 0
    for head, flows in _changed_parts(text):
        files[2].write_text(_with_hash(head, flows), encoding="utf-8", newline="\n")
        tried += 1
        try:
            sentences = check.check(*map(str, files))
        except ValueError:
            refused += 1
            continue
        assert is_true(*files), files[2].read_text(encoding="utf-8")
        truth = Truth(*files)
        assert all(truth.holds(sentence, number) for number, sentence in enumerate(sentences))
    assert tried > 150
    assert refused > tried / 3


def _changed_parts(text: str) -> Iterator[tuple[list[str], list[str]]]:
    lines = Lines(text)
    yield from ((head, lines.flows) for head in _changed_lines(lines.head))
    yield from ((lines.head, flows) for flows in _changed_lines(lines.flows))


def _with_hash(head: list[str], flows: list[str]) -> str:
    """The proof, with the hash of its list of paths, so that the hash is not what refuses it."""
    listing = "\n".join(
        " ".join([words[0], *(word.partition(":")[2] for word in words[1:] if word[:1] != "@")])
        for words in (line.split(" ") for line in flows)
    )
    hashed = f"paths listed {hashlib.sha256((listing + chr(10)).encode()).hexdigest()}"
    return "\n".join(
        [
            *(hashed if line.startswith("paths ") else line for line in head),
            "flows",
            *flows,
            "end",
            "",
        ]
    )


def _changed_values(value: Any) -> Iterator[Any]:
    """Documents with one change; a :class:`_Members` is an object whose members may occur twice."""
    if isinstance(value, list):
        for at, one in enumerate(value):
            yield type(value)(value[:at] + value[at + 1 :])
            yield type(value)([*value[:at], one, *value[at:]])
            yield type(value)([*value[:at], *value[at : at + 2][::-1], *value[at + 2 :]])
            if not isinstance(value, _Members):
                yield from (
                    [*value[:at], other, *value[at + 1 :]] for other in _changed_values(one)
                )
                continue
            yield from (
                _Members([*value[:at], (one[0], x), *value[at + 1 :]])
                for x in _changed_values(one[1])
            )
            yield _Members([*value[:at], (f"{one[0]}x", one[1]), *value[at + 1 :]])
    elif isinstance(value, float):
        yield from (
            0.0,
            2 * value,
            value + 1e-3,
            -value,
            float("nan"),
            float("inf"),
            str(value),
            10**400,
            True,
        )
    yield from (None, "n1", [], _Members(), 1.0)


class _Members(list[tuple[str, Any]]):
    """The members of an object."""

    def text(self) -> str:
        """As JSON."""
        return "{" + ", ".join(f"{json.dumps(name)}: {_text(value)}" for name, value in self) + "}"

    def all(self, name: str) -> list[Any]:
        """The values of all members of a name."""
        return [value for own, value in self if own == name]


def _text(value: Any) -> str:
    if isinstance(value, _Members):
        return value.text()
    return f"[{', '.join(map(_text, value))}]" if isinstance(value, list) else json.dumps(value)


def _said_by_json(text: str) -> _Rates:
    """Gbit/s by router, target, class and links; what is said twice counts twice."""
    said = _Rates(float)
    document = json.loads(text, object_pairs_hook=_Members)
    for router, demands in itertools.chain(*document.all("routers")):
        for demand in demands:
            for path in itertools.chain(*demand.all("paths")):
                for links, rate in itertools.product(path.all("links"), path.all("rate")):
                    said[router, *demand.all("target"), *(demand.all("class") or [""]), *links] += (
                        float(rate)
                    )
    return said


def _said_by_table(text: str) -> _Rates:
    said = _Rates(float)
    for row in csv.DictReader(text.splitlines()):
        cell = row["links"]
        links = json.loads(cell) if cell.startswith("[") else [_TOPOLOGY.link_names()[int(cell)]]
        said[row["source"], row["target"], row.get("class") or "", *links] += float(row["flow"])
    return said


def _changed_json(text: str) -> Iterator[str]:
    yield from map(_text, _changed_values(json.loads(text, object_pairs_hook=_Members)))


def _changed_table(text: str) -> Iterator[str]:
    rows = list(csv.reader(text.splitlines()))
    for at, row in enumerate(rows):
        yield _as_table([*rows[:at], *rows[at + 1 :]])
        yield _as_table([*rows[:at], row, *rows[at:]])
        yield _as_table([*rows[:at], *rows[at : at + 2][::-1], *rows[at + 2 :]])
        for place, cell in enumerate(row):
            for other in (
                "",
                "n1",
                "2",
                "-1",
                "nan",
                "1e400",
                f"{cell}0",
                f"{cell} ",
                '["n0->n2"]',
                '["n0->n1#2"]',
            ):
                yield _as_table(
                    [*rows[:at], [*row[:place], other, *row[place + 1 :]], *rows[at + 1 :]]
                )


def _as_table(rows: list[list[str]]) -> str:
    return (
        "\n".join(",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in rows)
        + "\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["value", "class"])
@pytest.mark.parametrize(
    ("suffix", "changed", "said_by"),
    [(".json", _changed_json, _said_by_json), (".csv", _changed_table, _said_by_table)],
)
def test_no_changed_allocation_is_proved_beyond_what_it_says(
    kind: str,
    suffix: str,
    changed: Callable[[str], Iterator[str]],
    said_by: Callable[[str], _Rates],
    tmp_path: Path,
) -> None:
    problem, names = _problem(kind), _TOPOLOGY.node_names
    result, file = solve(problem, gap=1e-6), tmp_path / f"x{suffix}"
    demand, classes = problem.demand[0].numpy(), problem.classes
    write_allocation(
        file, _TOPOLOGY, problem.paths, demand, result.splits[0].numpy(), classes=classes
    )
    capacity = dict(zip(_TOPOLOGY.link_names(), _TOPOLOGY.capacity.tolist(), strict=True))
    of_class = (
        [""] * len(demand) if classes is None else [classes.names[c] for c in classes.of_demand]
    )
    ends = [(names[s], names[t]) for s, t in problem.paths.pairs.tolist()]
    most = {
        (*pair, name): rate
        for pair, name, rate in zip(ends, of_class, demand.tolist(), strict=True)
    }
    text, tried, taken, proofs = file.read_text(encoding="utf-8"), 0, 0, dict[str, list[str]]()
    for other in changed(text):
        file.write_text(other, encoding="utf-8")
        tried += 1
        try:
            flows = read_flows(file, _TOPOLOGY)
            if repr(flows) not in proofs:
                proofs[repr(flows)] = _proved(flows, problem, result.allocation, tmp_path)
        except TealError:
            continue
        taken += 1
        said, load, carried = said_by(other), _Rates(float), _Rates(float)
        for (router, target, name, *links), rate in said.items():
            carried[router, target, name] += rate
            for link in links:
                load[link] += rate
        assert all(amount <= capacity[link] * (1 + 2e-6) for link, amount in load.items()), other
        assert all(amount <= most.get(key, 0) * (1 + 2e-6) for key, amount in carried.items()), (
            other
        )
        for sentence in proofs[repr(flows)]:
            name = sentence.partition("class ")[2].partition(" ")[0].rstrip(":")
            claimed = float(sentence.partition("from ")[2].partition(" ")[0])
            assert claimed <= sum(rate for key, rate in carried.items() if key[2] == name) * (
                1 + 1e-9
            ), other
    assert tried > 100
    assert 0 < taken < tried


def _proved(
    flows: dict[Demand, PathFlows], problem: Problem, allocation: Allocation, folder: Path
) -> list[str]:
    demand = problem.demand[0].numpy()
    paths, splits = splits_over(flows, _TOPOLOGY, problem.paths, demand, problem.classes, "x")
    shares, prices = torch.from_numpy(splits)[None], allocation.prices
    own = Allocation.of_batch(shares.to(problem.demand), prices, 0.0, allocation.program_prices)
    return write_proof(folder / "proof", problem.with_paths(paths), own)
