"""Check the proof of an allocation: python check.py NETWORK MATRIX PROOF[.gz] [GROUPS]

Python 3.8 is enough.  docs/proofs.md has the theorems and the format of PROOF; the other files are
the checking user's:

    NETWORK  source,target,capacity[,cost]
             a directed link a row, numbered from 0; capacity 0 closes it
    MATRIX   source,target,rate[,weight][,class]
             a demand a row, numbered from 0; without a weight it is 1
    GROUPS   group,link
             links that fail together, for promises (guaranteed rates) that survive each failure

All numbers are integers: multiples of 2^-60, or of 2^-120 for claimed values and bounds.  Numbers
of the user's files are rounded against the claim, so that every proved statement is true of the
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
LINEAR = ("value", "class", "promise")  # programs whose value is a sum of weight times flow
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
    """Return the length of the shortest path from a node to each node that it reaches (Dijkstra).

    outgoing: (link, target) of the links from each node; length: length of each link.
    """
    distance = {}
    queue = [(0, source)]
    while queue:
        length_so_far, node = heapq.heappop(queue)
        if node not in distance:
            distance[node] = length_so_far
            for link, target in outgoing.get(node, ()):
                heapq.heappush(queue, (length_so_far + length[link], target))
    return distance


class Network:
    """The links of a network: start and end node, and capacity and cost, by the index of the link.

    Capacity and cost are pairs (rounded down, rounded up).  has_cost: whether some link has a cost;
    index: index of each link by its text; outgoing: (link, target) of the links from each node;
    link_groups: names of the groups that include a link, by its index.
    """

    def __init__(self, file, groups):
        """Read the tables of the links and, unless it is None, of the groups."""
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
        # Links by their text, and links from each node.
        self.index = {str(i): i for i in range(len(rows))}
        self.outgoing = {}
        for i, node in enumerate(self.start):
            self.outgoing.setdefault(node, []).append((i, self.end[i]))
        # Groups of each link.
        self.link_groups = {}
        for row in table(groups, "group", "link") if groups else ():
            need(row["link"] in self.index, f"group {row['group']}: there is no link {row['link']}")
            self.link_groups.setdefault(self.index[row["link"]], set()).add(row["group"])

    def lengths(self, program):
        """Return the length of each link: its price in a program, and its cost if costs count.

        Costs count in the programs value and cost; links without capacity have the length CLOSED.
        """
        costs = [low if program.kind in ("value", "cost") else 0 for low, _ in self.cost]
        pairs = zip(program.price, costs, self.capacity)
        return [price + cost if up else CLOSED for price, cost, (_, up) in pairs]

    def path_links(self, path, demand):
        """Return the indices of the links of a path such as "3,17,4".

        Raise ValueError unless the path leads from the source of a demand to its target.
        """
        links = [self.index.get(i) for i in path.split(",")]
        ends = [demand.source, *map(self.end.__getitem__, links)] if None not in links else []
        if not ends or ends != [*map(self.start.__getitem__, links), demand.target]:
            text = f"the links {path[:60]} do not lead from {demand.source} to {demand.target}"
            raise ValueError(f"demand {demand.index}: {text}")
        return links


class Program:
    """A claim about a program: a value that the flows achieve, and a bound that prices prove.

    kind: value, class, promise, level, utilisation, concurrent or cost; name: name of the class,
    level, or served share of a cost, else "-"; value, bound: claimed numbers in units of 2^-120;
    price: price of each link; multiplier: factor on the flow of each higher class, which stays;
    demand_sum: sum of the terms of the demands in the dual bound; achieved_value: value of the
    flows; level: the name as a number (rounded down, rounded up), for a level or a cost.
    """

    def __init__(self, links, kind, name, value, bound):
        """Check the words of a line "program"; links is the number of links of the network."""
        unnamed_programs = ("value -", "promise -", "utilisation -", "concurrent -")
        need(
            kind in ("class", "level", "cost") or f"{kind} {name}" in unnamed_programs,
            f"{kind[:40]!r} {name[:40]!r} is not a program",
        )
        self.kind = kind
        self.name = name
        self.value = integer(value)
        self.bound = integer(bound)
        self.price = [0] * links
        self.multiplier = {}
        self.demand_sum = 0
        self.achieved_value = 0
        self.level = decimal(name, kind) if kind in ("level", "cost") else None

    def add(self, demand, flow, flow_cost, shortest_length):
        """Add a demand to the value of the flows, and its term to the dual bound.

        flow: flow or promise of the demand; flow_cost: cost of the flow; shortest_length: length of
        the demand's shortest path under the program's prices.
        """
        rate_down, rate_up = demand.rate
        weight_down, weight_up = demand.weight
        # In the program of a class, demands of the class have the weight 1, demands of higher
        # classes their multiplier, and all others 0; only flow of the class has value.
        if self.kind == "class":
            weight_down = weight_up = (
                ONE if demand.class_name == self.name else self.multiplier.get(demand.class_name, 0)
            )
            flow = flow if demand.class_name == self.name else 0
        # Value: the term is rate * max(0, weight - shortest length).
        if self.kind in LINEAR:
            self.achieved_value += weight_down * flow - (flow_cost if self.kind == "value" else 0)
            self.demand_sum += rate_up * max(0, weight_up - shortest_length)
        # Least cost: the flow must be the claimed share of the rate; the term is rate * length.
        elif self.kind == "cost" and shortest_length < CLOSED:
            need(
                flow * ONE >= self.level[1] * rate_up,
                f"demand {demand.index} has a smaller share than is claimed",
            )
            self.achieved_value += flow_cost
            self.demand_sum += shortest_length * rate_down
        # Fair level: the term is length * the rate to which the demand grows if its level grows by
        # the factor of the bound.
        elif self.kind == "level" and shortest_length < CLOSED:
            # Members of the level get the grown rate; others that could grow at most their flow.
            rate_at_bound = min(
                self.bound * self.level[0] * weight_down // (SQUARE * ONE), rate_down
            )
            is_in_level = flow * ONE >= self.level[1] * weight_up
            may_grow = flow * ONE >= self.level[0] * weight_down
            self.demand_sum += shortest_length * (
                rate_at_bound if is_in_level else min(rate_at_bound, flow) if may_grow else flow
            )
        # Utilisation, served share: the flow must be the claimed share; the term is rate * length.
        elif shortest_length < CLOSED:
            min_share = self.value if self.kind == "concurrent" else SQUARE
            need(
                flow * SQUARE >= min_share * rate_up,
                f"demand {demand.index} has a smaller share than is claimed",
            )
            self.demand_sum += shortest_length * rate_down

    def conclude(self, capacity, carried, num_without_path):
        """Check value and bound, and return the proved sentence; raise ValueError if one fails.

        capacity: capacity (rounded down, rounded up) of each link; carried: flow of each class;
        num_without_path: number of demands without a path.
        """
        need(
            self.kind != "class" or {self.name, *self.multiplier} <= set(carried),
            "no demand has such a class",
        )
        # Dual bound: value of all capacity at the prices, plus the terms of the demands, less
        # multiplier times flow of the higher classes.
        capacity_value = sum(y * up for y, (_, up) in zip(self.price, capacity))
        proved_bound = (
            capacity_value
            + self.demand_sum
            - sum(m * carried[name] for name, m in self.multiplier.items())
        )
        need(
            self.kind not in LINEAR or self.achieved_value >= self.value,
            f"{self.kind}: the flows do not reach the claimed value",
        )
        need(
            self.kind != "cost" or self.achieved_value <= self.value,
            "cost: the flows cost more than the claimed value",
        )
        # The inequality that proves the bound of a level, utilisation, cost or served share; for
        # all other programs the dual bound must be at most the claimed one.
        proves = {
            "level": self.value == SQUARE and self.demand_sum > capacity_value,
            "utilisation": self.bound == 0
            or self.demand_sum * SQUARE >= max(1, self.bound * capacity_value),
            "cost": self.demand_sum - capacity_value >= self.bound,
            "concurrent": self.bound >= SQUARE
            or self.bound * self.demand_sum >= max(1, SQUARE * capacity_value),
        }
        need(
            proves.get(self.kind, proved_bound <= self.bound),
            f"{self.kind}: the prices do not prove the claimed bound",
        )
        is_minimum = self.kind in ("utilisation", "cost")
        low, high = (self.bound, self.value) if is_minimum else (self.value, self.bound)
        need(
            low <= high and (self.kind != "concurrent" or low <= SQUARE),
            f"{self.kind}: the claimed value contradicts the bound",
        )
        return self.sentence(low, high, num_without_path)

    def sentence(self, low, high, num_without_path):
        """Return the proved sentence, with low rounded down and high rounded up to 9 decimals.

        low, high: limits of the optimum in units of 2^-120; num_without_path: number of demands
        without a path.
        """
        # Gap in percent, rounded up to 6 decimals.
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
                f"carry at least {self.name} of every demand, gap {gap:.6f}%, "
                f"{num_without_path} demands without a path"
            )
        return (
            f"{kind}{kept_text}: the optimum is from {low} to {high}, gap {gap:.6f}%, "
            f"{num_without_path} demands without a path"
        )


class Demand:
    """A demand, from a row of the matrix: index, source, target, rate, weight and class_name.

    Rate and weight are pairs (rounded down, rounded up) in units of 2^-60.
    """

    def __init__(self, index, row):
        """Read a row of the matrix, a dictionary by column; index counts the rows from 0."""
        self.index = index
        self.source = row["source"]
        self.target = row["target"]
        self.rate = decimal(row["rate"], f"rate of demand {index}")
        self.weight = (
            decimal(row["weight"], f"weight of demand {index}") if row.get("weight") else (ONE, ONE)
        )
        self.class_name = quote(row["class"], safe="") if row.get("class") else ""


class Flows:
    """Sums over the flows of all demands, and the lengths of the links under each program.

    load: flow on each link; carried: flow of each class; num_without_path: number of demands
    without a path; listed_digest: hash of all listed paths; lengths: for each program the length of
    each link; link_length: for each program the function that returns the length of a link.
    """

    def __init__(self, network, programs, is_over_all_paths, has_groups):
        """Begin with sums of 0, over all paths of the network or over the listed ones."""
        self.network = network
        self.programs = programs
        self.is_over_all_paths = is_over_all_paths
        self.has_groups = has_groups
        self.kinds = {program.kind for program in programs}
        self.lengths = [network.lengths(program) for program in programs]
        self.link_length = [lengths.__getitem__ for lengths in self.lengths]
        self.load = [0] * len(network.start)
        self.carried = {}
        self.num_without_path = 0
        self.listed_digest = hashlib.sha256()
        # Source of the last demand, and for each program the distance from there to each node.
        self.source = None
        self.source_distances = []

    def add(self, demand, line):
        """Read a demand's line of the proof, and add its flows to the sums and to each program.

        The line has the demand's index, multipliers of groups of links that fail together
        (@group:multiplier), and flow:links of each path, such as ``7 @g1:3 120:0,4,9``.  The
        demand's rate is ``rate[0]`` rounded down, and ``rate[1]`` rounded up.  A path over a failed
        link has a length of at least ``CLOSED``.
        """
        name, *words = line.split(" ")
        need(
            name == str(demand.index),
            f"expected the flows of demand {demand.index}, got {name[:40]!r}",
        )
        # Flow of the demand and its cost, its listed paths, the flow lost under each group, the
        # multiplier of each group, and for each program the length of the shortest path.
        flow = 0
        flow_cost = 0
        path_list = name
        lost_by_group = {}
        multipliers = {}
        shortest_lengths = self.shortest_lengths(demand)
        for word in words:
            amount, _, text = word.partition(":")
            # Multiplier of a group ("" for no failure); all come before the first path.
            if amount[:1] == "@" and path_list == name:
                multipliers[amount[1:]] = integer(text)
                continue
            # Flow of a path: add its load, cost and length, and its loss under each failure.
            path_flow = integer(amount)
            links = self.network.path_links(text, demand)
            path_list = f"{path_list} {text}"
            flow += path_flow
            flow_cost += self.add_load(path_flow, links)
            if not self.is_over_all_paths:
                shortest_lengths = [
                    min(length, sum(map(link_length, links)))
                    for length, link_length in zip(shortest_lengths, self.link_length)
                ]
            if self.has_groups:
                self.add_losses(demand, path_flow, links, multipliers, lost_by_group)
        # Sums over the demands.
        self.listed_digest.update(f"{path_list}\n".encode())
        self.carried[demand.class_name] = self.carried.get(demand.class_name, 0) + flow
        self.num_without_path += min(shortest_lengths) >= CLOSED and demand.rate[1] > 0
        # A promise is the flow that survives every group; its price is the sum of the multipliers.
        # From here on ``flow`` is the promise.
        if "promise" in self.kinds:
            shortest_lengths = [sum(multipliers.values())]
            flow = min(demand.rate[0], flow - max(lost_by_group.values(), default=0))
        # Check the rate, and add the demand to every program.
        ends = f"from {demand.source} to {demand.target}"
        is_within = "utilisation" in self.kinds or flow <= demand.rate[0]
        need(is_within, f"demand {demand.index} {ends} exceeds its rate")
        for program, shortest_length in zip(self.programs, shortest_lengths):
            program.add(demand, flow, flow_cost, shortest_length)

    def shortest_lengths(self, demand):
        """Return the length of the demand's shortest path in the network under each program.

        Where only listed paths count, it is CLOSED: the lengths of the listed paths replace it.
        """
        if not self.is_over_all_paths:
            return [CLOSED] * len(self.programs)
        if demand.source != self.source:
            self.source = demand.source
            self.source_distances = [
                distances(self.source, self.network.outgoing, length) for length in self.lengths
            ]
        return [best.get(demand.target, CLOSED) for best in self.source_distances]

    def add_load(self, path_flow, links):
        """Add the flow of a path to the loads of its links; return its cost, rounded up."""
        for i in links if path_flow else ():
            self.load[i] += path_flow
        cost = self.network.cost
        return path_flow * sum(cost[i][1] for i in links) if self.network.has_cost else 0

    def add_losses(self, demand, path_flow, links, multipliers, lost_by_group):
        """Add the flow of a path to the demand's loss under each group that includes a link of it.

        The multipliers of the other groups must sum to at most the price of the path.
        """
        failed_groups = set().union(*(self.network.link_groups.get(i, ()) for i in links))
        multiplier_sum = sum(
            multiplier for group, multiplier in multipliers.items() if group not in failed_groups
        )
        is_paid = multiplier_sum <= sum(self.lengths[0][i] for i in links)
        need(is_paid, f"demand {demand.index}: multipliers exceed the price of a path")
        lost_by_group.update(
            (group, lost_by_group.get(group, 0) + path_flow) for group in failed_groups
        )

    def check_loads(self):
        """Raise ValueError if the load of a link exceeds its capacity.

        Where a utilisation is claimed, the limit is the capacity times this utilisation.
        """
        network = self.network
        max_utilisation = self.programs[0].value if "utilisation" in self.kinds else SQUARE
        for i, (load, (capacity, _)) in enumerate(zip(self.load, network.capacity)):
            if load * SQUARE > max_utilisation * capacity:
                ends = f"{network.start[i]} to {network.end[i]}"
                raise ValueError(f"link {i}, {ends}: {load / ONE} of {capacity / ONE} Gbit/s")


def read_scope(lines, files):
    """Check the first lines of the proof against the hashes of the files; return the next line.

    The next line says whether claims are over all paths of the network or over the listed ones.
    """
    hashes = [hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest() for file in files]
    head = [next(lines, "") for _ in range(3)]
    is_same = head == ["teal-proof 1", f"network {hashes[0]}", f"matrix {hashes[1]}"]
    need(is_same, "the proof is not of these files")
    return next(lines, "")


def read_programs(lines, network):
    """Read the programs of a proof, with claims, prices and multipliers, up to the line "flows"."""
    programs = []
    for key, *words in (line.split(" ") for line in lines):
        last = programs[-1] if programs else None
        if key == "program" and len(words) == 4:
            programs.append(Program(len(network.start), *words))
        elif key == "prices" and programs:
            for link, _, price in (word.partition(":") for word in words):
                need(link in network.index, f"prices: there is no link {link[:40]!r}")
                last.price[network.index[link]] = integer(price)
        elif key == "multiplier" and programs and last.kind == "class" and words[:1] != [last.name]:
            last.multiplier.update(
                {class_name: integer(multiplier) for class_name, multiplier in [words]}
            )
        else:
            need(
                [key, *words] == ["flows"] and programs,
                f"{key[:60]!r} was not expected before the flows",
            )
            break
    return programs


def check(network, matrix, proof, groups=None):
    """Return the sentences that the files prove; raise ValueError if a claim is not proved.

    network, matrix, proof, groups: paths of the files; groups has the links of each failure group,
    and is None unless the proof claims a promise: the flow that survives every group.
    """
    # Read the claims of the proof.
    network_data = Network(network, groups)
    with (gzip.open if proof.endswith(".gz") else open)(
        proof, "rt", encoding="utf-8", newline="\n"
    ) as stream:
        lines = (line.rstrip("\n") for line in stream)
        scope = read_scope(lines, (network, matrix))
        # The scope is "paths all", or "paths listed HASH".
        is_over_all_paths = scope == "paths all"
        programs = read_programs(lines, network_data)
        kinds = {program.kind for program in programs}
        need(
            len(programs) == 1 or not kinds & {"utilisation", "promise", "cost"},
            "a utilisation, promise or cost must be the only program of a proof",
        )
        need(
            "promise" not in kinds or (groups and not is_over_all_paths),
            "promises need the file GROUPS, and listed paths",
        )
        # Add the flows of every demand of the matrix.
        flows = Flows(network_data, programs, is_over_all_paths, bool(groups))
        for index, row in enumerate(table(matrix, "source", "target", "rate")):
            flows.add(Demand(index, row), next(lines, ""))
        need(
            next(lines, "") == "end" and next(lines, None) is None,
            "the proof does not stop at the line 'end' after the last demand",
        )
    need(
        is_over_all_paths or scope == f"paths listed {flows.listed_digest.hexdigest()}",
        "the hash of the listed paths is not the one in the proof",
    )
    # Check the capacities, then conclude every claim.
    flows.check_loads()
    conclusion = (
        "proved over all paths: " if is_over_all_paths else "proved over the listed paths: "
    )
    return [
        conclusion + program.conclude(network_data.capacity, flows.carried, flows.num_without_path)
        for program in programs
    ]


if __name__ == "__main__":
    try:
        print("\n".join(check(*sys.argv[1:])) if len(sys.argv) in (4, 5) else sys.exit(__doc__))
    except Exception as error:  # whatever fails proves nothing
        sys.exit(f"NOT PROVED: {ascii(str(error))[1:-1]}")
