"""A second evaluator of proofs, in fractions and by Bellman and Ford: slow, and without a line of
the checker."""

from __future__ import annotations

import csv
import hashlib
from fractions import Fraction
from pathlib import Path
from urllib.parse import quote

UNIT = Fraction(1, 2**60)


def _natural(text: str) -> int:
    if not text or any(character not in "0123456789" for character in text):
        raise ValueError(text)
    return int(text)


def _rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


class Network:
    """Links and demands with exact numbers."""

    def __init__(self, network: Path, matrix: Path) -> None:
        links, demands = _rows(network), _rows(matrix)
        self.ends = [(row["source"], row["target"]) for row in links]
        self.capacity = [Fraction(row["capacity"]) for row in links]
        self.cost = [Fraction(row.get("cost") or 0) for row in links]
        self.pairs = [(row["source"], row["target"]) for row in demands]
        self.rate = [Fraction(row["rate"]) for row in demands]
        self.weight = [Fraction(row.get("weight") or 1) for row in demands]
        self.of_class = [quote(row.get("class") or "", safe="") for row in demands]

    def least(self, length: list[Fraction], source: str, target: str) -> Fraction | None:
        """Bellman and Ford over links that are open."""
        best: dict[str, Fraction] = {source: Fraction(0)}
        changed = True
        while changed:
            changed = False
            for (a, b), own, capacity in zip(self.ends, length, self.capacity, strict=True):
                if capacity > 0 and a in best and (b not in best or best[a] + own < best[b]):
                    best[b], changed = best[a] + own, True
        return best.get(target)


def is_true(network: Path, matrix: Path, proof: Path, groups: Path | None = None) -> bool:
    """Whether every claim of the file is true, by the definitions."""
    try:
        return _is_true(network, matrix, proof, groups)
    except (ValueError, IndexError, UnicodeDecodeError, ZeroDivisionError):
        return False


def _is_true(network: Path, matrix: Path, proof: Path, groups: Path | None) -> bool:
    net = Network(network, matrix)
    text = proof.read_bytes().decode()
    head, body = text.split("\nflows\n", 1)
    lines, flows = head.split("\n"), body.split("\n")
    hashes = [hashlib.sha256(file.read_bytes()).hexdigest() for file in (network, matrix)]
    if lines[:3] != ["teal-proof 1", f"network {hashes[0]}", f"matrix {hashes[1]}"]:
        return False
    if flows[-2:] != ["end", ""] or len(flows) != len(net.pairs) + 2:
        return False
    paths: list[list[tuple[int, list[int]]]] = []
    multipliers: list[dict[str, Fraction]] = []
    for d, line in enumerate(flows[:-2]):
        words = line.split(" ")
        if words[0] != str(d):
            return False
        paths.append([])
        multipliers.append({})
        for word in words[1:]:
            amount, _, rest = word.partition(":")
            if amount.startswith("@"):
                multipliers[-1][amount[1:]] = _natural(rest) * UNIT
                continue
            along = [_natural(link) for link in rest.split(",")]
            if any(str(link) != own for link, own in zip(along, rest.split(","), strict=True)):
                return False
            node = net.pairs[d][0]
            for link in along:
                if net.ends[link][0] != node:
                    return False
                node = net.ends[link][1]
            if node != net.pairs[d][1]:
                return False
            paths[-1].append((_natural(amount), along))
    listing = "".join(
        f"{d}{''.join(' ' + ','.join(map(str, along)) for _, along in of)}\n"
        for d, of in enumerate(paths)
    )
    over_all = lines[3] == "paths all"
    if not over_all and lines[3] != f"paths listed {hashlib.sha256(listing.encode()).hexdigest()}":
        return False
    load = [Fraction(0)] * len(net.ends)
    for of in paths:
        for own_flow, along in of:
            for number in along:
                load[number] += own_flow * UNIT
    programs: list[dict[str, object]] = []
    for line in lines[4:]:
        words = line.split(" ")
        if words[0] == "program":
            if len(words) != 5 or (words[1] not in ("class", "level", "cost") and words[2] != "-"):
                return False
            value, bound = (Fraction(_natural(word), 2**120) for word in words[3:])
            programs.append(
                {
                    "kind": words[1],
                    "name": words[2],
                    "value": value,
                    "bound": bound,
                    "prices": {},
                    "m": {},
                }
            )
        elif words[0] == "prices":
            for word in words[1:]:
                link_text, _, price = word.partition(":")
                if _natural(link_text) >= len(net.ends):
                    return False
                programs[-1]["prices"][int(link_text)] = _natural(price) * UNIT  # type: ignore[index]
        elif words[0] == "multiplier" and len(words) == 3 and words[1] != programs[-1]["name"]:
            if programs[-1]["kind"] != "class" or words[1] not in net.of_class:
                return False
            programs[-1]["m"][words[1]] = _natural(words[2]) * UNIT  # type: ignore[index]
        else:
            return False
    hit_by: dict[str, set[int]] = {}
    for row in _rows(groups) if groups else []:
        hit_by.setdefault(row["group"], set()).add(int(row["link"]))
    return bool(programs) and all(
        _program_is_true(net, paths, multipliers, load, program, over_all, hit_by, len(programs))
        for program in programs
    )


