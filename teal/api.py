"""``teal allocate`` as a Python function, over networks and traffic from files, names or objects.

>>> teal.allocate(topology, traffic, gap=1e-3)

Keyword arguments have the names of the command's options, with _ for -, and are validated in the
same way.  Each package has such a module ``api``; ``teal`` exports the functions of all of them.
"""

from __future__ import annotations

from typing import Any

from teal.allocation import allocate as allocation
from teal.allocation.allocate import AllocatedHistory
from teal.allocation.settings import AllocateOptions
from teal.app.instance import instance_of, load_network
from teal.app.options import with_options
from teal.deprecated import with_moved_names


@with_options(AllocateOptions)
def allocate(topology: Any, traffic: Any, options: AllocateOptions) -> AllocatedHistory:
    """Allocate every matrix to a certified gap, as ``teal allocate``, without writing files.

    Args:
        topology: a Topology, a networkx graph, a file or a name.
        traffic: TrafficMatrices, a pandas frame, a file or a name.
        options: keyword options of the command.

    Raises:
        InputError: invalid input.
    """
    instance = instance_of(*load_network(topology, traffic, options), options)
    return allocation.allocate(instance, options)


__getattr__ = with_moved_names(__name__)
