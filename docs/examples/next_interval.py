"""A controller that installs, before each interval, an allocation for traffic that it does not know yet."""

import argparse

import numpy as np

import teal
from teal_next.evaluation import realised
from teal_serve.client import Client


def main() -> None:
    """Replay a series: allocate for each interval from the ones before, then see what it brought."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--service", default="http://127.0.0.1:8000")
    parser.add_argument("--topology", required=True)
    parser.add_argument("--traffic", required=True)
    parser.add_argument(
        "--known", type=int, default=48, help="matrices that are measured before the first interval"
    )
    parser.add_argument("--count", type=int, default=288, help="number of intervals")
    options = parser.parse_args()
    topology = teal.load_topology(options.topology)
    traffic = teal.load_traffic(options.traffic, topology)
    paths = teal.compute_paths(topology, traffic.pairs)
    objective = teal.Objective(teal.ObjectiveName.MAX_LINK_UTILISATION)
    known, ratios, held = options.known, [], []

    def square(rows: slice) -> np.ndarray:
        """Rates as N x N, which name no order of the pairs."""
        rates = traffic.read(rows)
        full = np.zeros((len(rates), topology.num_nodes, topology.num_nodes))
        full[:, traffic.pairs[:, 0], traffic.pairs[:, 1]] = rates
        return full.reshape(len(rates), -1)

    with Client(options.service) as service:
        service.put_network("next", topology, objective="max_link_utilisation")
        service.wait_ready("next")
        order = {pair: row for row, pair in enumerate(service.paths("next").pairs)}
        names = [
            (topology.node_names[s], topology.node_names[t]) for s, t in traffic.pairs.tolist()
        ]
        own = np.array([order[pair] for pair in names])
        service.measure("next", square(slice(0, known)), traffic.timestamps[0], traffic.interval_s)
        for row in range(known, min(known + options.count, traffic.num_matrices)):
            ahead = service.allocate_next(
                "next", deadline_ms=60_000
            )  # installed before the interval begins
            problem = teal.Problem.create(topology, paths, objective, traffic.read([row]))
            optimum = teal.solve(problem, gap=1e-3)
            splits = optimum.splits.new_tensor(ahead.splits[0, own])
            ratios.append(realised(problem, splits) / realised(problem, optimum.splits[0]))
            if ahead.limit is not None:
                held.append(ratios[-1] <= ahead.limit)
            limit = "no limit yet" if ahead.limit is None else f"at most {ahead.limit:.3f} expected"
            print(
                f"{traffic.timestamps[row]}  {ratios[-1]:.3f} times the least utilisation, {limit}",
                flush=True,
            )
            service.measure("next", square(slice(row, row + 1)), traffic.timestamps[row])
    covered = f"; the limit held in {100 * np.mean(held):.1f}%" if held else ""
    print(
        f"mean {np.mean(ratios):.4f}, 99% {np.quantile(ratios, 0.99):.4f} over {len(ratios)} intervals{covered}"
    )


if __name__ == "__main__":
    main()
