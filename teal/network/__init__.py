"""Networks: topologies, traffic matrices and candidate paths, validated on construction."""

import lazy_loader

# __init__.pyi lists the names and their modules.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
