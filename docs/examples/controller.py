"""A controller's loop against the service: replays traffic, one matrix an interval, and says what came of it."""

import argparse
import time

import numpy as np

import teal
from teal.client import Client, ServiceFault


def main() -> None:
    """Register the network, then send matrix after matrix."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--service", default="http://127.0.0.1:8000")
    parser.add_argument("--topology", required=True)
    parser.add_argument("--traffic", required=True)
    parser.add_argument("--interval", type=float, default=1.0, help="seconds from one matrix to the next")
    parser.add_argument("--count", type=int, default=0, help="stop after so many matrices; 0 for all")
    options = parser.parse_args()
    topology = teal.load_topology(options.topology)
    traffic = teal.load_traffic(options.traffic, topology)
    nodes = topology.num_nodes
    with Client(options.service) as service:
        service.put_network("replay", topology, gap=0.01)
        service.wait_ready("replay")
        for row in range(options.count or traffic.num_matrices):
            begin = time.monotonic()
            rates = np.zeros((nodes, nodes))
            rates[traffic.pairs[:, 0], traffic.pairs[:, 1]] = traffic.read([row])[0]
            try:
                found = service.allocate("replay", rates.reshape(1, -1), deadline_ms=1e3 * options.interval / 2)
            except ServiceFault as fault:  # overloaded, restarting, unreachable: a controller goes on
                print(f"{traffic.timestamps[row]}  {fault}: the last splits stay")
            else:
                print(
                    f"{traffic.timestamps[row]}  satisfied {100 * found.satisfied_demand[0]:6.2f}%  "
                    f"certified gap {100 * found.gap[0]:5.2f}%  "
                    f"fullest link {100 * found.max_link_utilisation[0]:6.1f}%  "
                    f"{1e3 * (time.monotonic() - begin):6.1f} ms ({found.solve_ms:.1f} in the engine)"
                )
            time.sleep(max(0.0, begin + options.interval - time.monotonic()))


if __name__ == "__main__":
    main()
