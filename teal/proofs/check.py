"""Check the proof of an allocation: python check.py NETWORK MATRIX PROOF[.gz] [GROUPS]

Python 3.8 is enough.  docs/proofs.md has the theorems and the format of PROOF; the other files are
the checking user's:

    NETWORK  source,target,capacity[,cost]
             a directed link a row, numbered from 0; capacity 0 closes it
    MATRIX   source,target,rate[,weight][,class]
             a demand a row, numbered from 0; without a weight it is 1
    GROUPS   group,link
             links that fail together, for promises that survive each failure

All numbers are whole: multiples of 2^-60, or of 2^-120 in what is claimed of a value.  Numbers of
the user's files are rounded against the claim, so that nothing is proved that is not true of the
decimals themselves.
"""

import csv
import gzip
import hashlib
import heapq
import pathlib
import re
import sys
from urllib.parse import quote

BITS = 60  # binary digits after the point of every number; claims have twice as many
ONE = 1 << BITS
SQUARE = 1 << 2 * BITS
# Price of a closed link: more than prices of 100 digits and costs of 60 digits and 10^999 sum to.
CLOSED = 1 << 4000
LINEAR = ("value", "class", "promise")  # kinds of programs whose value is a sum of worth times flow
DECIMAL = re.compile(r"(\d{1,60})(?:\.(\d{0,60}))?(?:[eE]([+-]?\d{1,3}))?", re.ASCII)


def need(condition, reason):
    if not condition:
        raise ValueError(reason)


def integer(text):
    need(
        text.isascii() and text.isdigit() and len(text) <= 100,
        f"{text[:40]!r} is not an integer >= 0",
    )
    return int(text)


def decimal(text, where):
    """A decimal number in units of 2^-60, rounded down, and rounded up."""
    match = DECIMAL.fullmatch(text or "")
    need(match, f"{where}: {text!r} is no decimal number of at least 0")
    digits = int(match[1] + (match[2] or ""))
    exponent = int(match[3] or 0) - len(match[2] or "")
    above = digits * 10 ** max(exponent, 0) << BITS
    below = 10 ** max(-exponent, 0)
    return above // below, -(-above // below)


def table(file, *names):
    """The rows of a table with a header, as dictionaries."""
    with open(file, encoding="utf-8", newline="") as stream:
        rows = csv.reader(stream)
        columns = next(rows, [])
        need(set(names) <= set(columns), f"{file}: expected the columns {', '.join(names)}")
        for fields in filter(None, rows):
            need(
                len(fields) == len(columns),
                "a row of a table has more or fewer fields than there are columns",
            )
            yield dict(zip(columns, fields))


def distances(source, outgoing, length):
    """The least sum of lengths from a node to each node that it reaches (Dijkstra)."""
    best = {}
    queue = [(0, source)]
    while queue:
        so_far, node = heapq.heappop(queue)
        if node not in best:
            best[node] = so_far
            for link, target in outgoing.get(node, ()):
                heapq.heappush(queue, (so_far + length[link], target))
    return best


class Network:
    """Links by their numbers: ends, capacity and cost, each number rounded down and up; and the
    groups of each link.
    """

    def __init__(self, file, groups):
        rows = list(table(file, "source", "target", "capacity"))
        self.start = [row["source"] for row in rows]
        self.end = [row["target"] for row in rows]
        self.capacity = [
            decimal(row["capacity"], f"capacity of link {i}") for i, row in enumerate(rows)
        ]
        self.cost = [
            decimal(row.get("cost") or "0", f"cost of link {i}") for i, row in enumerate(rows)
        ]
        self.has_cost = any(up for _, up in self.cost)
        self.number = {str(i): i for i in range(len(rows))}
        self.outgoing = {}
        for i, node in enumerate(self.start):
            self.outgoing.setdefault(node, []).append((i, self.end[i]))
        self.groups_of = {}
        for row in table(groups, "group", "link") if groups else ():
            need(
                row["link"] in self.number, f"group {row['group']}: there is no link {row['link']}"
            )
            self.groups_of.setdefault(self.number[row["link"]], set()).add(row["group"])

    def lengths(self, program):
        """The length of each link under the prices of a program: its price, and its cost where flow
        pays it.
        """
        costs = [low if program.kind in ("value", "cost") else 0 for low, _ in self.cost]
        pairs = zip(program.price, costs, self.capacity)
        return [price + cost if up else CLOSED for price, cost, (_, up) in pairs]

    def links_of(self, path, demand):
        """The numbers of the links of a path such as 3,17,4, which must lead from source to target
        of a demand.
        """
        along = [self.number.get(i) for i in path.split(",")]
        ends = [demand.source, *map(self.end.__getitem__, along)] if None not in along else []
        if not ends or ends != [*map(self.start.__getitem__, along), demand.target]:
            text = f"the links {path[:60]} do not lead from {demand.source} to {demand.target}"
            raise ValueError(f"demand {demand.number}: {text}")
        return along


