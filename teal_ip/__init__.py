"""Planning and operation of IP networks: IGP routing, metrics, segment lists, counters, surveys
and capacity expansion.

A package over :mod:`teal`, which finds its commands, schemes and service extensions by entry
points.  The public names are those of ``__init__.pyi``.
"""

import lazy_loader

# __init__.pyi lists the public names and their modules; each name is loaded on first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
