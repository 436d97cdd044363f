"""IP networks as they are: the IGP's loads, metrics, segment lists, counters, surveys and
purchases.

A package over :mod:`teal`, which finds its commands, schemes and parts of the service by entry
points.
"""

import lazy_loader

# The names and their homes stand in __init__.pyi; each is loaded on first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
