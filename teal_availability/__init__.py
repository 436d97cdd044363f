"""Availability analysis: the share of the time in which traffic arrives, and bandwidth guarantees
with an availability target (SLAs), called promises in commands and public names.

>>> from teal_availability import components_of, pattern_probabilities, promise_common_share
>>> parts = components_of(problem.topology, cable_availability=0.999)
>>> patterns = pattern_probabilities(problem, parts)
>>> promise_common_share(problem, patterns, availability=0.9995).value

Components (cables, nodes, shared-risk groups) fail independently. A demand with rates reserved on
its paths depends only on the set of its paths that survive, so the program of a guarantee has a few
rows per demand, and its probabilities are exact for any number of simultaneous failures. Losses by
congestion are measured state by state, by descending probability; the unlisted probability
separates the lower from the upper bound.
"""

import lazy_loader

# __init__.pyi lists the public names and their modules; each is loaded on first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
