"""Availability: in which share of the time what part of the traffic is carried, and which traffic
can be promised for a share of the time.

>>> from teal_availability import components_of, pattern_probabilities, promise_common_share
>>> parts = components_of(problem.topology, cable_availability=0.999)
>>> patterns = pattern_probabilities(problem, parts)
>>> promise_common_share(problem, patterns, availability=0.9995).value

Components (cables, nodes, groups) fail independently of each other.  What a demand keeps of rates
that are reserved on its paths depends on which of these survive alone, so that the program of a
promise has a few rows a demand, whatever the number of failures at once; nothing is left out.  What
congestion after failures costs is measured state by state, by descending probability, and the rest
of the time is a difference between a lower and an upper bound.
"""

import lazy_loader

# The names and their homes stand in __init__.pyi; each is loaded on first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
