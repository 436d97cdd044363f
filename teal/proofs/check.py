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

BITS, ONE, SQUARE = 60, 1 << 60, 1 << 120  # binary digits after the point of every number; claims have twice as many
CLOSED = 1 << 4000  # price of a closed link: more than prices of 100 digits and costs of 60 digits and 10^999 sum to
LINEAR = ("value", "class", "promise")  # kinds of programs whose value is a sum of worth times flow
DECIMAL = re.compile(r"(\d{1,60})(?:\.(\d{0,60}))?(?:[eE]([+-]?\d{1,3}))?", re.ASCII)


def need(condition, reason):
    if not condition:
        raise ValueError(reason)


def decimal(text, where):
    """A decimal number in units of 2^-60, rounded down, and rounded up."""
    match = DECIMAL.fullmatch(text or "")
    need(match, f"{where}: {text!r} is no decimal number of at least 0")
    exponent = int(match[3] or 0) - len(match[2] or "")
    above, below = int(match[1] + (match[2] or "")) * 10 ** max(exponent, 0) << BITS, 10 ** max(-exponent, 0)
    return above // below, -(-above // below)


def whole(text):
    need(text.isascii() and text.isdigit() and len(text) <= 100, f"{text[:40]!r} is no whole number of at least 0")
    return int(text)


