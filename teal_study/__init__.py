"""Studies: schemes compared on the same matrices, models trained, losses by failures.

``learning`` trains models (``teal train``, ``teal pretrain``), ``evaluation`` compares schemes
(``teal evaluate``, ``bench``, ``sweep``, ``report``, ``audit``), ``planning`` computes
losses by failures (``teal plan``).
"""

import lazy_loader

# __init__.pyi lists the public names and their modules; each name is loaded on first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
