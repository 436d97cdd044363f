"""Hedges: splits for an interval whose demands nobody knows yet, from what was measured before.

A hedge is asked once for each interval, in order of time, and answers from its :class:`Past` alone:

>>> class Mean:  # the optimum of the mean of the last twelve matrices
...     def allocate(self, past):
...         recent = past.last(12)
...         mean = recent.with_demand(recent.demand.mean(0, keepdim=True))
...         return teal.solve(mean, gap=0.001).splits[0]
>>> teal.register_hedge("mean", lambda spec, model: Mean())

From then on ``teal next-interval --scheme mean`` measures it beside the others in this process; a
package announces its hedges by entry points in the group ``teal.hedges``.  Any other scheme is a
hedge too: it allocates for the last matrix that was measured.
"""

import lazy_loader

# The names and their homes stand in __init__.pyi; each is loaded on first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
