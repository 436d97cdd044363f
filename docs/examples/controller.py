"""A controller that replays traffic: sends one matrix per interval to the service and prints each allocation."""

import argparse
import time

import numpy as np

import teal
from teal_serve.client import Client, ServiceFault


def main() -> None:
    """Register the network, then send the matrices in order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--service", default="http://127.0.0.1:8000")
    parser.add_argument("--topology", required=True)
    parser.add_argument("--traffic", required=True)
    parser.add_argument(
        "--interval", type=float, default=1.0, help="seconds from one matrix to the next"
    )
    parser.add_argument(
        "--count", type=int, default=0, help="number of matrices after which to stop; 0 for all"
    )
    options = parser.parse_args()
    topology = teal.load_topology(options.topology)
    traffic = teal.load_traffic(options.traffic, topology)
    num_nodes = topology.num_nodes
    with Client(options.service) as service:
        service.put_network("replay", topology, gap=0.01)
        service.wait_ready("replay")
        for row in range(options.count or traffic.num_matrices):
            begin = time.monotonic()
            rates = np.zeros((num_nodes, num_nodes))
            rates[traffic.pairs[:, 0], traffic.pairs[:, 1]] = traffic.read([row])[0]
            try:
                allocation = service.allocate(
                    "replay", rates.reshape(1, -1), deadline_ms=1e3 * options.interval / 2
                )
            except (
                ServiceFault
            ) as fault:  # overloaded, restarting or unreachable: a controller must continue
                print(f"{traffic.timestamps[row]}  {fault}: the previous splits stay installed")
            else:
                print(
                    f"{traffic.timestamps[row]}  satisfied {100 * allocation.satisfied_demand[0]:6.2f}%  "
                    f"certified gap {100 * allocation.gap[0]:5.2f}%  "
                    f"fullest link {100 * allocation.max_link_utilisation[0]:6.1f}%  "
                    f"{1e3 * (time.monotonic() - begin):6.1f} ms ({allocation.solve_ms:.1f} in the engine)"
                )
            time.sleep(max(0.0, begin + options.interval - time.monotonic()))


if __name__ == "__main__":
    main()
