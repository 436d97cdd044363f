"""``teal next-interval`` as a Python function; see :mod:`teal.api`."""

from __future__ import annotations

from typing import Any

from teal.app.instance import instance_of, load_network
from teal.app.options import with_options
from teal_next.command import NextIntervals, hedges_of, known_matrices, measure
from teal_next.settings import NextIntervalOptions


@with_options(NextIntervalOptions)
def next_interval(topology: Any, traffic: Any, options: NextIntervalOptions) -> NextIntervals:
    """Evaluate hedges (schemes for unknown demands) over consecutive intervals, without writing
    files.

    Options are the same as in ``teal next-interval``.

    Args:
        topology: a Topology, a networkx graph, a file or a name.
        traffic: TrafficMatrices, a pandas frame, a file or a name.
        options: keyword options of the command; ``scheme`` names the hedges.

    Raises:
        InputError: invalid input.
    """
    hedges = hedges_of(options, options.models[0])
    instance = instance_of(*load_network(topology, traffic, options), options)
    measured = NextIntervals([], {})
    measure(instance, options, hedges, measured, known_matrices(options, instance))
    return measured
