"""Python function of the command `teal availability`; see :mod:`teal.api`."""

from __future__ import annotations

from typing import Any

from teal.app.instance import instance_of, load_network
from teal.app.options import with_options
from teal_availability.report import AvailabilityReport
from teal_availability.settings import AvailabilityOptions
from teal_availability.study import availability_of


@with_options(AvailabilityOptions)
def availability(topology: Any, traffic: Any, options: AvailabilityOptions) -> AvailabilityReport:
    """Measure the availability of a network, without writing files.

    Options are the same as in ``teal availability``; the option ``availability`` is the
    availability target of the guarantees.

    Args:
        topology: a Topology, a networkx graph, a file or a name.
        traffic: TrafficMatrices, a pandas frame, a file or a name.
        options: keyword options of the command.

    Raises:
        InputError: invalid input.
        SolverError: the program of a guarantee was not solved.
    """
    return availability_of(instance_of(*load_network(topology, traffic, options), options), options)
