"""Hedges: split ratios for an interval with unknown demands, from the measured matrices before it.

A hedge is called once per interval, in time order, and sees only its :class:`Past`:

>>> class Mean:  # the optimum of the mean of the last twelve matrices
...     def allocate(self, past):
...         recent = past.last(12)
...         mean = recent.with_demand(recent.demand.mean(0, keepdim=True))
...         return teal.solve(mean, gap=0.001).splits[0]
>>> teal.register_hedge("mean", lambda spec, model: Mean())

Then ``teal next-interval --scheme mean`` evaluates it beside the others in this process; a package
registers its hedges by entry points of the group ``teal.hedges``.  Any other scheme is a hedge too:
it allocates for the last measured matrix.
"""

import lazy_loader

# __init__.pyi lists the public names and their modules; each name is loaded on first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
