"""Names of other modules in one module, each imported at its first use."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def lazy_names(module: str, file: str) -> tuple[Callable[[str], Any], list[str]]:
    """Return ``__getattr__`` and ``__all__`` of a module whose stub imports all of its names.

    The stub lies beside the module, with the suffix ``.pyi``, and has ``from HOME import NAME``
    lines; type checkers read it, too.

    Args:
        module: ``__name__`` of the module.
        file: ``__file__`` of the module.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    # Module that defines each name.
    module_of_name = {
        alias.name: str(node.module)
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    def load(name: str) -> Any:
        if name not in module_of_name:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(module_of_name[name]), name)
        # Found without this function from now on.
        setattr(sys.modules[module], name, value)
        return value

    return load, sorted(module_of_name)
