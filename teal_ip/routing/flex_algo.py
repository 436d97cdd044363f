"""Routing of demands on flexible algorithms of the IGP (:mod:`teal.network.flex_algo`).

Traffic of an algorithm uses only the algorithm's shortest paths, with ECMP; without such a path it
is lost, even if the IGP has one.  After a failure each algorithm converges, and repairs, within its
links.  Segment lists follow the shortest paths of one algorithm, and steer the demands assigned to
it.  Entry point: :func:`igp_routing`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from teal.errors import InputError, listed
from teal.formats import side_tables
from teal.formats.segment_lists import read_policies
from teal.network import Topology
from teal.network.ecmp import EcmpDag
from teal.network.flex_algo import FLEX_ALGO, FlexAlgo
from teal.network.segment_lists import SegmentPolicies
from teal.runtime.arrays import FloatArray, Int64Array, IntArray
from teal_ip.routing.igp_failures import FailureResults
from teal_ip.routing.installed import IgpRouting, InstalledRouting, Loads, in_chunks, results_of

_FILE_OPTION = "--algorithm-of"
# Wildcard for any node in columns source and target.
_ANY = "*"


def algorithms_of(
    definitions: Sequence[FlexAlgo], file: Path | None, topology: Topology, pairs: IntArray
) -> Int64Array:
    """Return the flexible-algorithm number (D,) of each demand; 0 for the IGP itself.

    Args:
        definitions: definitions of the flexible algorithms.
        file: table (.csv) of source, target and algorithm, where ``*`` matches any node.  The first
            matching row decides; demands without a match stay with the IGP.  None assigns all
            demands to the only algorithm.
        topology: the network.
        pairs: (D, 2) source and target of each demand.

    Raises:
        InputError: several definitions and no file, or a row with an unknown node or algorithm.
    """
    numbers = [definition.number for definition in definitions]
    if file is None:
        if len(numbers) != 1:
            raise InputError.invalid(
                _FILE_OPTION,
                "",
                f"{len(numbers)} algorithms are defined, and no assignment of demands to them",
                "give a .csv file with columns source, target, algorithm",
            )
        return np.full(len(pairs), numbers[0], dtype=np.int64)
    # Number of each demand; -1 as long as no row matches it.
    algorithm_by_demand = np.full(len(pairs), -1, dtype=np.int64)
    node_index = topology.node_index()
    for position, source, target, algorithm in _rows(file):
        if algorithm not in {"0", *map(str, numbers)}:
            raise InputError(
                str(file),
                f"{position}: algorithm",
                f"0 or the number of an algorithm defined by {FLEX_ALGO}",
                repr(algorithm),
            )
        # Demands without an earlier match whose source and target are those of the row.
        matches = algorithm_by_demand < 0
        for column, name in enumerate((source, target)):
            node_name = topology.name_of(name)
            if name != _ANY and node_name not in node_index:
                expected = "a node of the network, or *"
                raise InputError(
                    str(file), f"{position}: {('source', 'target')[column]}", expected, repr(name)
                )
            if name != _ANY:
                matches &= pairs[:, column] == node_index[node_name]
        algorithm_by_demand[matches] = int(algorithm)
    return np.maximum(algorithm_by_demand, 0)


def igp_routing(
    dag: EcmpDag,
    pairs: IntArray,
    policies: Path | None = None,
    definitions: Sequence[str] = (),
    algorithm_of: Path | None = None,
) -> InstalledRouting:
    """Return the routing on shortest paths of the IGP and of flexible algorithms, with the segment
    lists of a file.

    Args:
        dag: network, and shortest paths of the IGP.
        pairs: (D, 2) source and target of each demand.
        policies: file of segment lists; None for none.
        definitions: definitions as in option --flex-algo; the algorithm of the lists is added.
        algorithm_of: table (.csv) of source, target and algorithm number; None if all demands use
            the same algorithm.

    Raises:
        InputError: an invalid file or algorithm definition.
    """
    # Without algorithms: the IGP with the segment lists.
    lists, algorithms = lists_and_algorithms(policies, definitions, dag.topology)
    if not algorithms:
        if algorithm_of is not None:
            raise InputError.invalid(
                _FILE_OPTION, "", "no algorithm is defined", f"define one with {FLEX_ALGO}"
            )
        return IgpRouting(dag, pairs, lists)
    # Different weights of next hops come from --ucmp.
    if np.ptp(dag.links.weight) > 0:
        raise InputError.invalid(
            FLEX_ALGO, "", "algorithms split traffic evenly over next hops", "drop --ucmp"
        )
    # Check that adjacency segments are links of the lists' algorithm.
    if lists is not None and lists.algorithm is not None:
        excluded_links = np.flatnonzero(~lists.algorithm.admits(dag.topology))
        adjacency_links = {
            link
            for policy_lists in lists.lists.values()
            for segment_list in policy_lists
            for link in segment_list.adjacencies
        }
        if outside_links := sorted(adjacency_links.intersection(excluded_links.tolist())):
            names = listed([dag.topology.link_names()[e] for e in outside_links])
            raise InputError.invalid(
                str(policies),
                "segments",
                f"adjacencies over links outside algorithm {lists.algorithm.number}: {names}",
            )
    return FlexRouting(
        dag, pairs, algorithms, algorithms_of(algorithms, algorithm_of, dag.topology, pairs), lists
    )


def lists_and_algorithms(
    policies: Path | None, definitions: Sequence[str], topology: Topology
) -> tuple[SegmentPolicies | None, list[FlexAlgo]]:
    """Load the segment lists of a file, and parse the definitions of algorithms.

    Args:
        policies: file of segment lists; None for none.
        definitions: definitions as in option --flex-algo.
        topology: the network.

    Returns:
        segment lists, None without a file; and algorithms: those defined, then the algorithm of the
        lists if it is not among them.

    Raises:
        InputError: an invalid file, or two definitions of one number.
    """
    # The lists bring the definition of their algorithm along.
    lists = None if policies is None else read_policies(policies, topology)
    algorithms = [FlexAlgo.parse(text) for text in definitions]
    algorithms += (
        []
        if lists is None or lists.algorithm is None or lists.algorithm in algorithms
        else [lists.algorithm]
    )
    if len(set(numbers := [str(algorithm.number) for algorithm in algorithms])) < len(numbers):
        raise InputError.invalid(
            FLEX_ALGO,
            "",
            f"several definitions for one number: {listed(numbers)}; keep one for each number",
        )
    return lists, algorithms


def _rows(file: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield position in the file, source, target and algorithm of each row of a table, as texts."""
    for row in side_tables.read_side_table(
        file,
        (side_tables.SOURCE, side_tables.TARGET, side_tables.Column("algorithm", required=True)),
    ):
        position = row.where.removeprefix(f"{file}: ")
        yield position, row.text("source"), row.text("target"), row.text("algorithm")


