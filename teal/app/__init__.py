"""The parts that all commands share: settings, networks loaded from them, files of a run, tables,
charts and pages.
"""

import lazy_loader

# Matplotlib takes a third of a second.
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["plot"])
