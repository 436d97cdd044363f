"""Search for few segment routing policies that stay in place under every single cable failure, and
bound what any such policies can reach.

    python benchmarks/few_policies.py --out runs/few-policies [--network germany50 ...] [--matrices 1] [--data FOLDER]

For each network of SNDlib (through the package topohub, 100 Gbit/s a link, gravity traffic at 90%
of what hop counts carry) the largest utilisation over all failures: of shortest paths, of any
number of policies, and of at most N policies; and the smallest number of policies within 1% of the
least utilisation; each with its bound, and the seconds of the whole search.  The policies steer
single demands, or all traffic that crosses their router (transit).  With --data, a folder of
Geant2012.graph and Geant2012.0000.demands (data/README.md gives the source), the same for
REPETITA's Geant2012 as published: its metrics, one matrix, without failures.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from public_data import published

import teal
from teal.network.ecmp import EcmpDag, igp_metric
from teal.runtime.arrays import FloatArray, Int64Array
from teal_ip.segments.few import Few
from teal_ip.segments.static_lists import static_lists

NETWORKS = ("abilene", "nobel-germany", "nobel-eu", "cost266", "geant", "germany50")
POLICY_LIMITS = (1, 2, 3, 5, 10)
GAP = 1e-3  # relative gap of the search


def cases(
    options: argparse.Namespace,
) -> Iterator[tuple[str, list[EcmpDag], Int64Array, FloatArray]]:
    """Yield the name of each network, its shortest paths without failure and under each failure, the
    pairs (D, 2) of its demands, and its matrices (T, D) in Gbit/s.
    """
    for name in options.network or NETWORKS:
        topology = teal.load_topology(f"topohub:sndlib/{name}")
        traffic = teal.load_traffic(
            f"gravity:seed=0,count={options.matrices},load={options.load}", topology
        )
        dag = EcmpDag.of(topology, np.ones(topology.num_links))
        dags = [dag, *(dag.without(np.array(links)) for links in topology.cables())]
        yield name, dags, traffic.pairs.astype(np.int64), traffic.read(slice(options.matrices))
    if options.data is not None:
        topology = teal.load_topology(str(published(options.data, "Geant2012.graph")))
        traffic = teal.load_traffic(
            str(published(options.data, "Geant2012.0000.demands")), topology
        )
        dag = EcmpDag.of(topology, igp_metric(topology, "file"))
        yield "Geant2012", [dag], traffic.pairs.astype(np.int64), traffic.read(slice(1))


def policy_figures(result: Any) -> dict[str, Any]:
    """Return the columns of a solution: the utilisation of shortest paths, the number of policies,
    and the largest utilisation, each with its bound.
    """
    return {
        "straight": result.straight,
        "policies": len(result.policies.lists),
        "policies_bound": result.policies_bound,
        "value": result.value,
        "bound": result.bound,
    }


def main() -> None:
    """Solve every case and write few-policies.csv."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", action="append")
    parser.add_argument("--matrices", type=int, default=1)
    parser.add_argument("--load", type=float, default=0.9)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/few-policies"))
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    policy_limits = {"within 1%": Few(within=0.01)} | {
        f"at most {n}": Few(at_most=n) for n in POLICY_LIMITS
    }
    for name, dags, pairs, demand in cases(options):
        # Text of the limit, limit on the policies, and whether they steer all traffic that crosses
        # their router.
        searches = [
            ("any", None, False),
            *(
                (text, limit, transit)
                for transit in (False, True)
                for text, limit in policy_limits.items()
            ),
        ]
        for text, limit, transit in searches:
            begin = time.perf_counter()
            try:
                result = static_lists(dags, pairs, demand, gap=GAP, few=limit, transit=transit)
            except teal.InputError as error:
                print(name, text, error)
                continue
            # Row of the question and its answer.
            seconds = time.perf_counter() - begin
            question = {
                "network": name,
                "demands": len(pairs),
                "failures": len(dags) - 1,
                "asked": text,
                "steers": "transit" if transit else "demands",
            }
            rows.append(question | policy_figures(result) | {"seconds": seconds})
            print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "few-policies.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
