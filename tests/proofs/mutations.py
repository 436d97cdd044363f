"""Faults that are put into proofs, and checkers of which one check is removed."""

from __future__ import annotations

import hashlib
import importlib.util
import random
import types
from collections.abc import Callable
from pathlib import Path

from teal.proofs import check

# The text of a check in the checker, and the text in its place.
REMOVED_CHECKS = {
    "links within capacity": ("if load * SQUARE > max_utilisation * capacity:", "if False:"),
    "demands within rate": ("need(is_within,", "need(True,"),
    "links of a path are connected": (
        "if not ends or ends != [*map(self.start.__getitem__, links), demand.target]:",
        "if not ends:",
    ),
    "a line for each demand": ("name == str(demand.index),", "True,"),
    "value reached": ("self.kind not in LINEAR or self.achieved_value >= self.value,", "True,"),
    "bound proved": ("proves.get(self.kind, proved_bound <= self.bound),", "True,"),
    "no number below 0": (
        "text.isascii() and text.isdigit() and len(text) <= 100,",
        'text.lstrip("-").isdigit(),',
    ),
    "list of paths": (
        'is_over_all_paths or scope == f"paths listed {flows.listed_digest.hexdigest()}",',
        "True,",
    ),
    "demands carried to their share": ("flow * SQUARE >= min_share * rate_up,", "True,"),
    "demands carried to their share at a cost": ("flow * ONE >= self.level[1] * rate_up,", "True,"),
    "cost reached": ('self.kind != "cost" or self.achieved_value <= self.value,', "True,"),
    "multipliers in programs of classes alone": (
        'last.kind == "class" and words[:1] !=',
        "words[:1] !=",
    ),
    "prices above 0 for a utilisation": (
        "self.demand_sum * SQUARE >= max(1, self.bound * capacity_value)",
        "self.demand_sum * SQUARE >= self.bound * capacity_value",
    ),
    "prices above 0 for a share": (
        "self.bound * self.demand_sum >= max(1, SQUARE * capacity_value)",
        "self.bound * self.demand_sum >= SQUARE * capacity_value",
    ),
    "multipliers of groups": ("need(is_paid,", "need(True,"),
}


