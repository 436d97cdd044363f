"""Check the proof of an allocation: python check.py NETWORK MATRIX PROOF[.gz] [GROUPS]

Python 3.8 is enough.  docs/proofs.md has the theorems and the format of PROOF; the other files are the checking user's:

    NETWORK  source,target,capacity[,cost]        a directed link a row, numbered from 0; capacity 0 closes it
    MATRIX   source,target,rate[,weight][,class]  a demand a row, numbered from 0; without a weight it is 1
    GROUPS   group,link                           links that fail together, for promises that survive each failure
"""

import csv
import gzip
import hashlib
import heapq
import pathlib
import re
import sys
from urllib.parse import quote

BITS, ONE, SQUARE = 60, 1 << 60, 1 << 120  # binary digits after the point of every number; claims have twice as many
CLOSED = 1 << 4000  # price of a closed link: more than prices of 100 digits and costs of 60 digits and 10^999 sum to
LINEAR = ("value", "class", "promise")  # kinds of programs whose value is a sum of worth times flow
DECIMAL = re.compile(r"(\d{1,60})(?:\.(\d{0,60}))?(?:[eE]([+-]?\d{1,3}))?", re.ASCII)


def need(condition, reason):
    if not condition:
        raise ValueError(reason)


def whole(text):
    need(text.isascii() and text.isdigit() and len(text) <= 100, f"{text[:40]!r} is no whole number of at least 0")
    return int(text)


def decimal(text, where):
    """A decimal number in units of 2^-60, rounded down, and rounded up."""
    match = DECIMAL.fullmatch(text or "")
    need(match, f"{where}: {text!r} is no decimal number of at least 0")
    exponent = int(match[3] or 0) - len(match[2] or "")
    above, below = int(match[1] + (match[2] or "")) * 10 ** max(exponent, 0) << BITS, 10 ** max(-exponent, 0)
    return above // below, -(-above // below)


def table(file, *names):
    with open(file, encoding="utf-8", newline="") as stream:
        columns = next(rows := csv.reader(stream), [])
        need(set(names) <= set(columns), f"{file}: expected the columns {', '.join(names)}")
        for fields in filter(None, rows):
            need(len(fields) == len(columns), "a row of a table has more or fewer fields than there are columns")
            yield dict(zip(columns, fields))


def distances(source, outgoing, length):
    best, queue = {}, [(0, source)]
    while queue:
        so_far, node = heapq.heappop(queue)
        if node not in best:
            best[node] = so_far
            for link, target in outgoing.get(node, ()):
                heapq.heappush(queue, (so_far + length[link], target))
    return best


