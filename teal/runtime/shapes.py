"""Array types with their shapes, for annotations: ``Float[Tensor, "B D K"]``.

The axis letters are those of ARCHITECTURE.md.  Shapes are checked under test: tests/conftest.py
loads jaxtyping and installs its import hook before Teal is imported.  Outside tests jaxtyping is
not loaded and need not be installed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING or "jaxtyping" in sys.modules:
    from jaxtyping import Bool, Float, Int
else:

    class _Unchecked:
        """Stand-in for jaxtyping's types that ignores shapes: ``Float[Tensor, "B D"]`` is
        ``Tensor``.
        """

        def __class_getitem__(cls, item):
            return item[0]

    Bool = Float = Int = _Unchecked

__all__ = ["Bool", "Float", "Int"]
