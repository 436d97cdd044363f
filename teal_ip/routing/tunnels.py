"""Loads of explicit paths with fixed shares, such as RSVP-TE tunnels, without failure and under
failures.

A demand is split over its tunnels in the ratio of their shares, and fully served: routers shed
nothing.  A failure takes down the tunnels over its links, and the demand's remaining tunnels carry
it in their ratio; a demand without a remaining tunnel follows the IGP's shortest paths.  Entry
point: :class:`TunnelRouting`.
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
    """Tunnels of some demands.

    Attributes:
        demand: (P,) index of each tunnel's demand.
        share: (P,) share of the demand; the shares of a demand sum to 1.
        links: (P, E) 1 for links of a tunnel.
    """

    demand: Int64Array
    share: FloatArray
    links: sp.csr_array

    @classmethod
    def read(cls, file: Path, topology: Topology, pairs: IntArray) -> Tunnels:
        """Read the tunnels of an allocation written by ``teal solve --out``; rates of the classes
        of a pair of nodes are added.

        Args:
            file: .json file.
            topology: the network.
            pairs: (D, 2) source and target of each demand; tunnels of others are ignored.

        Raises:
            InputError: no such file, another format, unknown links, or tunnels of no pair.
        """
        demand_index = {
            (int(source), int(target)): demand for demand, (source, target) in enumerate(pairs)
        }
        rates: dict[tuple[int, tuple[int, ...]], float] = {}
        for (source, target, _), paths in stored_paths(
            read_allocation(file), topology, str(file)
        ).items():
            demand = demand_index.get((source, target))
            for links, gbps in paths.items():
                if demand is not None and gbps > 0:
                    rates[demand, links] = rates.get((demand, links), 0.0) + gbps
        if not rates:
            raise InputError(
                str(file), "routers", "paths with a rate between nodes that have traffic", "none"
            )
        tunnel_demand = np.array([demand for demand, _ in rates])
        rate = np.array(list(rates.values()))
        rows = np.repeat(np.arange(len(rates)), [len(links) for _, links in rates])
        tunnel_link = np.concatenate([links for _, links in rates])
        entries = sp.csr_array(
            (np.ones(len(rows)), (rows, tunnel_link)), shape=(len(rates), topology.num_links)
        )
        return cls(tunnel_demand, rate / np.bincount(tunnel_demand, rate)[tunnel_demand], entries)

    def steered(self, num_demands: int) -> BoolArray:
        """Whether each demand (D,) has tunnels."""
        return np.bincount(self.demand, minlength=num_demands) > 0

    def latency(self, latency: FloatArray, link_latency: FloatArray) -> FloatArray:
        """Mean latency (D,) over the tunnels of a demand, ms, from the links' latencies (E,);
        demands without tunnels keep ``latency``.
        """
        mean = np.bincount(self.demand, self.share * (self.links @ link_latency), len(latency))
        return np.where(self.steered(len(latency)), mean, latency)

    def measurements(self, dag: EcmpDag, pairs: IntArray) -> sp.csr_array:
        """Measurement matrix F (E + 2 N, D) of :mod:`teal_ip.routing.measurements`."""
        igp_matrix = ecmp_measurements(dag, pairs)
        num_links = dag.topology.num_links
        steered = self.steered(len(pairs))
        igp_rows = igp_matrix[:num_links] @ sp.diags_array((~steered).astype(np.float64))
        tunnel_shares = sp.csr_array(
            (self.share, (np.arange(len(self.share)), self.demand)), (len(self.share), len(pairs))
        )
        return sp.csr_array(
            sp.vstack([igp_rows + self.links.T @ tunnel_shares, igp_matrix[num_links:]])
        )


class TunnelRouting:
    """Routing with tunnels of some demands: a :class:`teal_ip.routing.installed.InstalledRouting`.

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
        """Loads of matrices (see :meth:`InstalledRouting.loads`)."""
        return TunnelLoads(self.dag, self._pairs, demand, self._tunnels)

    @cached_property
    def _latency(self) -> FloatArray:
        return self._tunnels.latency(
            IgpRouting(self.dag, self._pairs).latency(), self.dag.topology.latency
        )

    def latency(self) -> FloatArray:
        """Latencies of demands (see :meth:`InstalledRouting.latency`)."""
        return self._latency

    def measurements(self) -> sp.csr_array:
        """Measurement matrix (see :meth:`InstalledRouting.measurements`)."""
        return self._tunnels.measurements(self.dag, self._pairs)


