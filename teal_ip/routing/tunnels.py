"""Loads of explicit paths with fixed shares, such as RSVP-TE tunnels, without failure and under
failures.

A demand takes its tunnels in the ratio of their shares, whole: routers shed nothing.  A failure
takes down the tunnels over its links, and the rest of the demand's tunnels carry it in their ratio;
a demand without a tunnel that is left follows the shortest paths of the IGP.
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
    """The tunnels of some demands.

    Attributes:
        demand: (P,) number of the demand of each tunnel.
        share: (P,) of that demand; the shares of a demand add up to 1.
        links: (P, E) 1 where a tunnel takes a link.
    """

    demand: Int64Array
    share: FloatArray
    links: sp.csr_array

    @classmethod
    def read(cls, file: Path, topology: Topology, pairs: IntArray) -> Tunnels:
        """Tunnels of an allocation that ``teal solve --out`` wrote; classes of a pair of nodes add
        up by their rates.

        Args:
            file: .json.
            topology: the network.
            pairs: (D, 2) source and target of each demand; tunnels of others are left out.

        Raises:
            InputError: no such file, another format, links that the network does not have, or
                tunnels of no pair.
        """
        number = {(int(source), int(target)): d for d, (source, target) in enumerate(pairs)}
        rates: dict[tuple[int, tuple[int, ...]], float] = {}
        for (source, target, _), paths in stored_paths(
            read_allocation(file), topology, str(file)
        ).items():
            d = number.get((source, target))
            for links, gbps in paths.items():
                if d is not None and gbps > 0:
                    rates[d, links] = rates.get((d, links), 0.0) + gbps
        if not rates:
            raise InputError(
                str(file), "routers", "paths with a rate between nodes that have traffic", "none"
            )
        of, rate = np.array([d for d, _ in rates]), np.array(list(rates.values()))
        rows = np.repeat(np.arange(len(rates)), [len(links) for _, links in rates])
        flat = np.concatenate([links for _, links in rates])
        entries = sp.csr_array(
            (np.ones(len(rows)), (rows, flat)), shape=(len(rates), topology.num_links)
        )
        return cls(of, rate / np.bincount(of, rate)[of], entries)

    def steered(self, num_demands: int) -> BoolArray:
        """(D,) whether a demand has tunnels."""
        return np.bincount(self.demand, minlength=num_demands) > 0

    def latency(self, latency: FloatArray, of_links: FloatArray) -> FloatArray:
        """(D,) ms: mean over the tunnels of a demand, and of the others as given, of links'
        latencies (E,).
        """
        mean = np.bincount(self.demand, self.share * (self.links @ of_links), len(latency))
        return np.where(self.steered(len(latency)), mean, latency)

    def measurements(self, dag: EcmpDag, pairs: IntArray) -> sp.csr_array:
        """(E + 2 N, D) F of :mod:`teal_ip.routing.measurements`: what a Gbit/s of each demand adds
        to each counter.
        """
        plain, links = ecmp_measurements(dag, pairs), dag.topology.num_links
        steered = self.steered(len(pairs))
        of_links = plain[:links] @ sp.diags_array((~steered).astype(np.float64))
        place = sp.csr_array(
            (self.share, (np.arange(len(self.share)), self.demand)), (len(self.share), len(pairs))
        )
        return sp.csr_array(sp.vstack([of_links + self.links.T @ place, plain[links:]]))


class TunnelRouting:
    """Tunnels of some demands: a :class:`teal_ip.routing.installed.InstalledRouting`.

    Args:
        dag: network and shortest paths.
        pairs: (D, 2) source and target of each demand.
        tunnels: tunnels of some of them; the others take the shortest paths.
    """

    is_igp_alone = False

    def __init__(self, dag: EcmpDag, pairs: IntArray, tunnels: Tunnels) -> None:
        self.dag, self._pairs, self._tunnels = dag, pairs, tunnels

    def loads(self, demand: FloatArray) -> TunnelLoads:
        """Loads (:meth:`InstalledRouting.loads`)."""
        return TunnelLoads(self.dag, self._pairs, demand, self._tunnels)

    @cached_property
    def _latency(self) -> FloatArray:
        return self._tunnels.latency(
            IgpRouting(self.dag, self._pairs).latency(), self.dag.topology.latency
        )

    def latency(self) -> FloatArray:
        """Latencies (:meth:`InstalledRouting.latency`)."""
        return self._latency

    def measurements(self) -> sp.csr_array:
        """Measurements (:meth:`InstalledRouting.measurements`)."""
        return self._tunnels.measurements(self.dag, self._pairs)


class TunnelLoads:
    """Loads of M matrices with tunnels: :class:`teal_ip.routing.installed.Loads`.

    Attributes:
        load: (M, E) Gbit/s without failure.
        lost: (M,) Gbit/s between nodes that have no path even without failure.
    """

    def __init__(self, dag: EcmpDag, pairs: IntArray, demand: FloatArray, tunnels: Tunnels) -> None:
        self._dag, self._pairs, self._demand, self._tunnels = dag, pairs, demand, tunnels
        live = (
            np.asarray(tunnels.links @ (dag.topology.capacity <= 0)) == 0
        )  # a link that is down throughout fails too
        self._plain = IgpFailures.of_demands(
            dag, pairs, demand * self._without_any(live), SegmentPolicies.none()
        )
        self._live = live
        self.load: FloatArray = self._plain.load + self._flow(live) @ tunnels.links
        self.lost: FloatArray = self._plain.lost

    def _left(self, live: BoolArray) -> FloatArray:
        """(D,) share of each demand on tunnels that are left."""
        share = np.bincount(self._tunnels.demand, self._tunnels.share * live, self._demand.shape[1])
        return share.astype(np.float64)

    def _without_any(self, live: BoolArray) -> BoolArray:
        """(D,) whether a demand has no tunnel that is left."""
        return self._left(live) <= 0

    def _flow(self, live: BoolArray) -> FloatArray:
        """(M, P) Gbit/s on the tunnels that are left."""
        left, of = self._left(live), self._tunnels.demand
        ratio = np.where(left > 0, 1 / np.where(left > 0, left, 1), 0.0)
        return np.asarray(self._demand[:, of] * (self._tunnels.share * live * ratio[of]))

    def under(
        self, failures: list[list[int]], *, repairing: bool = False, loads: bool = False
    ) -> FailureResults:
        """The loads after all links of each set have failed; arguments as of ``IgpFailures.under``.

        Raises:
            InputError: fast reroute, which tunnels have of their own kind.
        """
        if repairing:
            raise InputError(
                "--repair", "", "no tunnels: their fast reroute is another one", "--allocation"
            )

        def some(chunk: list[list[int]]) -> FailureResults:
            plain = self._plain.under(chunk, loads=True)
            for s, links in enumerate(chunk):
                load, lost = self._after(links)
                plain.load[s] += load
                plain.lost[s] += lost
            return results_of(
                plain.load, plain.lost, plain.at_risk, self._dag.topology.capacity, loads=loads
            )

        return in_chunks(failures, self.load.size, some)

    def _after(self, links: list[int]) -> tuple[FloatArray, FloatArray]:
        """Loads (M, E) of demands that had tunnels before some links failed, and (M,) Gbit/s of
        them without a path.
        """
        live = self._live & (np.asarray(self._tunnels.links[:, links].sum(1)).reshape(-1) == 0)
        load = self._flow(live) @ self._tunnels.links
        stranded = self._without_any(live) & ~self._without_any(self._live)
        lost = np.zeros(len(load))
        if stranded.any() and self._demand[:, stranded].any():
            pairs, demand = self._pairs[stranded], self._demand[:, stranded]
            after = IgpFailures.of_demands(self._dag, pairs, demand, SegmentPolicies.none()).under(
                [links], loads=True
            )
            load, lost = load + after.load[0], after.lost[0]
        return load, lost