def _program_is_true(
    net: Network,
    paths: list[list[tuple[int, list[int]]]],
    multipliers: list[dict[str, Fraction]],
    load: list[Fraction],
    program: dict[str, object],
    over_all: bool,
    hit_by: dict[str, set[int]],
    count: int,
) -> bool:
    kind, name, value, bound = program["kind"], program["name"], program["value"], program["bound"]
    given: dict[int, Fraction] = program["prices"]  # type: ignore[assignment]
    m: dict[str, Fraction] = program["m"]  # type: ignore[assignment]
    assert isinstance(value, Fraction)
    assert isinstance(bound, Fraction)
    price = [given.get(link, Fraction(0)) for link in range(len(net.ends))]
    room = sum((y * c for y, c in zip(price, net.capacity, strict=True)), Fraction(0))
    pays = kind in ("value", "cost")
    length = [y + (cost if pays else 0) for y, cost in zip(price, net.cost, strict=True)]
    x = [sum((Fraction(amount) for amount, _ in of), Fraction(0)) * UNIT for of in paths]
    theta = value if kind == "utilisation" else Fraction(1)
    if any(own > theta * c for own, c in zip(load, net.capacity, strict=True)):
        return False
    if kind in ("utilisation", "promise", "cost") and count > 1:
        return False
    if kind not in ("utilisation", "promise") and any(
        own > rate for own, rate in zip(x, net.rate, strict=True)
    ):
        return False
    dist: list[Fraction | None] = []
    for d, of in enumerate(paths):
        if over_all:
            dist.append(net.least(length, *net.pairs[d]))
        else:
            open_ones = [along for _, along in of if all(net.capacity[link] > 0 for link in along)]
            dist.append(
                min(
                    (sum((length[i] for i in along), Fraction(0)) for along in open_ones),
                    default=None,
                )
            )
    demands = range(len(x))

    def profit(d: int, worth: Fraction) -> Fraction:
        own = dist[d]
        return Fraction(0) if own is None else net.rate[d] * max(Fraction(0), worth - own)

    if kind == "value":
        cost = sum((own * c for own, c in zip(load, net.cost, strict=True)), Fraction(0))
        reached = sum((net.weight[d] * x[d] for d in demands), Fraction(0)) - cost
        return reached >= value and room + sum(profit(d, net.weight[d]) for d in demands) <= bound
    if kind == "cost":
        share = Fraction(str(name))
        routable = [d for d in demands if dist[d] is not None]
        if any(x[d] < share * net.rate[d] for d in routable):
            return False
        cost = sum((own * c for own, c in zip(load, net.cost, strict=True)), Fraction(0))
        proved = sum((net.rate[d] * (dist[d] or 0) for d in routable), Fraction(0)) - room
        return cost <= value and bound <= proved and bound <= value
    if kind == "class":
        own_class = [d for d in demands if net.of_class[d] == name]
        if not own_class:
            return False
        proved = room + sum((profit(d, Fraction(1)) for d in own_class), Fraction(0))
        for other, multiplier in m.items():
            rows = [d for d in demands if net.of_class[d] == other]
            proved += sum((profit(d, multiplier) for d in rows), Fraction(0)) - multiplier * sum(
                x[d] for d in rows
            )
        return sum((x[d] for d in own_class), Fraction(0)) >= value and proved <= bound
    if kind == "level":
        level = Fraction(str(name))
        total = Fraction(0)
        for d in demands:
            own = dist[d]
            if own is not None:
                is_member = x[d] >= level * net.weight[d]
                total += own * (
                    min(bound * level * net.weight[d], net.rate[d]) if is_member else x[d]
                )
        return value == 1 and total > room
    if kind in ("utilisation", "concurrent"):
        routable = [d for d in demands if dist[d] is not None]
        total = sum((net.rate[d] * (dist[d] or 0) for d in routable), Fraction(0))
        share = Fraction(1) if kind == "utilisation" else value
        if any(x[d] < share * net.rate[d] for d in routable):
            return False
        if kind == "utilisation":  # with a room of 0 the prices say nothing
            return bound == 0 or (room > 0 and bound <= value and bound * room <= total)
        return (
            value <= bound and value <= 1 and (bound >= 1 or (total > 0 and bound * total >= room))
        )
    if kind == "promise":
        if over_all or not hit_by:
            return False
        reached, proved = Fraction(0), room
        for d in demands:
            left = [x[d]]
            left += [
                sum((amount for amount, along in paths[d] if not links & set(along)), 0) * UNIT
                for links in hit_by.values()
            ]
            reached += net.weight[d] * min(net.rate[d], *left)
            for _, along in paths[d]:
                paid = sum(
                    (
                        own
                        for g, own in multipliers[d].items()
                        if not hit_by.get(g, set()) & set(along)
                    ),
                    Fraction(0),
                )
                if all(net.capacity[i] > 0 for i in along) and paid > sum(price[i] for i in along):
                    return False
            proved += net.rate[d] * max(Fraction(0), net.weight[d] - sum(multipliers[d].values()))
        return reached >= value and proved <= bound
    return False