class FlexRouting:
    """Installed routing where each demand follows one flexible algorithm, or the IGP.

    Args:
        dag: network, and shortest paths of the IGP.
        pairs: (D, 2) source and target of each demand.
        definitions: definitions of the flexible algorithms.
        algorithm: (D,) algorithm number of each demand; 0 for the IGP's own.
        policies: segment lists; they steer the demands of their algorithm.

    Raises:
        InputError: policies of an algorithm without demands.
    """

    is_igp_alone = False

    def __init__(
        self,
        dag: EcmpDag,
        pairs: IntArray,
        definitions: Sequence[FlexAlgo],
        algorithm_by_demand: Int64Array,
        policies: SegmentPolicies | None = None,
    ) -> None:
        # Shortest paths by algorithm number, with 0 for the IGP.
        self.dag = dag
        self._num_demands = len(pairs)
        dag_by_number = {
            0: dag,
            **{
                definition.number: definition.dag(dag.topology, dag.links.metric)
                for definition in definitions
            },
        }
        # Number of the algorithm that the segment lists use; -1 without lists.
        list_algorithm = (
            policies.algorithm_number if policies is not None and policies.lists else -1
        )
        if list_algorithm >= 0 and not (algorithm_by_demand == list_algorithm).any():
            algorithm_text = (
                f"algorithm {list_algorithm}" if list_algorithm else "algorithm 0, the IGP's own"
            )
            raise InputError.invalid(
                "--policies",
                "",
                f"the lists are of {algorithm_text}, which no demand uses",
                "assign demands to it with --algorithm-of",
            )
        # Pairs (demand indices, routing), one for each algorithm in use.
        self._routing_by_algorithm = [
            (
                demands,
                IgpRouting(
                    dag_by_number[number],
                    pairs[demands],
                    policies if number == list_algorithm else None,
                ),
            )
            for number in np.unique(algorithm_by_demand).tolist()
            if len(demands := np.flatnonzero(algorithm_by_demand == number))
        ]

    def loads(self, demand: FloatArray) -> SumOfLoads:
        """Return the link loads of M matrices, given their demands (M, D), Gbit/s."""
        return SumOfLoads(
            [routing.loads(demand[:, demands]) for demands, routing in self._routing_by_algorithm],
            self.dag.topology.capacity,
        )

    def latency(self) -> FloatArray:
        """Return the mean latency (D,) of each demand over its paths, ms; infinite if it loses
        traffic.
        """
        latency = np.empty(self._num_demands)
        for demands, routing in self._routing_by_algorithm:
            latency[demands] = routing.latency()
        return latency

    def measurements(self) -> sp.csr_array:
        """Return the measurement matrix F (E + 2 N, D): counters = F @ demands.

        The rows are the E links, then ingress and egress of each of the N nodes.
        """
        # Columns of the algorithms one after the other, then in the order of the demands.
        columns = sp.hstack(
            [routing.measurements() for _, routing in self._routing_by_algorithm], format="csc"
        )
        order = np.concatenate([demands for demands, _ in self._routing_by_algorithm])
        return sp.csr_array(columns[:, np.argsort(order)])


class SumOfLoads:
    """Link loads of M matrices, summed over groups of demands.

    Args:
        groups: link loads of each group of demands.
        capacity: (E,) Gbit/s.

    Attributes:
        load: (M, E) link loads without failure, Gbit/s.
        lost: (M,) Gbit/s lost without failure: no path, an unusable segment, or a forwarding loop.
    """

    def __init__(self, groups: Sequence[Loads], capacity: FloatArray) -> None:
        self._groups = groups
        self._capacity = capacity
        self.load: FloatArray = np.sum([group.load for group in groups], axis=0)
        self.lost: FloatArray = np.sum([group.lost for group in groups], axis=0)

    def under(
        self, failures: list[list[int]], *, repairing: bool = False, loads: bool = False
    ) -> FailureResults:
        """Return loads and lost traffic under each failure of a set of links.

        Args:
            failures: link indices of each failure.
            repairing: loads during fast reroute instead of after convergence, and traffic at risk.
            loads: also return the loads of all links.
        """

        def under_chunk(chunk: list[list[int]]) -> FailureResults:
            """Return the results of some failures, summed over the groups."""
            results = [
                group.under(chunk, repairing=repairing, loads=True) for group in self._groups
            ]
            load, lost, at_risk = (
                np.sum([getattr(result, name) for result in results], axis=0)
                for name in ("load", "lost", "at_risk")
            )
            return results_of(load, lost, at_risk, self._capacity, loads=loads)

        return in_chunks(failures, self.load.size, under_chunk)
