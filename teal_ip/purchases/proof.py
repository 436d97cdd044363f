"""Proof of the lower bound on the cost: files that :mod:`teal_ip.purchases.check_purchase` verifies
in plain Python.

With duals l >= 0 of the cuts and link prices y of each cut, the prices z = l y prove, over all
paths of the network, for every expansion x that fits,

    cost' x >= sum over the cuts of (sum_d demand_d dist_z(d) - u sum_e z_e c_e)
               - sum over cables of most m,

where dist_z(d) is the length of demand d's shortest path under the prices z, u the utilisation
limit, c the capacities before the expansion, most the limit of a cable, and m = max(0, u sum of z
over all cuts and the cable's links - its cost).  Prices are rounded down to multiples of 2^-60.
Entry point: :func:`write_purchase_proof`.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import math
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from teal.errors import SolverError
from teal.network.shortest import shortest_trees
from teal.runtime.arrays import FloatArray, Int64Array
from teal.runtime.storage import atomic_file
from teal_ip.purchases import check_purchase
from teal_ip.purchases.cuts import Cuts
from teal_ip.purchases.scenarios import Scenarios

NETWORK, DEMANDS, FAILURES, PROOF, CHECKER = FILES = (
    "network.csv",
    "demands.csv",
    "failures.csv",
    "purchase.txt",
    "check_purchase.py",
)
# Prices and bounds in the files are integers: multiples of 1 over this number.
_FIXED_POINT_SCALE = float(1 << check_purchase.BITS)
# Exponents s that are tried: prices are multiplied by 1 - 2^-s, so that rounded sums stay within
# the costs.
_ROUNDING_EXPONENTS = (40, 34, 28)


@dataclasses.dataclass(frozen=True, eq=False)
class CutProof:
    """Prices of cuts that prove the bound of an expansion.

    Attributes:
        scenarios: scenarios of the cuts.
        prices: (n, E) prices of each cut times its dual, of the cuts with a dual above 0.
        row: (n,) index of the scenario of each cut.
        cost: cost of the expansion.
    """

    scenarios: Scenarios
    prices: FloatArray
    row: Int64Array
    cost: float

    @classmethod
    def of(cls, scenarios: Scenarios, cuts: Cuts, dual: FloatArray | None, cost: float) -> CutProof:
        """Return the proof of an expansion.

        Args:
            scenarios: scenarios of the cuts.
            cuts: cuts of the expansion.
            dual: (n,) duals of the first n cuts; None for none.
            cost: cost of the expansion.
        """
        duals = np.zeros(0) if dual is None else dual
        positive = np.flatnonzero(duals > 0)
        return cls(
            scenarios, duals[positive, None] * cuts.prices[positive], cuts.row[positive], cost
        )


def write_purchase_proof(folder: Path, proof: CutProof) -> str:
    """Write the files of the proof, verify them, and return the checker's sentence.

    Args:
        folder: folder to write to; created if missing.
        proof: prices that prove the bound.

    Raises:
        SolverError: the checker rejects the proof for any rounding of the prices.
    """
    # Links that are up in some scenario, numbered from 0 in the files, and scenarios with a cut.
    scenarios = proof.scenarios
    existing_links = np.flatnonzero(scenarios.live.any(0))
    number_by_link = {int(link): i for i, link in enumerate(existing_links)}
    scenario_indices = sorted({int(row) for row in proof.row})
    # Network, demands and failures.
    folder.mkdir(parents=True, exist_ok=True)
    _write_network(folder, scenarios, existing_links)
    _write_demands(folder, scenarios, scenario_indices)
    _write_failures(folder, scenarios, scenario_indices, number_by_link)
    # Proof, with coarser rounding until the checker accepts it.
    shutil.copy(check_purchase.__file__, folder / CHECKER)
    arguments = [str(folder / name) for name in (NETWORK, DEMANDS, FAILURES, PROOF)]
    for exponent in _ROUNDING_EXPONENTS:
        # Prices and bound are made a little smaller, so that rounding does not invalidate them.
        scaled_prices = proof.prices * (1 - 2.0**-exponent)
        integer_prices = [
            [int(y * _FIXED_POINT_SCALE) for y in row] for row in scaled_prices.tolist()
        ]
        bound = max(0.0, _bound(proof, scaled_prices) * (1 - 2.0**-exponent))
        _write_proof(folder, proof, number_by_link, integer_prices, int(bound * _FIXED_POINT_SCALE))
        try:
            return check_purchase.check(*arguments)
        except ValueError as error:
            rejection = error
    raise SolverError(f"--prove: the checker rejects the bound for every rounding: {rejection}")


def _write_network(folder: Path, scenarios: Scenarios, links: Int64Array) -> None:
    """Write the links that exist in any scenario, with the costs and limits of their cables.

    Args:
        folder: folder to write to.
        scenarios: supplies capacities, cables, costs and limits.
        links: links to write; their order is the numbering of the file.
    """
    topology = scenarios.problem.topology
    names = topology.node_names

    def row(e: int) -> tuple[object, ...]:
        """Return the row of link e: ends, capacity, and cable with its cost and limit."""
        cable = scenarios.cable[e]
        limit = scenarios.max_added[cable]
        return (
            names[topology.link_source[e]],
            names[topology.link_target[e]],
            repr(float(scenarios.existing_capacity[e])),
            int(cable),
            repr(float(scenarios.cost[cable])),
            "" if math.isinf(limit) else repr(float(limit)),
        )

    columns = ("source", "target", "capacity", "cable", "cost", "most")
    _write(folder / NETWORK, columns, (row(e) for e in links))


def _write_demands(folder: Path, scenarios: Scenarios, rows: Sequence[int]) -> None:
    """Write the positive demands of some scenarios.

    Args:
        folder: folder to write to.
        scenarios: matrices under failures.
        rows: indices of the scenarios, which name the matrices in the file.
    """
    names = scenarios.problem.topology.node_names
    pairs = scenarios.problem.paths.pairs
    _write(
        folder / DEMANDS,
        ("matrix", "source", "target", "rate"),
        (
            (row, names[pairs[d, 0]], names[pairs[d, 1]], repr(float(scenarios.demand[row, d])))
            for row in rows
            for d in np.flatnonzero(scenarios.demand[row] > 0)
        ),
    )


def _write_failures(
    folder: Path, scenarios: Scenarios, rows: Sequence[int], number_by_link: dict[int, int]
) -> None:
    """Write the failed links of these scenarios.

    Args:
        folder: folder to write to.
        scenarios: matrices under failures.
        rows: indices of the scenarios.
        number_by_link: number in the file of the network, by index of the link.
    """
    _write(
        folder / FAILURES,
        ("failure", "link"),
        (
            (row, number_by_link[int(e)])
            for row in rows
            for e in np.flatnonzero(~scenarios.live[row])
            if int(e) in number_by_link
        ),
    )


def _bound(proof: CutProof, prices: FloatArray) -> float:
    """Return the lower bound on the cost that link prices prove:

        sum over the cuts of (sum_d demand_d dist_z(d) - u sum_e z_e c_e)
        - sum over cables of most m

    where dist_z(d) is the length of demand d's shortest path under the prices z, u the utilisation
    limit, c the capacities before the expansion, most the limit of a cable, and m = max(0, u sum of
    z over all cuts and the cable's links - its cost).

    Args:
        proof: scenarios of the cuts.
        prices: (n, E) link prices z of each cut.
    """
    scenarios = proof.scenarios
    topology = scenarios.problem.topology
    pairs = scenarios.problem.paths.pairs
    total = 0.0
    sources, source_row = np.unique(pairs[:, 0], return_inverse=True)
    graph = (topology.num_nodes, topology.link_source, topology.link_target)
    cable_price = np.zeros(scenarios.num_cables)
    for row, price in zip(proof.row.tolist(), prices, strict=True):
        live = scenarios.live[row]
        distance, _ = shortest_trees(
            *graph, np.where(live, price, np.inf), sources, topology.no_transit
        )
        # Distances (D,) under the prices; disconnected demands have none.
        shortest = distance[source_row, pairs[:, 1]]
        demand = scenarios.demand[row]
        has_demand = (demand > 0) & np.isfinite(shortest)
        total += float(demand[has_demand] @ shortest[has_demand])
        # Less the value of the existing capacity of the live links.
        total -= scenarios.max_utilisation * float(
            (price * scenarios.existing_capacity)[live].sum()
        )
        np.add.at(cable_price, scenarios.cable[live], scenarios.max_utilisation * price[live])
    excess = np.maximum(0.0, cable_price - scenarios.cost)
    limited = np.isfinite(scenarios.max_added)
    return total - float(excess[limited] @ scenarios.max_added[limited])


def _write(file: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a .csv table.

    Args:
        file: file to write.
        columns: names of the columns.
        rows: fields of each row, in the order of the columns.
    """
    with (
        atomic_file(file) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as stream,
    ):
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def _write_proof(
    folder: Path,
    proof: CutProof,
    number_by_link: dict[int, int],
    integer_prices: Sequence[Sequence[int]],
    bound: int,
) -> None:
    """Write the file of the proof: hashes of the other files, limit, cost, bound, and a line per
    cut.

    Args:
        folder: folder with the other files.
        proof: scenarios of the cuts, and the cost.
        number_by_link: number in the file of the network, by index of the link.
        integer_prices: (n, E) prices of each cut, in units of 2^-60.
        bound: lower bound on the cost, in units of 2^-60.
    """
    lines = ["teal-purchase 1"]
    for name, file in (("network", NETWORK), ("demands", DEMANDS), ("failures", FAILURES)):
        lines.append(f"{name} {hashlib.sha256((folder / file).read_bytes()).hexdigest()}")
    lines += [
        f"limit {proof.scenarios.max_utilisation!r}",
        f"cost {proof.cost!r}",
        f"bound {bound}",
    ]
    for row, prices in zip(proof.row.tolist(), integer_prices, strict=True):
        live = proof.scenarios.live[row]
        # Line of a cut: scenario as matrix and as failure (- for none), and prices above 0 by link.
        fields = [f"{number_by_link[e]}:{y}" for e, y in enumerate(prices) if y and live[e]]
        failure = row if any(not live[e] for e in number_by_link) else "-"
        if fields:
            lines.append(" ".join(["cut", str(row), str(failure), *fields]))
    with atomic_file(folder / PROOF) as temporary:
        temporary.write_text("\n".join([*lines, "end", ""]), encoding="utf-8")
