"""Networks: topologies, traffic matrices, candidate paths.  Validated when they are made, trusted
afterwards.
"""

import lazy_loader

# The names and their homes stand in __init__.pyi.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
