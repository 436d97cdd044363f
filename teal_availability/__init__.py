"""Availability analysis: the share of the time in which traffic arrives, and bandwidth guarantees
with an availability target (SLAs), called promises in commands.

>>> from teal_availability import components_of, survival_probabilities, guarantee_common_fraction
>>> parts = components_of(problem.topology, cable_availability=0.999)
>>> survival_states = survival_probabilities(problem, parts)
>>> guarantee_common_fraction(problem, survival_states, availability=0.9995).value

Components (cables, nodes, shared-risk groups) fail independently. A demand with rates reserved on
its paths depends only on the set of its paths that survive, so the program of a guarantee has a few
rows per demand, and its probabilities are exact for any number of simultaneous failures. Losses by
congestion are measured state by state, by descending probability; the unlisted probability
separates the lower from the upper bound.
"""

import lazy_loader

from teal.deprecated import with_old_names

# __init__.pyi lists the public names and their modules; each is loaded on first use.
_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = with_old_names(__name__, _load)
