"""Results for people: tables, plots, the report, files of rows."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, submodules=["plot"]
)  # matplotlib takes a third of a second
