"""Compiled functions over arrays: decorators, and types of arrays.

A kernel is compiled by Numba at its first call, stored on disk, and found there by later processes.
"""

from teal.runtime.lazy_names import lazy_names

# kernels.pyi lists the names and their modules; each name is loaded on first use.
__getattr__, __all__ = lazy_names(__name__, __file__)
