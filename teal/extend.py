"""Record types, base classes and registries for what packages add to Teal.

Objectives, conditions, models, file formats and engines; ``import teal`` has the functions that
register schemes, hedges, models and objectives.
"""

from teal.runtime.lazy_names import lazy_names

# extend.pyi lists the names and their modules; each name is loaded on first use.
__getattr__, __all__ = lazy_names(__name__, __file__)