class TunnelLoads:
    """Loads of M matrices with tunnels: :class:`teal_ip.routing.installed.Loads`.

    Attributes:
        load: (M, E) Gbit/s without failure.
        lost: (M,) Gbit/s between nodes that have no path even without failure.
    """

    def __init__(self, dag: EcmpDag, pairs: IntArray, demand: FloatArray, tunnels: Tunnels) -> None:
        self._dag = dag
        self._pairs = pairs
        self._demand = demand
        self._tunnels = tunnels
        # Links that are down throughout take down their tunnels, too.
        live = np.asarray(tunnels.links @ (dag.topology.capacity <= 0)) == 0
        self._igp_loads = IgpFailures.of_demands(
            dag, pairs, demand * self._has_no_tunnel(live), SegmentPolicies.none()
        )
        self._live = live
        self.load: FloatArray = self._igp_loads.load + self._flow(live) @ tunnels.links
        self.lost: FloatArray = self._igp_loads.lost

    def _live_share(self, live: BoolArray) -> FloatArray:
        """Share (D,) of each demand on live tunnels."""
        share = np.bincount(self._tunnels.demand, self._tunnels.share * live, self._demand.shape[1])
        return share.astype(np.float64)

    def _has_no_tunnel(self, live: BoolArray) -> BoolArray:
        """Whether each demand (D,) has no live tunnel."""
        return self._live_share(live) <= 0

    def _flow(self, live: BoolArray) -> FloatArray:
        """Traffic (M, P) of the live tunnels, Gbit/s."""
        remaining_share = self._live_share(live)
        tunnel_demand = self._tunnels.demand
        ratio = np.where(
            remaining_share > 0, 1 / np.where(remaining_share > 0, remaining_share, 1), 0.0
        )
        return np.asarray(
            self._demand[:, tunnel_demand] * (self._tunnels.share * live * ratio[tunnel_demand])
        )

    def under(
        self, failures: list[list[int]], *, repairing: bool = False, loads: bool = False
    ) -> FailureResults:
        """Loads after all links of each set have failed; arguments as in ``IgpFailures.under``.

        Raises:
            InputError: fast reroute, which is not modelled for tunnels.
        """
        if repairing:
            raise InputError(
                "--repair", "", "no tunnels: their fast reroute is not modelled", "--allocation"
            )

        def under_chunk(chunk: list[list[int]]) -> FailureResults:
            plain = self._igp_loads.under(chunk, loads=True)
            for s, links in enumerate(chunk):
                load, lost = self._loads_after(links)
                plain.load[s] += load
                plain.lost[s] += lost
            return results_of(
                plain.load, plain.lost, plain.at_risk, self._dag.topology.capacity, loads=loads
            )

        return in_chunks(failures, self.load.size, under_chunk)

    def _loads_after(self, links: list[int]) -> tuple[FloatArray, FloatArray]:
        """Loads (M, E) of demands that had tunnels before some links failed, and their traffic (M,)
        without a path, Gbit/s.
        """
        live = self._live & (np.asarray(self._tunnels.links[:, links].sum(1)).reshape(-1) == 0)
        load = self._flow(live) @ self._tunnels.links
        stranded = self._has_no_tunnel(live) & ~self._has_no_tunnel(self._live)
        lost = np.zeros(len(load))
        if stranded.any() and self._demand[:, stranded].any():
            pairs = self._pairs[stranded]
            demand = self._demand[:, stranded]
            after = IgpFailures.of_demands(self._dag, pairs, demand, SegmentPolicies.none()).under(
                [links], loads=True
            )
            load = load + after.load[0]
            lost = after.lost[0]
        return load, lost
