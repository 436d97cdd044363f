"""Few segment routing policies that stay as they are under every single cable's failure: found, and proved.

    python benchmarks/few_policies.py --out runs/few-policies [--network germany50 ...] [--matrices 1]

For each network of SNDlib (through the package topohub, 100 Gbit/s a link, gravity traffic at 90% of what hop counts
carry) the largest utilisation over all failures: of shortest paths, of any number of policies, of at most N, and the
fewest policies within 1% of the least; each with its bound, and the seconds of the whole search.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path

import numpy as np

import teal
from teal.network.ecmp import EcmpDag
from teal.routing.segments.static_lists import Few, static_lists

NETWORKS = ("abilene", "nobel-germany", "nobel-eu", "cost266", "geant", "germany50")
MOST = (1, 2, 3, 5, 10)
GAP = 1e-3


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", action="append")
    parser.add_argument("--matrices", type=int, default=1)
    parser.add_argument("--load", type=float, default=0.9)
    parser.add_argument("--out", type=Path, default=Path("runs/few-policies"))
    options = parser.parse_args()
    rows = []
    for name in options.network or NETWORKS:
        topology = teal.load_topology(f"topohub:sndlib/{name}")
        traffic = teal.load_traffic(f"gravity:seed=0,count={options.matrices},load={options.load}", topology)
        dag = EcmpDag.of(topology, np.ones(topology.num_links))
        dags = [dag, *(dag.without(np.array(links)) for links in topology.cables())]
        pairs, demand = traffic.pairs.astype(np.int64), traffic.read(slice(options.matrices))
        asked = {"any": None, "within 1%": Few(within=0.01)} | {f"at most {n}": Few(at_most=n) for n in MOST}
        for what, few in asked.items():
            begin = time.perf_counter()
            found = static_lists(dags, pairs, demand, gap=GAP, few=few)
            rows.append({
                "network": name, "demands": len(pairs), "failures": len(dags) - 1, "asked": what,
                "straight": found.straight, "policies": len(found.policies.lists),
                "policies_bound": found.policies_bound, "value": found.value, "bound": found.bound,
                "seconds": time.perf_counter() - begin,
            })  # fmt: skip
            print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "few-policies.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