class Program:
    """A claim: ``total`` sums the demands' part of its inequality, ``reached`` its value."""

    def __init__(self, links, kind, name, value, bound):
        kinds = ("value -", "promise -", "utilisation -", "concurrent -")
        need(
            kind in ("class", "level", "cost") or f"{kind} {name}" in kinds,
            f"{kind[:40]!r} {name[:40]!r} is not a program",
        )
        self.kind = kind
        self.name = name
        self.value = integer(value)
        self.bound = integer(bound)
        self.price = [0] * links
        self.multiplier = {}
        self.total = 0
        self.reached = 0
        self.level = decimal(name, kind) if kind in ("level", "cost") else None

    def add(self, demand, flow, paid, dist):
        """A demand: its flow or promise, the cost that it pays, and the length of its shortest
        path.
        """
        low, high = demand.rate
        light, heavy = demand.weight
        if self.kind == "class":
            light = heavy = (
                ONE if demand.of_class == self.name else self.multiplier.get(demand.of_class, 0)
            )
            flow = flow if demand.of_class == self.name else 0
        # Programs of value: the rate counts with the weight less the distance, if that is above 0.
        if self.kind in LINEAR:
            self.reached += light * flow - (paid if self.kind == "value" else 0)
            self.total += high * max(0, heavy - dist)
        # Least cost: the claimed share is carried; the rate counts with the distance.
        elif self.kind == "cost" and dist < CLOSED:
            need(
                flow * ONE >= self.level[1] * high,
                f"demand {demand.number} has a smaller share than is claimed",
            )
            self.reached += paid
            self.total += dist * low
        # Levels: the rate that the demand can have at the bound counts with the distance.
        elif self.kind == "level" and dist < CLOSED:
            grown = min(self.bound * self.level[0] * light // (SQUARE * ONE), low)
            grows = flow * ONE >= self.level[1] * heavy
            may_grow = flow * ONE >= self.level[0] * light
            self.total += dist * (grown if grows else min(grown, flow) if may_grow else flow)
        # Utilisation and served share: the share is carried; the rate counts with the distance.
        elif dist < CLOSED:
            share = self.value if self.kind == "concurrent" else SQUARE
            need(
                flow * SQUARE >= share * high,
                f"demand {demand.number} has a smaller share than is claimed",
            )
            self.total += dist * low

    def conclude(self, capacity, carried, left_out):
        """The sentence that is proved; ``carried`` is the flow of each class."""
        need(
            self.kind != "class" or {self.name, *self.multiplier} <= set(carried),
            "no demand has such a class",
        )
        # The bound that prices and multipliers prove.
        capacity_value = sum(y * up for y, (_, up) in zip(self.price, capacity))
        paid = (
            capacity_value
            + self.total
            - sum(m * carried[name] for name, m in self.multiplier.items())
        )
        need(
            self.kind not in LINEAR or self.reached >= self.value,
            f"{self.kind}: the flows do not reach the value",
        )
        need(
            self.kind != "cost" or self.reached <= self.value,
            "cost: the flows cost more than is claimed",
        )
        # The inequality of each kind of program.
        proves = {
            "level": self.value == SQUARE and self.total > capacity_value,
            "utilisation": self.bound == 0
            or self.total * SQUARE >= max(1, self.bound * capacity_value),
            "cost": self.total - capacity_value >= self.bound,
            "concurrent": self.bound >= SQUARE
            or self.bound * self.total >= max(1, SQUARE * capacity_value),
        }
        need(
            proves.get(self.kind, paid <= self.bound),
            f"{self.kind}: the prices prove no such bound",
        )
        is_least = self.kind in ("utilisation", "cost")
        low, high = (self.bound, self.value) if is_least else (self.value, self.bound)
        need(
            low <= high and (self.kind != "concurrent" or low <= SQUARE),
            f"{self.kind}: no such value exists",
        )
        return self.sentence(low, high, left_out)

    def sentence(self, low, high, left_out):
        """The sentence that is proved, with the least value rounded down and the largest one
        rounded up.
        """
        gap = -(-(high - low) * 10**8 // max(1, high)) / 10**6
        lower = low * 10**9 // SQUARE
        upper = -(-high * 10**9 // SQUARE)
        low, high = (f"{n // 10**9}.{n % 10**9:09}" for n in (lower, upper))
        kept_text = (
            f" while {', '.join(sorted(self.multiplier))} keep their flow"
            if self.multiplier
            else ""
        )
        kind = f"{self.kind} {self.name}" if self.kind in ("class", "level") else self.kind
        if self.kind == "cost":
            return (
                f"cost {self.name}: the cost is from {low} of all demand to {high} of flows that "
                f"carry at least {self.name} of every demand, gap {gap:.6f}%, {left_out} demands "
                "without a path"
            )
        return (
            f"{kind}{kept_text}: the optimum is from {low} to {high}, gap {gap:.6f}%, {left_out} "
            "demands without a path"
        )


class Demand:
    """A row of the matrix; rate and weight are rounded down and up."""

    def __init__(self, number, row):
        self.number = number
        self.source = row["source"]
        self.target = row["target"]
        self.rate = decimal(row["rate"], f"rate of demand {number}")
        self.weight = (
            decimal(row["weight"], f"weight of demand {number}")
            if row.get("weight")
            else (ONE, ONE)
        )
        self.of_class = quote(row["class"], safe="") if row.get("class") else ""


class Flows:
    """The flows of all demands, and what they add up to: loads of links, flow of each class, the
    list of paths.
    """

    def __init__(self, network, programs, over_all, has_groups):
        self.network = network
        self.programs = programs
        self.over_all = over_all
        self.has_groups = has_groups
        self.kinds = {program.kind for program in programs}
        self.lengths = [network.lengths(program) for program in programs]
        self.length_of = [lengths.__getitem__ for lengths in self.lengths]
        self.load = [0] * len(network.start)
        self.carried = {}
        self.left_out = 0
        self.listed = hashlib.sha256()
        # Source of the last demand, and the distances from there under each program.
        self.source = None
        self.reach = []

    def add(self, demand, line):
        """Add a demand by its line: its number, multipliers of groups (@group:number), flow:links
        of each path.
        """
        name, *words = line.split(" ")
        need(
            name == str(demand.number),
            f"expected the flows of demand {demand.number}, got {name[:40]!r}",
        )
        flow = 0
        paid = 0
        listed = name
        lost = {}
        multipliers = {}
        distance = self.shortest(demand)
        for word in words:
            amount, _, text = word.partition(":")
            # The multiplier of a group, "" for no failure, before the first path.
            if amount[:1] == "@" and listed == name:
                multipliers[amount[1:]] = integer(text)
                continue
            # The flow of a path: its load, cost and length, and the groups that it fails with.
            amount_sent = integer(amount)
            along = self.network.links_of(text, demand)
            listed = f"{listed} {text}"
            flow += amount_sent
            paid += self.send(amount_sent, along)
            if not self.over_all:
                distance = [
                    min(shortest, sum(map(length, along)))
                    for shortest, length in zip(distance, self.length_of)
                ]
            if self.has_groups:
                self.lose(demand, amount_sent, along, multipliers, lost)
        # Sums over the demands.
        self.listed.update(f"{listed}\n".encode())
        self.carried[demand.of_class] = self.carried.get(demand.of_class, 0) + flow
        self.left_out += min(distance) >= CLOSED and demand.rate[1] > 0
        # A promise is what every group leaves, and its price the sum of the multipliers.
        if "promise" in self.kinds:
            distance = [sum(multipliers.values())]
            flow = min(demand.rate[0], flow - max(lost.values(), default=0))
        # Check the rate, and add the demand to every program.
        ends = f"from {demand.source} to {demand.target}"
        is_within = "utilisation" in self.kinds or flow <= demand.rate[0]
        need(is_within, f"demand {demand.number} {ends} exceeds its rate")
        for program, dist in zip(self.programs, distance):
            program.add(demand, flow, paid, dist)

    def shortest(self, demand):
        """The length of the demand's shortest path under each program, over all paths; CLOSED
        before any is listed.
        """
        if not self.over_all:
            return [CLOSED] * len(self.programs)
        if demand.source != self.source:
            self.source = demand.source
            self.reach = [
                distances(self.source, self.network.outgoing, length) for length in self.lengths
            ]
        return [best.get(demand.target, CLOSED) for best in self.reach]

    def send(self, amount, along):
        """Put flow on the links of a path; the cost that it pays, rounded up."""
        for i in along if amount else ():
            self.load[i] += amount
        cost = self.network.cost
        return amount * sum(cost[i][1] for i in along) if self.network.has_cost else 0

    def lose(self, demand, amount, along, multipliers, lost):
        """Note what each group takes of a promise; the multipliers of the others are at most the
        path's price.
        """
        hit = set().union(*(self.network.groups_of.get(i, ()) for i in along))
        pays = sum(m for group, m in multipliers.items() if group not in hit)
        is_paid = pays <= sum(self.lengths[0][i] for i in along)
        need(is_paid, f"demand {demand.number}: multipliers above a path's price")
        lost.update((group, lost.get(group, 0) + amount) for group in hit)

    def check_loads(self):
        """No link carries more than its capacity, or than the claimed utilisation of it."""
        network = self.network
        max_utilisation = self.programs[0].value if "utilisation" in self.kinds else SQUARE
        for i, (load, (capacity, _)) in enumerate(zip(self.load, network.capacity)):
            if load * SQUARE > max_utilisation * capacity:
                ends = f"{network.start[i]} to {network.end[i]}"
                raise ValueError(f"link {i}, {ends}: {load / ONE} of {capacity / ONE} Gbit/s")


def read_scope(lines, files):
    """The line that says over which paths the claims are, behind the hashes of the files."""
    hashes = [hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest() for file in files]
    head = [next(lines, "") for _ in range(3)]
    is_same = head == ["teal-proof 1", f"network {hashes[0]}", f"matrix {hashes[1]}"]
    need(is_same, "the proof is not of these files")
    return next(lines, "")


def read_programs(lines, network):
    """The claims, with their prices and multipliers, up to the line "flows"."""
    programs = []
    for key, *words in (line.split(" ") for line in lines):
        last = programs[-1] if programs else None
        if key == "program" and len(words) == 4:
            programs.append(Program(len(network.start), *words))
        elif key == "prices" and programs:
            for link, _, price in (word.partition(":") for word in words):
                need(link in network.number, f"prices: there is no link {link[:40]!r}")
                last.price[network.number[link]] = integer(price)
        elif key == "multiplier" and programs and last.kind == "class" and words[:1] != [last.name]:
            last.multiplier.update({of_class: integer(number) for of_class, number in [words]})
        else:
            need(
                [key, *words] == ["flows"] and programs,
                f"{key[:60]!r} was not expected before the flows",
            )
            break
    return programs


def check(network, matrix, proof, groups=None):
    """The sentences that the files prove; raises ValueError where they do not."""
    # Read the claims of the proof.
    links = Network(network, groups)
    with (gzip.open if proof.endswith(".gz") else open)(
        proof, "rt", encoding="utf-8", newline="\n"
    ) as stream:
        lines = (line.rstrip("\n") for line in stream)
        scope = read_scope(lines, (network, matrix))
        over_all = scope == "paths all"
        programs = read_programs(lines, links)
        kinds = {program.kind for program in programs}
        need(
            len(programs) == 1 or not kinds & {"utilisation", "promise", "cost"},
            "this program must be the only one",
        )
        need(
            "promise" not in kinds or (groups and not over_all),
            "promises need GROUPS, and listed paths",
        )
        # Add the flows of every demand of the matrix.
        flows = Flows(links, programs, over_all, bool(groups))
        for number, row in enumerate(table(matrix, "source", "target", "rate")):
            flows.add(Demand(number, row), next(lines, ""))
        need(
            next(lines, "") == "end" and next(lines, None) is None,
            "the file does not end where it should",
        )
    need(
        over_all or scope == f"paths listed {flows.listed.hexdigest()}",
        "the hash does not match the listed paths",
    )
    # Check the capacities, then conclude every claim.
    flows.check_loads()
    conclusion = "proved over all paths: " if over_all else "proved over the listed paths: "
    return [
        conclusion + program.conclude(links.capacity, flows.carried, flows.left_out)
        for program in programs
    ]


if __name__ == "__main__":
    try:
        print("\n".join(check(*sys.argv[1:])) if len(sys.argv) in (4, 5) else sys.exit(__doc__))
    except Exception as error:  # whatever fails proves nothing
        sys.exit(f"NOT PROVED: {ascii(str(error))[1:-1]}")