def checker_without(name: str) -> types.ModuleType:
    """The checker without one of its checks."""
    old, new = REMOVED_CHECKS[name]
    source = Path(check.__file__).read_text(encoding="utf-8")
    assert source.count(old) == 1, name
    spec = importlib.util.spec_from_loader("broken_checker", loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    exec(compile(source.replace(old, new), name, "exec"), module.__dict__)
    return module


class Lines:
    """The parts of a proof that mutations change."""

    def __init__(self, text: str) -> None:
        lines = text.split("\n")
        cut = lines.index("flows")
        self.head, self.flows = lines[:cut], lines[cut + 1 : -2]

    def text(self) -> str:
        """The proof, with the hash of its list of paths."""
        listing = "\n".join(
            " ".join([words[0], *(word.partition(":")[2] for word in words[1:] if word[:1] != "@")])
            for words in (line.split(" ") for line in self.flows)
        )
        if self.head[3] != "paths all":
            self.head[3] = (
                f"paths listed {hashlib.sha256((listing + chr(10)).encode()).hexdigest()}"
            )
        return "\n".join([*self.head, "flows", *self.flows, "end", ""])


def _any_flow(lines: Lines, pick: random.Random) -> tuple[int, list[str], int]:
    """A demand with a path, its words, and the number of one of them."""
    rows = [i for i, line in enumerate(lines.flows) if ":" in line]
    row = pick.choice(rows)
    words = lines.flows[row].split(" ")
    return row, words, pick.randrange(1, len(words))


def _change_flow(lines: Lines, pick: random.Random) -> None:
    row, words, number = _any_flow(lines, pick)
    amount, _, rest = words[number].partition(":")
    if amount[:1] == "@":
        words[number] = (
            f"{amount}:{max(0, int(rest) + pick.choice([1, -1]) * 2 ** pick.randrange(70))}"
        )
    else:
        changed = int(amount) + pick.choice([1, -1]) * 2 ** pick.randrange(72)
        words[number] = f"{changed if pick.random() < 0.3 else max(0, changed)}:{rest}"
    lines.flows[row] = " ".join(words)


def _change_claim(lines: Lines, pick: random.Random) -> None:
    rows = [i for i, line in enumerate(lines.head) if line.startswith("program")]
    row = pick.choice(rows)
    words = lines.head[row].split(" ")
    number = pick.choice([3, 4])
    step = (
        int(words[number]) >> pick.randrange(1, 130)
        if pick.random() < 0.7
        else 2 ** pick.randrange(9)
    )
    words[number] = str(max(0, int(words[number]) + pick.choice([1, -1]) * step))
    lines.head[row] = " ".join(words)


def _change_price(lines: Lines, pick: random.Random) -> None:
    rows = [i for i, line in enumerate(lines.head) if line.startswith("prices ")]
    if not rows:
        return
    row = pick.choice(rows)
    words = lines.head[row].split(" ")
    number = pick.randrange(1, len(words))
    link, _, price = words[number].partition(":")
    words[number] = f"{link}:{int(price) + pick.choice([1, -1]) * 2 ** pick.randrange(70)}"
    lines.head[row] = " ".join(words)


def _change_multiplier(lines: Lines, pick: random.Random) -> None:
    rows = [i for i, line in enumerate(lines.head) if line.startswith("multiplier ")]
    for row in rows:
        words = lines.head[row].split(" ")
        words[2] = str(max(0, int(words[2]) + pick.choice([1, -1]) * 2 ** pick.randrange(62)))
        lines.head[row] = " ".join(words)


def _change_link(lines: Lines, pick: random.Random) -> None:
    row, words, number = _any_flow(lines, pick)
    amount, _, rest = words[number].partition(":")
    along = rest.split(",")
    place = pick.randrange(len(along))
    if pick.random() < 0.5:
        along[place] = str(pick.randrange(40))
    elif pick.random() < 0.5 and len(along) > 1:
        del along[place]
    else:
        along.insert(place, along[place])
    words[number] = f"{amount}:{','.join(along)}"
    lines.flows[row] = " ".join(words)


def _change_lines(lines: Lines, pick: random.Random) -> None:
    a, b = pick.randrange(len(lines.flows)), pick.randrange(len(lines.flows))
    what = pick.randrange(4)
    if what == 0:
        lines.flows[a], lines.flows[b] = lines.flows[b], lines.flows[a]
    elif what == 1:
        lines.flows[a] = lines.flows[b]
    elif what == 2:
        del lines.flows[a]
    else:
        lines.flows.insert(a, lines.flows[b])


def _move_demand(lines: Lines, pick: random.Random) -> None:
    """The flows of one demand a second time in the place of another one's."""
    row, _, _ = _any_flow(lines, pick)
    other = pick.randrange(len(lines.flows))
    lines.flows[other] = lines.flows[row]


def _drop_path(lines: Lines, pick: random.Random) -> None:
    row, words, number = _any_flow(lines, pick)
    del words[number]
    lines.flows[row] = " ".join(words)


def _overload(lines: Lines, pick: random.Random) -> None:
    """More flow, and a claim below what the flows reach: nothing but the capacities and rates is
    broken."""
    row, words, number = _any_flow(lines, pick)
    amount, _, rest = words[number].partition(":")
    if amount[:1] != "@":
        words[number] = f"{int(amount) + 2 ** pick.randrange(20, 64)}:{rest}"
        lines.flows[row] = " ".join(words)
    for place, line in enumerate(lines.head):
        own = line.split(" ")
        if own[0] == "program" and own[1] in ("value", "class", "promise", "concurrent"):
            own[3] = str(int(own[3]) * pick.randrange(50, 100) // 100)
            lines.head[place] = " ".join(own)


def _cheapen(lines: Lines, pick: random.Random) -> None:
    """A cost or utilisation between the bound and what the flows reach."""
    for place, line in enumerate(lines.head):
        own = line.split(" ")
        if own[0] == "program" and own[1] in ("cost", "utilisation"):
            own[3] = str((int(own[3]) + int(own[4])) // 2 + pick.randrange(9))
            lines.head[place] = " ".join(own)


def _starve(lines: Lines, pick: random.Random) -> None:
    """Less flow of one demand, with claims that allow for it."""
    row, words, number = _any_flow(lines, pick)
    words = [
        word
        if word[:1] == "@"
        else f"{int(word.partition(':')[0]) * pick.randrange(99) // 100}:{word.partition(':')[2]}"
        for word in words[1:]
    ]
    lines.flows[row] = " ".join([str(row), *words])
    del number


def _raise_multipliers(lines: Lines, pick: random.Random) -> None:
    """Larger multipliers of groups, which lower the bound, and a bound to match."""
    for row, line in enumerate(lines.flows):
        words = line.split(" ")
        changed = [
            f"{word.partition(':')[0]}:{int(word.partition(':')[2]) * pick.randrange(100, 200) // 100}"
            if word[:1] == "@" and word.rpartition(":")[2].isdigit()
            else word
            for word in words
        ]
        lines.flows[row] = " ".join(changed)


def _renumber(lines: Lines, pick: random.Random) -> None:
    """Another number in front of the flows of a demand."""
    row, words, _ = _any_flow(lines, pick)
    lines.flows[row] = " ".join([str(row + pick.choice([-1, 1, 10])), *words[1:]])


def _add_multiplier(lines: Lines, pick: random.Random) -> None:
    """A multiplier of a class, which a program of another kind has not, and a claim that it would
    prove."""
    row = pick.choice([i for i, line in enumerate(lines.head) if line.startswith("program ")])
    words = lines.head[row].split(" ")
    share = pick.randrange(1, 100)
    words[3], words[4] = (str(int(word) * share // 100) for word in (words[3], words[3]))
    lines.head[row] = " ".join(words)
    lines.head.insert(
        row + 1,
        f"multiplier {pick.choice(['', 'gold', 'silver', '-'])} {pick.choice([1, 5, 9]) << 60}",
    )


def _without_prices(lines: Lines, pick: random.Random) -> None:
    """Prices of 0, which prove no ratio, and a claim without a gap."""
    lines.head[:] = [
        line for line in lines.head if not line.startswith("prices ") or pick.random() < 0.2
    ]
    for row, line in enumerate(lines.head):
        words = line.split(" ")
        if words[0] == "program" and words[1] in ("utilisation", "concurrent"):
            words[4] = words[3] = str(
                int(words[3]) * (300 if words[1] == "utilisation" else 20) // 100
            )
            lines.head[row] = " ".join(words)


def _change_name(lines: Lines, pick: random.Random) -> None:
    row = pick.choice([i for i, line in enumerate(lines.head) if line.startswith("program ")])
    words = lines.head[row].split(" ")
    words[2] = pick.choice(
        ["-", "gold", "bronze", "none", "", "x\r", "0.5", words[2] + "-", words[2] + "0"]
    )
    lines.head[row] = " ".join(words)


def _below_zero(lines: Lines, pick: random.Random) -> None:
    """Flow below 0 on one path of a demand, and as much more on another one."""
    row, words, number = _any_flow(lines, pick)
    if len(words) < 3 or "@" in lines.flows[row]:
        return
    other = number - 1 if number > 1 else 2
    extra = int(words[number].partition(":")[0]) + 2 ** pick.randrange(60)
    for place, sign in ((number, -1), (other, 1)):
        amount, _, rest = words[place].partition(":")
        words[place] = f"{int(amount) + sign * extra}:{rest}"
    lines.flows[row] = " ".join(words)


KINDS: tuple[Callable[[Lines, random.Random], None], ...] = (
    _change_flow,
    _change_claim,
    _change_price,
    _change_multiplier,
    _change_link,
    _change_lines,
    _move_demand,
    _drop_path,
    _overload,
    _overload,
    _starve,
    _cheapen,
    _raise_multipliers,
    _renumber,
    _below_zero,
    _add_multiplier,
    _without_prices,
    _change_name,
)


def mutated(text: str, pick: random.Random) -> str:
    """A proof with one to three faults; in most the hash of the list of paths is mended, so that it
    is none."""
    if pick.random() < 0.08:  # a byte
        place = pick.randrange(len(text))
        return text[:place] + pick.choice("0123456789 :,-\n@a") + text[place + 1 :]
    lines = Lines(text)
    for _ in range(pick.choice([1, 1, 1, 2, 3])):
        pick.choice(KINDS)(lines, pick)
    old_scope = lines.head[3]
    changed = lines.text()
    if pick.random() < 0.1:  # with the hash that it had
        changed = changed.replace(lines.head[3], old_scope, 1)
    return changed
