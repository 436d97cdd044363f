"""Commands of packages: settings, outcomes, tables, charts, pages and files.

A package announces a mapping from names to :class:`Command` by an entry point in the group
``teal.commands``.
"""

from teal.runtime.lazy_names import lazy_names

# command.pyi lists the names and their modules; each name is loaded on first use.
__getattr__, __all__ = lazy_names(__name__, __file__)
