"""Check that no purchase of capacity costs less.

    python check_purchase.py NETWORK DEMANDS FAILURES PROOF

Python 3.8 is enough.  docs/proofs.md has the theorem and the format of PROOF; the other files are
the checking user's:

    NETWORK   source,target,capacity,cable,cost[,most]
              a directed link a row, numbered from 0, before the purchase
    DEMANDS   matrix,source,target,rate
              the demands of each matrix that PROOF names
    FAILURES  failure,link
              the links of each failure that PROOF names

A purchase adds one amount to every link of a cable, at the cable's cost for each Gbit/s, and at
most ``most`` of it.
"""

import csv
import hashlib
import heapq
import pathlib
import re
import sys

BITS = 60  # binary digits after the point of prices and decimals
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
    """The least sum of lengths from a node to each node that it reaches by links with a length
    (Dijkstra).
    """
    best, queue = {}, [(0, source)]
    while queue:
        so_far, node = heapq.heappop(queue)
        if node not in best:
            best[node] = so_far
            for link, target in outgoing.get(node, ()):
                if length[link] is not None:
                    heapq.heappush(queue, (so_far + length[link], target))
    return best


class Instance:
    """The checking user's files: links, cables, demands and failures.

    All decimals are rounded against the claim: capacities up, costs and rates down.
    """

    def __init__(self, network, demands, failures):
        self.links = list(table(network, "source", "target", "capacity", "cable", "cost"))
        self.hashes = [
            hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest()
            for file in (network, demands, failures)
        ]
        self.read_links()
        self.read_demands(demands)
        self.read_failures(failures)

    def read_links(self):
        """Capacity of each link, outgoing links of each node, and cost and limit of each cable."""
        self.capacity = [
            decimal(row["capacity"], f"capacity of link {i}")[1] for i, row in enumerate(self.links)
        ]
        self.outgoing, self.cost, self.most = {}, {}, {}
        for i, row in enumerate(self.links):
            self.outgoing.setdefault(row["source"], []).append((i, row["target"]))
            price, limit = decimal(row["cost"], f"cost of link {i}")[0], row.get("most") or None
            need(
                self.cost.setdefault(row["cable"], price) == price,
                f"cable {row['cable']}: its links have different costs",
            )
            need(
                self.most.setdefault(row["cable"], limit) == limit,
                f"cable {row['cable']}: its links have different limits",
            )

    def read_demands(self, demands):
        """Source, target and rate of the demands of each matrix."""
        self.rates = {}
        for row in table(demands, "matrix", "source", "target", "rate"):
            low = decimal(row["rate"], f"a rate of matrix {row['matrix']}")[0]
            self.rates.setdefault(row["matrix"], []).append((row["source"], row["target"], low))

    def read_failures(self, failures):
        """Links of each failure."""
        self.down = {}
        for row in table(failures, "failure", "link"):
            need(
                integer(row["link"]) < len(self.links),
                f"failure {row['failure']}: there is no link {row['link']}",
            )
            self.down.setdefault(row["failure"], set()).add(int(row["link"]))

    def prices(self, failure, words):
        """Price of each link under a failure, from words such as 3:17; None for a failed link."""
        failed = self.down.get(failure, set()) if failure != "-" else set()
        price = [None if i in failed else 0 for i in range(len(self.links))]
        for link, _, number in (word.partition(":") for word in words):
            need(
                integer(link) < len(self.links) and int(link) not in failed,
                f"cut: link {link[:40]} does not work",
            )
            price[int(link)] = integer(number)
        return price

    def distance_sum(self, matrix, price):
        """The sum of rate times distance over the demands of a matrix, and the number of demands
        that the failure cuts off.
        """
        total, cut_off, reach = 0, 0, {}
        for source, target, low in self.rates[matrix]:
            reach[source] = reach.get(source) or distances(source, self.outgoing, price)
            total += low * reach[source][target] if target in reach[source] else 0
            cut_off += low > 0 and target not in reach[source]
        return total, cut_off

    def excess_cost(self, paid):
        """The most that purchases up to the limits of cables may save, where cuts pay more for a
        cable than it costs.
        """
        total = 0
        for cable, price in paid.items():
            excess = price - (self.cost[cable] << BITS)
            if excess > 0:
                need(
                    self.most[cable] is not None,
                    f"cable {cable}: the cuts pay more than it costs, and nothing limits it",
                )
                total += excess * decimal(self.most[cable], f"limit of cable {cable}")[1]
        return total


def read_proof(file, hashes):
    """The utilisation, cost and bound of PROOF as texts, and the words of each cut."""
    with open(file, encoding="utf-8", newline="\n") as stream:
        lines = [line.rstrip("\n") for line in stream]
    head = [
        "teal-purchase 1",
        *(f"{name} {digest}" for name, digest in zip(("network", "demands", "failures"), hashes)),
    ]
    need(lines[:4] == head, "the proof is not of these files")
    words = [line.split(" ") for line in lines[4:]]
    need(
        len(words) >= 4 and [fields[0] for fields in words[:3]] == ["limit", "cost", "bound"],
        "limit, cost and bound",
    )
    need(
        all(len(fields) == 2 for fields in words[:3]) and words[-1] == ["end"],
        "the file does not end where it should",
    )
    return (*(value for _, value in words[:3]), words[3:-1])


def check(network, demands, failures, proof):
    """The sentence that the files prove; raises ValueError where they do not."""
    instance = Instance(network, demands, failures)
    utilisation, cost, bound, cuts = read_proof(proof, instance.hashes)
    limit = decimal(utilisation, "limit")[1]
    claimed, bound = decimal(cost, "cost")[1], integer(bound)
    # Sum the cuts, in units of 2^-180: distances of demands, minus the prices of the capacity.
    proved, left_out, paid = 0, 0, {}
    for key, *rest in cuts:
        need(key == "cut" and len(rest) > 2, f"{key[:40]!r} was not expected")
        matrix, failure, *words = rest
        need(matrix in instance.rates, f"there is no matrix {matrix[:40]!r}")
        need(failure == "-" or failure in instance.down, f"there is no failure {failure[:40]!r}")
        price = instance.prices(failure, words)
        for i, y in enumerate(price):
            if y:
                proved -= limit * y * instance.capacity[i]
                cable = instance.links[i]["cable"]
                paid[cable] = paid.get(cable, 0) + limit * y
        total, cut_off = instance.distance_sum(matrix, price)
        proved += total << BITS
        left_out += cut_off
    # Compare with the claim.
    proved -= instance.excess_cost(paid)
    need(proved >= bound << 2 * BITS, "the cuts prove no such bound")
    need(claimed >= bound, "the purchase costs less than every purchase")
    low, high = (
        f"{n // 10**9}.{n % 10**9:09}" for n in (bound * 10**9 >> BITS, -(-claimed * 10**9 >> BITS))
    )
    gap = -(-(claimed - bound) * 10**8 // max(1, claimed)) / 10**6
    scope = (
        "no purchase with which the matrices fit under the failures at a utilisation of "
        f"{utilisation} costs less"
    )
    return (
        f"proved: {scope} than {low}; claimed is {high}, gap {gap:.6f}%, {left_out} demands cut off"
    )


if __name__ == "__main__":
    try:
        print(check(*sys.argv[1:]) if len(sys.argv) == 5 else sys.exit(__doc__))
    except Exception as error:  # whatever fails proves nothing
        sys.exit(f"NOT PROVED: {ascii(str(error))[1:-1]}")
