"""Link loads of explicit paths with fixed split ratios, such as RSVP-TE tunnels, without failure
and under failures.

A demand is fully served: its live tunnels share it in proportion to their split ratios.  A failure
takes down the tunnels over its links.  A demand without a live tunnel follows the IGP's shortest
paths.  Entry point: :class:`TunnelRouting`.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from teal.errors import InputError
from teal.formats.allocations import read_allocation, stored_paths
from teal.network import Topology
from teal.network.ecmp import EcmpDag
from teal.network.segment_lists import SegmentPolicies
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array, IntArray
from teal_ip.routing.igp_failures import FailureResults, IgpFailures
from teal_ip.routing.installed import IgpRouting, in_chunks, results_of
from teal_ip.routing.measurements import ecmp_measurements


@dataclasses.dataclass(frozen=True, eq=False)
class Tunnels:
    """Set of P tunnels of some demands: explicit paths with fixed split ratios.

    Attributes:
        demand: (P,) index of each tunnel's demand.
        share: (P,) split ratio of each tunnel; those of a demand sum to 1.
        links: (P, E) incidence matrix: 1 for the links of a tunnel.
    """

    demand: Int64Array
    share: FloatArray
    links: sp.csr_array

    @classmethod
    def read(cls, file: Path, topology: Topology, pairs: IntArray) -> Tunnels:
        """Read the tunnels of an allocation written by ``teal solve --out``.

        Rates of several traffic classes between the same nodes are added.

        Args:
            file: .json file.
            topology: the network.
            pairs: (D, 2) source and target of each demand; tunnels of other pairs are ignored.

        Raises:
            InputError: no such file, another format, unknown links, or no tunnel for any pair.
        """
        # Rate of each tunnel, Gbit/s, by demand and links.
        demand_index = {
            (int(source), int(target)): demand for demand, (source, target) in enumerate(pairs)
        }
        rate_by_tunnel: dict[tuple[int, tuple[int, ...]], float] = {}
        for (source, target, _), paths in stored_paths(
            read_allocation(file), topology, str(file)
        ).items():
            demand = demand_index.get((source, target))
            for links, gbps in paths.items():
                if demand is not None and gbps > 0:
                    rate_by_tunnel[demand, links] = rate_by_tunnel.get((demand, links), 0.0) + gbps
        if not rate_by_tunnel:
            raise InputError.invalid(
                str(file),
                "routers",
                "no path with a rate above 0 between nodes that have traffic",
                "use the allocation of this network and traffic",
            )
        # Split ratios are rates over the total of the demand; the incidence matrix is tunnels by
        # links.
        tunnel_demand = np.array([demand for demand, _ in rate_by_tunnel])
        tunnel_rate = np.array(list(rate_by_tunnel.values()))
        rows = np.repeat(
            np.arange(len(rate_by_tunnel)), [len(links) for _, links in rate_by_tunnel]
        )
        columns = np.concatenate([links for _, links in rate_by_tunnel])
        incidence = sp.csr_array(
            (np.ones(len(rows)), (rows, columns)), shape=(len(rate_by_tunnel), topology.num_links)
        )
        return cls(
            tunnel_demand,
            tunnel_rate / np.bincount(tunnel_demand, tunnel_rate)[tunnel_demand],
            incidence,
        )

    def has_tunnels(self, num_demands: int) -> BoolArray:
        """Return whether each of ``num_demands`` demands has a tunnel."""
        return np.bincount(self.demand, minlength=num_demands) > 0

    def latency(self, latency: FloatArray, link_latency: FloatArray) -> FloatArray:
        """Return the mean latency (D,) of each demand over its tunnels, ms.

        Args:
            latency: (D,) latency of demands without tunnels, ms.
            link_latency: (E,) ms.
        """
        tunnel_latency = np.bincount(
            self.demand, self.share * (self.links @ link_latency), len(latency)
        )
        return np.where(self.has_tunnels(len(latency)), tunnel_latency, latency)

    def measurements(self, dag: EcmpDag, pairs: IntArray) -> sp.csr_array:
        """Return the measurement matrix F (E + 2 N, D): counters = F @ demands.

        Its rows are the share of each demand on each of E links, then 1 at the ingress and at the
        egress router of the demand among N routers.

        Args:
            dag: shortest paths, for demands without tunnels.
            pairs: (D, 2) source and target of each demand.
        """
        # Link rows: demands without tunnels load their shortest paths, the others their tunnels.
        igp_matrix = ecmp_measurements(dag, pairs)
        num_links = dag.topology.num_links
        has_tunnels = self.has_tunnels(len(pairs))
        igp_rows = igp_matrix[:num_links] @ sp.diags_array((~has_tunnels).astype(np.float64))
        tunnel_shares = sp.csr_array(
            (self.share, (np.arange(len(self.share)), self.demand)), (len(self.share), len(pairs))
        )
        return sp.csr_array(
            sp.vstack([igp_rows + self.links.T @ tunnel_shares, igp_matrix[num_links:]])
        )


class TunnelRouting:
    """Installed routing with tunnels for some demands.

    Args:
        dag: network and shortest paths.
        pairs: (D, 2) source and target of each demand.
        tunnels: tunnels of some demands; the others follow the shortest paths.
    """

    is_igp_alone = False

    def __init__(self, dag: EcmpDag, pairs: IntArray, tunnels: Tunnels) -> None:
        self.dag = dag
        self._pairs = pairs
        self._tunnels = tunnels

    def loads(self, demand: FloatArray) -> TunnelLoads:
        """Return the link loads of M matrices, given their demands (M, D), Gbit/s."""
        return TunnelLoads(self.dag, self._pairs, demand, self._tunnels)

    @cached_property
    def _latency(self) -> FloatArray:
        """Mean latency (D,) of each demand over its paths, ms; infinite without a path."""
        return self._tunnels.latency(
            IgpRouting(self.dag, self._pairs).latency(), self.dag.topology.latency
        )

    def latency(self) -> FloatArray:
        """Return the mean latency (D,) of each demand over its paths, ms; infinite without a
        path.
        """
        return self._latency

    def measurements(self) -> sp.csr_array:
        """Return the measurement matrix F (E + 2 N, D): counters = F @ demands.

        The rows are the E links, then ingress and egress of each of the N nodes.
        """
        return self._tunnels.measurements(self.dag, self._pairs)


class TunnelLoads:
    """Link loads of M matrices with tunnels for some demands.

    Args:
        dag: network, and the IGP's shortest paths.
        pairs: (D, 2) source and target of each demand.
        demand: (M, D) Gbit/s.
        tunnels: P tunnels of some demands.

    Attributes:
        load: (M, E) link loads without failure, Gbit/s.
        lost: (M,) Gbit/s lost without failure: demands with neither a live tunnel nor a path.
    """

    def __init__(self, dag: EcmpDag, pairs: IntArray, demand: FloatArray, tunnels: Tunnels) -> None:
        self._dag = dag
        self._pairs = pairs
        self._demand = demand
        self._tunnels = tunnels
        # (P,) whether each tunnel is live without failure; a tunnel over a link without capacity is
        # down.
        is_live = np.asarray(tunnels.links @ (dag.topology.capacity <= 0)) == 0
        # Demands without a live tunnel follow the shortest paths; the others load their tunnels.
        self._igp_loads = IgpFailures.of_demands(
            dag, pairs, demand * self._is_without_tunnel(is_live), SegmentPolicies.none()
        )
        self._is_live = is_live
        self.load: FloatArray = self._igp_loads.load + self._tunnel_rates(is_live) @ tunnels.links
        self.lost: FloatArray = self._igp_loads.lost

    def _live_share(self, is_live: BoolArray) -> FloatArray:
        """Return the sum (D,) of the split ratios of each demand's live tunnels.

        Args:
            is_live: (P,) whether each tunnel is live.
        """
        share = np.bincount(
            self._tunnels.demand, self._tunnels.share * is_live, self._demand.shape[1]
        )
        return share.astype(np.float64)

    def _is_without_tunnel(self, is_live: BoolArray) -> BoolArray:
        """Return whether each demand (D,) has no live tunnel.

        Args:
            is_live: (P,) whether each tunnel is live.
        """
        return self._live_share(is_live) <= 0

    def _tunnel_rates(self, is_live: BoolArray) -> FloatArray:
        """Return the traffic of each tunnel, (M, P) in Gbit/s.

        Live tunnels divide their demand in proportion to their split ratios.

        Args:
            is_live: (P,) whether each tunnel is live.
        """
        # Scale the split ratios of the live tunnels so that they sum to 1 for each demand.
        live_share = self._live_share(is_live)
        tunnel_demand = self._tunnels.demand
        inverse_live_share = np.where(
            live_share > 0, 1 / np.where(live_share > 0, live_share, 1), 0.0
        )
        return np.asarray(
            self._demand[:, tunnel_demand]
            * (self._tunnels.share * is_live * inverse_live_share[tunnel_demand])
        )

    def under(
        self, failures: list[list[int]], *, repairing: bool = False, loads: bool = False
    ) -> FailureResults:
        """Return loads and lost traffic under each failure of a set of links.

        Args:
            failures: link indices of each failure.
            repairing: must be false: fast reroute of tunnels is not modelled.
            loads: also return the loads of all links.

        Raises:
            InputError: ``repairing`` is true.
        """
        if repairing:
            raise InputError.invalid(
                "--repair", "", "fast reroute of tunnels is not modelled", "drop --allocation"
            )

        def under_chunk(chunk: list[list[int]]) -> FailureResults:
            """Return the results of some failures: loads of the IGP plus those of tunnels."""
            igp_results = self._igp_loads.under(chunk, loads=True)
            for s, links in enumerate(chunk):
                load, lost = self._tunnel_loads_under(links)
                igp_results.load[s] += load
                igp_results.lost[s] += lost
            return results_of(
                igp_results.load,
                igp_results.lost,
                igp_results.at_risk,
                self._dag.topology.capacity,
                loads=loads,
            )

        return in_chunks(failures, self.load.size, under_chunk)

    def _tunnel_loads_under(self, failed_links: list[int]) -> tuple[FloatArray, FloatArray]:
        """Return the loads and the lost traffic of demands with tunnels, under a failure.

        Demands whose tunnels are all down follow the IGP's shortest paths after convergence.

        Args:
            failed_links: indices of the failed links.

        Returns:
            loads (M, E) and lost traffic (M,), Gbit/s.
        """
        # Loads of the live tunnels, and demands that lose their last live tunnel by the failure.
        is_live = self._is_live & (
            np.asarray(self._tunnels.links[:, failed_links].sum(1)).reshape(-1) == 0
        )
        load = self._tunnel_rates(is_live) @ self._tunnels.links
        falls_back = self._is_without_tunnel(is_live) & ~self._is_without_tunnel(self._is_live)
        # The latter follow the IGP's shortest paths, and may have none.
        lost = np.zeros(len(load))
        if falls_back.any() and self._demand[:, falls_back].any():
            pairs = self._pairs[falls_back]
            demand = self._demand[:, falls_back]
            igp_results = IgpFailures.of_demands(
                self._dag, pairs, demand, SegmentPolicies.none()
            ).under([failed_links], loads=True)
            load = load + igp_results.load[0]
            lost = igp_results.lost[0]
        return load, lost
