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

from teal.deprecated import find_moved_packages
from teal.runtime.openmp import set_wait_policy

find_moved_packages()
# Before any module loads an OpenMP library, which reads the policy once.
set_wait_policy()
__version__ = "0.1.0"

# __init__.pyi lists the public names and their modules; each is loaded at its first use.
_core_attribute, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    """Return the object with a public name, ``teal.NAME``: of this package, or of a package that an
    entry point in the group ``teal.packages`` announces.
    """
    try:
        return _core_attribute(name)
    except AttributeError:
        if name.startswith("_"):
            raise
        from teal.deprecated import NAMES, with_old_names
        from teal.spec import Registry

        if name in NAMES[__name__]:
            return with_old_names(__name__, _core_attribute)(name)
        # Public names of the packages that entry points announce; skip one that cannot be imported.
        packages: Registry[Any] = Registry("package", "teal.packages")
        for package in packages.names():
            try:
                module = packages[package]
            except ImportError:
                continue
            if name in module.__all__ or name in NAMES.get(module.__name__, {}):
                return getattr(module, name)
        raise