def table(file, *names):
    with open(file, encoding="utf-8", newline="") as stream:
        rows = csv.DictReader(stream)
        need(set(names) <= set(rows.fieldnames or ()), f"{file}: expected the columns {', '.join(names)}")
        yield from rows


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
        need(kind in (*LINEAR, "level", "utilisation", "concurrent"), f"{kind[:40]!r} is no kind of program")
        self.kind, self.name, self.price, self.multiplier = kind, name, [0] * links, {}
        self.value, self.bound = whole(value), whole(bound)
        self.level = decimal(name, "level") if kind == "level" else None
        self.total = self.reached = self.left_out = 0

    def add(self, d, rate, weight, of_class, flow, paid, dist):
        """Demand ``d``: rate and weight, each rounded down and up; flow or promise, and cost that it pays."""
        (low, high), (light, heavy) = rate, weight
        if self.kind == "class":
            light = heavy = ONE if of_class == self.name else self.multiplier.get(of_class, 0)
            flow = flow if of_class == self.name else 0
        if self.kind in LINEAR:
            self.reached += light * flow - (paid if self.kind == "value" else 0)
            self.total += high * max(0, heavy - dist)
        elif dist >= CLOSED:
            self.left_out += high > 0
        elif self.kind == "level":
            grows = flow * ONE >= self.level[1] * heavy
            self.total += dist * (min(self.bound * self.level[0] * light // (SQUARE * ONE), low) if grows else flow)
        else:
            carries = flow >= high if self.kind == "utilisation" else flow * SQUARE >= self.value * high
            need(carries, f"demand {d} has a smaller share than is claimed")
            self.total += dist * low

    def conclude(self, capacity, carried):
        """The sentence that is proved; ``carried`` is the flow of each class."""
        room = sum(y * up for y, (_, up) in zip(self.price, capacity))
        paid = room + self.total - sum(m * carried.get(name, 0) for name, m in self.multiplier.items())
        need(self.kind not in LINEAR or self.reached >= self.value, f"{self.kind}: the flows do not reach the value")
        proves = {
            "level": self.total > room and self.value == SQUARE,
            "utilisation": self.total * SQUARE >= self.bound * room,
            "concurrent": self.bound >= SQUARE or self.bound * self.total >= SQUARE * room,
        }
        need(proves.get(self.kind, paid <= self.bound), f"{self.kind}: the prices prove no such bound")
        low, high = sorted([self.value / SQUARE, self.bound / SQUARE])
        kept = f" while {', '.join(sorted(self.multiplier))} keep their flow" if self.multiplier else ""
        gap = f"gap {100 * (high - low) / high if high else 0:.6f}%, {self.left_out} demands without a path left out"
        return f"{self.kind} {self.name}".rstrip(" -") + f"{kept}: the optimum is from {low:.9f} to {high:.9f}, {gap}"


def header(lines, links):
    """The programs of a proof, up to the line ``flows``."""
    programs = []
    for line in lines:
        key, *words = line.split(" ")
        if key == "program" and len(words) == 4:
            programs.append(Program(links, *words))
        elif key == "prices" and programs:
            for link, _, price in (word.partition(":") for word in words):
                need(whole(link) < links, f"prices: there is no link {link}")
                programs[-1].price[int(link)] = whole(price)
        elif key == "multiplier" and programs and len(words) == 2 and words[0] != programs[-1].name:
            programs[-1].multiplier[words[0]] = whole(words[1])
        else:
            need(line == "flows" and programs, f"{line[:60]!r} was not expected before the flows")
            break
    return programs


def check(network, matrix, proof, groups=None):
    """The sentences that the files prove; raises ValueError where they do not."""
    links = list(table(network, "source", "target", "capacity"))
    hashes = [hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest() for file in (network, matrix)]
    start, end = [row["source"] for row in links], [row["target"] for row in links]
    capacity = [decimal(row["capacity"], f"capacity of link {i}") for i, row in enumerate(links)]
    cost = [decimal(row.get("cost") or "0", f"cost of link {i}") for i, row in enumerate(links)]
    number, load, group_of, outgoing = {str(i): i for i in range(len(links))}, [0] * len(links), {}, {}
    for row in table(groups, "group", "link") if groups else ():
        need(row["link"] in number, f"group {row['group']}: there is no link {row['link']}")
        group_of.setdefault(number[row["link"]], set()).add(row["group"])
    for i, (_, up) in enumerate(capacity):
        if up:
            outgoing.setdefault(start[i], []).append((i, end[i]))
    with (gzip.open if proof.endswith(".gz") else open)(proof, "rt", encoding="utf-8", newline="\n") as stream:
        lines = (line.rstrip("\n") for line in stream)
        for expected in ("teal-proof 1", f"network {hashes[0]}", f"matrix {hashes[1]}"):
            need(next(lines, "") == expected, f"the proof is not of these files: expected {expected!r}")
        scope, programs = next(lines, ""), header(lines, len(links))
        over_all, kinds = scope == "paths all", {program.kind for program in programs}
        need(len(programs) == 1 or not kinds & {"utilisation", "promise"}, "this program must be the only one")
        need("promise" not in kinds or (groups and not over_all), "promises need GROUPS, and listed paths")
        lengths = [[y + c[0] * (p.kind == "value") for y, c in zip(p.price, cost)] for p in programs]
        lengths = [[y if up else CLOSED for y, (_, up) in zip(of, capacity)] for of in lengths]
        length_of, start_of, end_of = [of.__getitem__ for of in lengths], start.__getitem__, end.__getitem__
        source, carried, digest, has_cost = None, {}, hashlib.sha256(), any(up for _, up in cost)
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
            carried[row.get("class") or ""] = carried.get(row.get("class") or "", 0) + flow
            if "promise" in kinds:
                dist, flow = [sum(multipliers.values())], min(rate[0], flow - max(lost.values(), default=0))
            need("utilisation" in kinds or flow <= rate[0], f"demand {d} from {source} to {target} exceeds its rate")
            weight = decimal(row["weight"], f"weight of demand {d}") if row.get("weight") else (ONE, ONE)
            for program, least in zip(programs, dist):
                program.add(d, rate, weight, row.get("class") or "", flow, paid, least)
        need(next(lines, "") == "end" and next(lines, None) is None, "the file does not end where it should")
    need(over_all or scope == f"paths listed {digest.hexdigest()}", "the list of paths is another one")
    for i, (sent, (room, _)) in enumerate(zip(load, capacity)):
        most = programs[0].value if "utilisation" in kinds else SQUARE
        need(sent * SQUARE <= most * room, f"link {i}, {start[i]} to {end[i]}: {sent / ONE} of {room / ONE} Gbit/s")
    which = "all" if over_all else "the listed"
    return [f"proved over {which} paths: {program.conclude(capacity, carried)}" for program in programs]


if __name__ == "__main__":
    try:
        print("\n".join(check(*sys.argv[1:])) if len(sys.argv) in (4, 5) else __doc__)
    except (OSError, ValueError, csv.Error, EOFError) as error:
        sys.exit(f"NOT PROVED: {error}")