class Program:
    """A claim: ``total`` sums the demands' part of its inequality, ``reached`` its value."""

    def __init__(self, links, kind, name, value, bound):
        known = ("value -", "promise -", "utilisation -", "concurrent -")
        need(kind in ("class", "level") or f"{kind} {name}" in known, f"{kind[:40]!r} {name[:40]!r} is no program")
        self.kind, self.name, self.value, self.bound = kind, name, whole(value), whole(bound)
        self.price, self.multiplier, self.total, self.reached = [0] * links, {}, 0, 0
        self.level = decimal(name, "level") if kind == "level" else None

    def add(self, d, rate, weight, of_class, flow, paid, dist):
        """Demand ``d``: rate and weight, each rounded down and up; flow or promise, and cost that it pays."""
        (low, high), (light, heavy) = rate, weight
        if self.kind == "class":
            light = heavy = ONE if of_class == self.name else self.multiplier.get(of_class, 0)
            flow = flow if of_class == self.name else 0
        if self.kind in LINEAR:
            self.reached += light * flow - (paid if self.kind == "value" else 0)
            self.total += high * max(0, heavy - dist)
        elif self.kind == "level" and dist < CLOSED:
            grown = min(self.bound * self.level[0] * light // (SQUARE * ONE), low)
            grows, may_grow = flow * ONE >= self.level[1] * heavy, flow * ONE >= self.level[0] * light
            self.total += dist * (grown if grows else min(grown, flow) if may_grow else flow)
        elif dist < CLOSED:
            share = self.value if self.kind == "concurrent" else SQUARE
            need(flow * SQUARE >= share * high, f"demand {d} has a smaller share than is claimed")
            self.total += dist * low

    def conclude(self, capacity, carried, left_out):
        """The sentence that is proved; ``carried`` is the flow of each class."""
        need(self.kind != "class" or {self.name, *self.multiplier} <= set(carried), "no demand has such a class")
        room = sum(y * up for y, (_, up) in zip(self.price, capacity))
        paid = room + self.total - sum(m * carried[name] for name, m in self.multiplier.items())
        need(self.kind not in LINEAR or self.reached >= self.value, f"{self.kind}: the flows do not reach the value")
        proves = {
            "level": self.value == SQUARE and self.total > room,
            "utilisation": self.bound == 0 or self.total * SQUARE >= max(1, self.bound * room),
            "concurrent": self.bound >= SQUARE or self.bound * self.total >= max(1, SQUARE * room),
        }
        need(proves.get(self.kind, paid <= self.bound), f"{self.kind}: the prices prove no such bound")
        low, high = (self.bound, self.value) if self.kind == "utilisation" else (self.value, self.bound)
        need(low <= high and (self.kind != "concurrent" or low <= SQUARE), f"{self.kind}: there is no such value")
        gap = -(-(high - low) * 10**8 // max(1, high)) / 10**6
        low, high = (f"{n // 10**9}.{n % 10**9:09}" for n in (low * 10**9 // SQUARE, -(-high * 10**9 // SQUARE)))
        kept = f" while {', '.join(sorted(self.multiplier))} keep their flow" if self.multiplier else ""
        kind = f"{self.kind} {self.name}" if self.kind in ("class", "level") else self.kind
        return f"{kind}{kept}: the optimum is from {low} to {high}, gap {gap:.6f}%, {left_out} demands without a path"


def check(network, matrix, proof, groups=None):
    """The sentences that the files prove; raises ValueError where they do not."""
    links = list(table(network, "source", "target", "capacity"))
    hashes = [hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest() for file in (network, matrix)]
    start, end = [row["source"] for row in links], [row["target"] for row in links]
    capacity = [decimal(row["capacity"], f"capacity of link {i}") for i, row in enumerate(links)]
    cost = [decimal(row.get("cost") or "0", f"cost of link {i}") for i, row in enumerate(links)]
    number, load, group_of, outgoing, programs = {str(i): i for i in range(len(links))}, [0] * len(links), {}, {}, []
    for row in table(groups, "group", "link") if groups else ():
        need(row["link"] in number, f"group {row['group']}: there is no link {row['link']}")
        group_of.setdefault(number[row["link"]], set()).add(row["group"])
    for i in range(len(links)):
        outgoing.setdefault(start[i], []).append((i, end[i]))
    with (gzip.open if proof.endswith(".gz") else open)(proof, "rt", encoding="utf-8", newline="\n") as stream:
        lines = (line.rstrip("\n") for line in stream)
        head, scope = [next(lines, "") for _ in range(3)], next(lines, "")
        need(head == ["teal-proof 1", f"network {hashes[0]}", f"matrix {hashes[1]}"], "the proof is not of these files")
        for key, *words in (line.split(" ") for line in lines):
            if key == "program" and len(words) == 4:
                programs.append(Program(len(links), *words))
            elif key == "prices" and programs:
                for link, _, price in (word.partition(":") for word in words):
                    need(link in number, f"prices: there is no link {link[:40]!r}")
                    programs[-1].price[number[link]] = whole(price)
            elif key == "multiplier" and programs and programs[-1].kind == "class" and words[:1] != [programs[-1].name]:
                programs[-1].multiplier.update({of_class: whole(number_of) for of_class, number_of in [words]})
            else:
                need([key, *words] == ["flows"] and programs, f"{key[:60]!r} was not expected before the flows")
                break
        over_all, kinds = scope == "paths all", {program.kind for program in programs}
        need(len(programs) == 1 or not kinds & {"utilisation", "promise"}, "this program must be the only one")
        need("promise" not in kinds or (groups and not over_all), "promises need GROUPS, and listed paths")
        lengths = [[y + c[0] * (p.kind == "value") for y, c in zip(p.price, cost)] for p in programs]
        lengths = [[y if up else CLOSED for y, (_, up) in zip(of, capacity)] for of in lengths]
        length_of, start_of, end_of = [of.__getitem__ for of in lengths], start.__getitem__, end.__getitem__
        source, carried, left_out, digest, has_cost = None, {}, 0, hashlib.sha256(), any(up for _, up in cost)
        for d, row in enumerate(table(matrix, "source", "target", "rate")):
            name, *paths = next(lines, "").split(" ")
            need(name == str(d), f"expected the flows of demand {d}, found {name[:40]!r}")
            if row["source"] != source and over_all:
                reach = [distances(row["source"], outgoing, length) for length in lengths]
            source, target, rate = row["source"], row["target"], decimal(row["rate"], f"rate of demand {d}")
            flow, paid, listed, lost, multipliers = 0, 0, name, {}, {}
            dist = [best.get(target, CLOSED) for best in reach] if over_all else [CLOSED] * len(programs)
            for path in paths:
                amount, _, text = path.partition(":")
                if amount[:1] == "@" and listed == name:  # the multiplier of a group, "" for no failure, before paths
                    multipliers[amount[1:]] = whole(text)
                    continue
                sent, listed, along = whole(amount), f"{listed} {text}", [number.get(i) for i in text.split(",")]
                if None in along or [source, *map(end_of, along)] != [*map(start_of, along), target]:
                    raise ValueError(f"demand {d}: the links {text[:60]} do not lead from {source} to {target}")
                flow += sent
                for i in along if sent else ():
                    load[i] += sent
                paid += sent * sum(cost[i][1] for i in along) if has_cost else 0
                if not over_all:
                    dist = [min(least, sum(map(length, along))) for least, length in zip(dist, length_of)]
                if groups:
                    hit = set().union(*(group_of.get(i, ()) for i in along))
                    pays = sum(m for group, m in multipliers.items() if group not in hit)
                    need(pays <= sum(lengths[0][i] for i in along), f"demand {d}: multipliers above a path's price")
                    lost.update((group, lost.get(group, 0) + sent) for group in hit)
            digest.update(f"{listed}\n".encode())
            of_class = quote(row["class"], safe="") if row.get("class") else ""
            carried[of_class] = carried.get(of_class, 0) + flow
            left_out += min(dist) >= CLOSED and rate[1] > 0
            if "promise" in kinds:
                dist, flow = [sum(multipliers.values())], min(rate[0], flow - max(lost.values(), default=0))
            need("utilisation" in kinds or flow <= rate[0], f"demand {d} from {source} to {target} exceeds its rate")
            weight = decimal(row["weight"], f"weight of demand {d}") if row.get("weight") else (ONE, ONE)
            for program, least in zip(programs, dist):
                program.add(d, rate, weight, of_class, flow, paid, least)
        need(next(lines, "") == "end" and next(lines, None) is None, "the file does not end where it should")
    need(over_all or scope == f"paths listed {digest.hexdigest()}", "the list of paths is another one")
    most = programs[0].value if "utilisation" in kinds else SQUARE
    for i, (sent, (room, _)) in enumerate(zip(load, capacity)):
        if sent * SQUARE > most * room:
            raise ValueError(f"link {i}, {start[i]} to {end[i]}: {sent / ONE} of {room / ONE} Gbit/s")
    scope = "proved over all paths: " if over_all else "proved over the listed paths: "
    return [scope + program.conclude(capacity, carried, left_out) for program in programs]


if __name__ == "__main__":
    try:
        print("\n".join(check(*sys.argv[1:])) if len(sys.argv) in (4, 5) else sys.exit(__doc__))
    except Exception as error:  # whatever fails proves nothing
        sys.exit(f"NOT PROVED: {ascii(str(error))[1:-1]}")
