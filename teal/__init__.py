"""Teal: learned traffic engineering for wide-area networks.  This is the public API.

>>> import teal
>>> topology = teal.load_topology("b4")
>>> traffic = teal.load_traffic("gravity:seed=0,count=10,load=2", topology)
>>> paths = teal.compute_paths(topology, traffic.pairs)
>>> problem = teal.Problem.create(topology, paths, teal.Objective(), traffic.read([0]))
>>> allocation = teal.make_scheme("lp-all").solve(problem)  # or "teal", with a model's folder
>>> teal.assess(problem, allocation).gap
"""

import lazy_loader

from teal.runtime.openmp import set_wait_policy

set_wait_policy()  # before anything loads an OpenMP library
__version__ = "0.1.0"

# The names and their homes stand in __init__.pyi; each is loaded on first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
