"""Worth of the demands of a network: weights and bandwidth functions that it was registered with."""

from __future__ import annotations

import dataclasses

import numpy as np

from teal.errors import InputError
from teal.formats.bandwidth_functions import bandwidth_functions_of
from teal.network import PathSet, Topology
from teal.network.bandwidth_functions import BandwidthFunctions
from teal.runtime.arrays import FloatArray
from teal.serving.engine.errors import wrong
from teal.serving.engine.requests import NetworkSpec


@dataclasses.dataclass(frozen=True, eq=False)
class Worth:
    """Worth of the demands of a network, where they are not worth the same.

    Attributes:
        weight: (D,) of each demand; None for 1 each.
        functions: bandwidth functions; None for none.
    """

    weight: FloatArray | None = None
    functions: BandwidthFunctions | None = None


def worth_of(topology: Topology, paths: PathSet, spec: NetworkSpec) -> Worth:
    """Weights and functions as a network was registered with them.

    Raises:
        ServiceError: an unknown node, a pair of nodes twice, a function that is not concave, or a demand without one.
    """
    weight, functions = None, None
    if spec.weights:
        number = {pair: d for d, pair in enumerate(map(tuple, paths.pairs.tolist()))}
        node, weight = topology.node_index(), np.ones(paths.num_demands)
        named = {(one.source, one.target): one.weight for one in spec.weights}
        if len(named) < len(spec.weights):
            raise wrong("weights: each pair of nodes once")
        for (source, target), value in named.items():
            demand = number.get((node.get(source, -1), node.get(target, -1)))
            if demand is None:
                raise wrong(f"weights: two nodes of the network, not {source[:80]} and {target[:80]}")
            weight[demand] = value
    if spec.functions:
        pairs_of = [(one.source, one.target) for one in spec.functions]
        if len(set(pairs_of)) < len(pairs_of):
            raise wrong("functions: each pair of nodes once, and one without nodes")
        if same := [source for source, target in pairs_of if source and source == target]:
            raise wrong(f"functions: two nodes of the network, not {same[0][:80]} and {same[0][:80]}")
        listed = [one.model_dump(exclude_none=True, mode="json") for one in spec.functions]
        try:
            functions = bandwidth_functions_of(listed, "functions", topology, paths.pairs)
        except InputError as error:
            raise wrong(str(error)[:300]) from None
    return Worth(weight, functions)
