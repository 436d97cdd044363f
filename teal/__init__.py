"""Teal: learned traffic engineering for wide-area networks.  This is the public API.

>>> import teal
>>> topology = teal.load_topology("b4")
>>> traffic = teal.load_traffic("gravity:seed=0,count=10,load=2", topology)
>>> paths = teal.compute_paths(topology, traffic.pairs)
>>> problem = teal.Problem.create(topology, paths, teal.Objective(), traffic.read([0]))
>>> allocation = teal.make_scheme("lp-all").solve(problem)  # or "teal", with a model's folder
>>> teal.assess(problem, allocation).gap
"""

from typing import Any

import lazy_loader

from teal.runtime.openmp import set_wait_policy

set_wait_policy()  # before anything loads an OpenMP library
__version__ = "0.1.0"

# The names and their homes stand in __init__.pyi; each is loaded on first use.
_of_core, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    """A public name of this package, else of the packages that entry points in the group
    ``teal.packages`` announce.
    """
    try:
        return _of_core(name)
    except AttributeError:
        if name.startswith("_"):
            raise
        from teal.deprecated import NAMES
        from teal.spec import Registry

        packages: Registry[Any] = Registry("package", "teal.packages")
        for package in packages.names():
            try:
                module = packages[package]
            except ImportError:
                continue
            if name in module.__all__ or name in NAMES.get(module.__name__, {}):
                return getattr(module, name)
        raise
