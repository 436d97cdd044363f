"""Check a proved lower bound on the cost of a capacity expansion (a purchase).

    python check_purchase.py NETWORK DEMANDS FAILURES PROOF

Python 3.8 is enough.  docs/proofs.md has the theorem and the format of PROOF.  The other files
state the problem, and whoever checks the proof compares them with their own data:

    NETWORK   source,target,capacity,cable,cost[,most]
              a directed link a row, numbered from 0, before the purchase
    DEMANDS   matrix,source,target,rate
              the demands of each matrix that PROOF uses
    FAILURES  failure,link
              the links of each failure that PROOF uses

A purchase adds the same Gbit/s to every link of a cable, at most ``most``, at the cable's cost per
Gbit/s.
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
    """Return the least sum of lengths from a node to each node that it reaches (Dijkstra).

    Args:
        source: the node.
        outgoing: (link, target) pairs of the links out of each node.
        length: length of each link; None for a failed link.
    """
    distance, queue = {}, [(0, source)]
    while queue:
        length_so_far, node = heapq.heappop(queue)
        if node not in distance:
            distance[node] = length_so_far
            for link, target in outgoing.get(node, ()):
                if length[link] is not None:
                    heapq.heappush(queue, (length_so_far + length[link], target))
    return distance


class Instance:
    """The problem of the user's files: links, cables, demands and failures.

    All decimals are rounded against the claim, in units of 2^-60: capacities up, costs and rates
    down.

    Attributes:
        links: rows of NETWORK, as dictionaries.
        hashes: SHA-256 of the files of network, demands and failures.
        capacity: capacity of each link.
        outgoing: (link, target) pairs of the links out of each node.
        cost, most: cost and limit of each cable; the limit is a text, or None.
        rates: (source, target, rate) of the demands, by name of the matrix.
        down: indices of the failed links, by name of the failure.
    """

    def __init__(self, network, demands, failures):
        """Read the files of network, demands and failures, and compute their hashes."""
        self.links = list(table(network, "source", "target", "capacity", "cable", "cost"))
        self.hashes = [
            hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest()
            for file in (network, demands, failures)
        ]
        self.read_links()
        self.read_demands(demands)
        self.read_failures(failures)

    def read_links(self):
        """Read capacity of each link, outgoing links of each node, cost and limit of each cable."""
        self.capacity = [
            decimal(row["capacity"], f"capacity of link {i}")[1] for i, row in enumerate(self.links)
        ]
        self.outgoing, self.cost, self.max_added = {}, {}, {}
        for i, row in enumerate(self.links):
            self.outgoing.setdefault(row["source"], []).append((i, row["target"]))
            price, limit = decimal(row["cost"], f"cost of link {i}")[0], row.get("most") or None
            need(
                self.cost.setdefault(row["cable"], price) == price,
                f"cable {row['cable']}: its links have different costs",
            )
            need(
                self.max_added.setdefault(row["cable"], limit) == limit,
                f"cable {row['cable']}: its links have different limits",
            )

    def read_demands(self, demands):
        """Read the file of demands: source, target and rate, rounded down, by matrix."""
        self.rates = {}
        for row in table(demands, "matrix", "source", "target", "rate"):
            low = decimal(row["rate"], f"a rate of matrix {row['matrix']}")[0]
            self.rates.setdefault(row["matrix"], []).append((row["source"], row["target"], low))

    def read_failures(self, failures):
        """Read the file of failures: the indices of the failed links, by failure."""
        self.down = {}
        for row in table(failures, "failure", "link"):
            need(
                integer(row["link"]) < len(self.links),
                f"failure {row['failure']}: there is no link {row['link']}",
            )
            self.down.setdefault(row["failure"], set()).add(int(row["link"]))

    def prices(self, failure, words):
        """Return the price of each link under a failure, in units of 2^-60; None for a failed link.

        Args:
            failure: name of the failure; "-" for none.
            words: prices as LINK:PRICE, such as 3:17; other links have a price of 0.
        """
        failed = self.down.get(failure, set()) if failure != "-" else set()
        price = [None if i in failed else 0 for i in range(len(self.links))]
        for link, _, number in (word.partition(":") for word in words):
            need(
                integer(link) < len(self.links) and int(link) not in failed,
                f"cut: link {link[:40]} does not exist or has failed",
            )
            price[int(link)] = integer(number)
        return price

    def distance_sum(self, matrix, price):
        """Return the sum of rate times distance over the demands of a matrix, and the number of
        demands that the failure disconnects.

        Args:
            matrix: name of the matrix.
            price: price of each link; None for a failed link.
        """
        total, disconnected, distance_from = 0, 0, {}
        for source, target, low in self.rates[matrix]:
            distance_from[source] = distance_from.get(source) or distances(
                source, self.outgoing, price
            )
            total += low * distance_from[source][target] if target in distance_from[source] else 0
            disconnected += low > 0 and target not in distance_from[source]
        return total, disconnected

    def excess_cost(self, paid):
        """Return the excess of cable prices over costs times the limits of cables, summed.

        It is deducted from the bound, since an expansion may add capacity up to the limits.

        Args:
            paid: price of each cable, summed over all cuts.
        """
        total = 0
        for cable, price in paid.items():
            excess = price - (self.cost[cable] << BITS)
            if excess > 0:
                need(
                    self.max_added[cable] is not None,
                    f"cable {cable}: its price in the cuts exceeds its cost, and it has no limit",
                )
                total += excess * decimal(self.max_added[cable], f"limit of cable {cable}")[1]
        return total


def read_proof(file, hashes):
    """Return utilisation limit, cost and bound of PROOF as texts, and the words of each cut.

    Args:
        file: the proof.
        hashes: SHA-256 of the files of network, demands and failures.
    """
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
        "the proof has no lines limit, cost and bound after the hashes",
    )
    need(
        all(len(fields) == 2 for fields in words[:3]) and words[-1] == ["end"],
        "the proof does not end with the line end, or a line has too many fields",
    )
    return (*(value for _, value in words[:3]), words[3:-1])


def check(network, demands, failures, proof):
    """Return the sentence that the files prove.

    Args:
        network, demands, failures, proof: names of the files.

    Raises:
        ValueError: the proof is wrong, or of other files.
    """
    instance = Instance(network, demands, failures)
    utilisation, cost, bound, cuts = read_proof(proof, instance.hashes)
    limit = decimal(utilisation, "limit")[1]
    claimed, bound = decimal(cost, "cost")[1], integer(bound)
    # Sum the cuts, in units of 2^-180: rates times distances, minus capacities times prices.
    proved, num_disconnected, paid = 0, 0, {}
    for key, *values in cuts:
        need(
            key == "cut" and len(values) > 2,
            f"expected a line 'cut MATRIX FAILURE LINK:PRICE ...', found {key[:40]!r}",
        )
        matrix, failure, *words = values
        need(matrix in instance.rates, f"there is no matrix {matrix[:40]!r}")
        need(failure == "-" or failure in instance.down, f"there is no failure {failure[:40]!r}")
        price = instance.prices(failure, words)
        for i, y in enumerate(price):
            if y:
                proved -= limit * y * instance.capacity[i]
                cable = instance.links[i]["cable"]
                paid[cable] = paid.get(cable, 0) + limit * y
        total, disconnected = instance.distance_sum(matrix, price)
        proved += total << BITS
        num_disconnected += disconnected
    # Compare with the claimed bound.
    proved -= instance.excess_cost(paid)
    need(proved >= bound << 2 * BITS, "the cuts prove a smaller bound than the proof claims")
    need(claimed >= bound, "the claimed cost is below the proved lower bound")
    low, high = (
        f"{n // 10**9}.{n % 10**9:09}" for n in (bound * 10**9 >> BITS, -(-claimed * 10**9 >> BITS))
    )
    gap = -(-(claimed - bound) * 10**8 // max(1, claimed)) / 10**6
    scope = (
        "no purchase with which the matrices fit under the failures at a utilisation of "
        f"{utilisation} costs less"
    )
    return (
        f"proved: {scope} than {low}; claimed cost {high}, gap {gap:.6f}%; "
        f"{num_disconnected} demands disconnected by failures"
    )


if __name__ == "__main__":
    try:
        print(check(*sys.argv[1:]) if len(sys.argv) == 5 else sys.exit(__doc__))
    except Exception as error:  # whatever fails proves nothing
        sys.exit(f"NOT PROVED: {ascii(str(error))[1:-1]}")
