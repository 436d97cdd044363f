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
        f"{text[:40]!r} is no whole number of at least 0",
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


def check(network, demands, failures, proof):
    """The sentence that the files prove; raises ValueError where they do not."""
    links = list(table(network, "source", "target", "capacity", "cable", "cost"))
    hashes = [
        hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest()
        for file in (network, demands, failures)
    ]
    capacity = [decimal(row["capacity"], f"capacity of link {i}")[1] for i, row in enumerate(links)]
    outgoing, cost, most, used = {}, {}, {}, {}
    for i, row in enumerate(links):
        outgoing.setdefault(row["source"], []).append((i, row["target"]))
        price, limit = decimal(row["cost"], f"cost of link {i}")[0], row.get("most") or None
        need(
            cost.setdefault(row["cable"], price) == price,
            f"cable {row['cable']}: its links have different costs",
        )
        need(
            most.setdefault(row["cable"], limit) == limit,
            f"cable {row['cable']}: its links have different limits",
        )
    rates, down = {}, {}
    for row in table(demands, "matrix", "source", "target", "rate"):
        low = decimal(row["rate"], f"a rate of matrix {row['matrix']}")[0]
        rates.setdefault(row["matrix"], []).append((row["source"], row["target"], low))
    for row in table(failures, "failure", "link"):
        need(
            integer(row["link"]) < len(links),
            f"failure {row['failure']}: there is no link {row['link']}",
        )
        down.setdefault(row["failure"], set()).add(int(row["link"]))
    with open(proof, encoding="utf-8", newline="\n") as stream:
        lines = [line.rstrip("\n") for line in stream]
    head = [
        "teal-purchase 1",
        *(f"{name} {found}" for name, found in zip(("network", "demands", "failures"), hashes)),
    ]
    need(lines[:4] == head, "the proof is not of these files")
    words = [line.split(" ") for line in lines[4:]]
    need(
        len(words) >= 4 and [one[0] for one in words[:3]] == ["limit", "cost", "bound"],
        "limit, cost and bound",
    )
    need(
        all(len(one) == 2 for one in words[:3]) and words[-1] == ["end"],
        "the file does not end where it should",
    )
    limit = decimal(words[0][1], "limit")[1]
    claimed, bound = decimal(words[1][1], "cost")[1], integer(words[2][1])
    proved, left_out = 0, 0  # units of 2^-180
    for key, *rest in words[3:-1]:
        need(key == "cut" and len(rest) > 2, f"{key[:40]!r} was not expected")
        matrix, failure, *prices = rest
        need(matrix in rates, f"there is no matrix {matrix[:40]!r}")
        need(failure == "-" or failure in down, f"there is no failure {failure[:40]!r}")
        failed = down.get(failure, set()) if failure != "-" else set()
        price = [None if i in failed else 0 for i in range(len(links))]
        for link, _, number in (word.partition(":") for word in prices):
            need(
                integer(link) < len(links) and int(link) not in failed,
                f"cut: link {link[:40]} does not work",
            )
            price[int(link)] = integer(number)
        for i, y in enumerate(price):
            if y:
                proved -= limit * y * capacity[i]
                used[links[i]["cable"]] = used.get(links[i]["cable"], 0) + limit * y
        reach = {}
        for source, target, low in rates[matrix]:
            reach[source] = reach.get(source) or distances(source, outgoing, price)
            proved += (low * reach[source][target] << BITS) if target in reach[source] else 0
            left_out += low > 0 and target not in reach[source]
    for cable, paid in used.items():
        excess = paid - (cost[cable] << BITS)
        if excess > 0:
            need(
                most[cable] is not None,
                f"cable {cable}: the cuts pay more than it costs, and nothing limits it",
            )
            proved -= excess * decimal(most[cable], f"limit of cable {cable}")[1]
    need(proved >= bound << 2 * BITS, "the cuts prove no such bound")
    need(claimed >= bound, "the purchase costs less than every purchase")
    low, high = (
        f"{n // 10**9}.{n % 10**9:09}" for n in (bound * 10**9 >> BITS, -(-claimed * 10**9 >> BITS))
    )
    gap = -(-(claimed - bound) * 10**8 // max(1, claimed)) / 10**6
    scope = (
        "no purchase with which the matrices fit under the failures at a utilisation of "
        f"{words[0][1]} costs less"
    )
    return (
        f"proved: {scope} than {low}; claimed is {high}, gap {gap:.6f}%, {left_out} demands cut off"
    )


if __name__ == "__main__":
    try:
        print(check(*sys.argv[1:]) if len(sys.argv) == 5 else sys.exit(__doc__))
    except Exception as error:  # whatever fails proves nothing
        sys.exit(f"NOT PROVED: {ascii(str(error))[1:-1]}")
