"""Record passing comparisons of floats whose outcome may depend on the order of sums.

Two correct BLAS libraries, or two processors, add the same numbers in another order and differ in the
last bits.  An assertion such as ``bound <= cost`` then passes on one machine and fails on the next
wherever both sides are equal in exact arithmetic.  This plugin for pytest finds such assertions while
they pass: it replaces each comparison inside an ``assert`` by a call that records

- ``close``: operands that differ, by at most 1e-9 relative to the larger one;
- ``equal``: operands that are equal to the last bit and not 0.  Safe if one code path computes both;
- ``zero``: one operand is 0, and the other one is at most 1e-12 in magnitude.

Usage, with the table in ``build/near-comparisons.tsv``::

    python -m pytest -p tests.near_comparisons
    python -m tests.near_comparisons
"""

from __future__ import annotations

import ast
import collections
import numbers
import operator
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _pytest.assertion import rewrite

RELATIVE = 1e-9
NEAR_ZERO = 1e-12
FOLDER = Path(__file__).parents[1] / "build" / "near-comparisons"

# By the name of a comparison's class in the syntax tree.
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "Lt": operator.lt,
    "LtE": operator.le,
    "Gt": operator.gt,
    "GtE": operator.ge,
    "Eq": operator.eq,
}
# (file, line, operator, kind) -> number of pairs of numbers
_counts: collections.Counter[tuple[str, int, str, str]] = collections.Counter()


def kinds(left: object, right: object) -> dict[str, int]:
    """Count the pairs of elements of each kind (see the module) in one comparison."""
    first, second = _floats(left), _floats(right)
    if first is None or second is None:
        return {}
    try:
        first, second = np.broadcast_arrays(first, second)
    except ValueError:
        return {}
    finite = np.isfinite(first) & np.isfinite(second)
    first, second = first[finite], second[finite]
    larger = np.maximum(np.abs(first), np.abs(second))
    smaller = np.minimum(np.abs(first), np.abs(second))
    differ = first != second
    found = {
        "close": differ & (np.abs(first - second) <= RELATIVE * larger),
        "equal": ~differ & (larger > 0),
        "zero": differ & (smaller == 0) & (larger <= NEAR_ZERO),
    }
    return {kind: int(mask.sum()) for kind, mask in found.items() if mask.any()}


def _floats(value: object) -> Any:
    """Return a number or an array as float64, or None where it has no floats."""
    if isinstance(value, bool) or not isinstance(value, (numbers.Real, np.ndarray)):
        if type(value).__module__ != "torch" or not hasattr(value, "detach"):
            return None
        value = value.detach().cpu().numpy()
    array = np.asarray(value)
    is_numeric = np.issubdtype(array.dtype, np.floating) or np.issubdtype(array.dtype, np.integer)
    return array.astype(np.float64) if is_numeric else None


def _has_float(value: object) -> bool:
    """Whether a value is, or contains, a floating-point number other than a literal's integer."""
    dtype = getattr(value, "dtype", None)
    return isinstance(value, float) or (dtype is not None and "float" in str(dtype))


def compare(place: tuple[str, int], names: tuple[str, ...], *operands: Any) -> Any:
    """Return what the chain of comparisons returns, and record its close operands if it holds."""
    result: Any = True
    for name, left, right in zip(names, operands, operands[1:], strict=False):
        result = _OPERATORS[name](left, right)
        if _has_float(left) or _has_float(right):
            for kind, count in kinds(left, right).items():
                _counts[(*place, name, kind)] += count
        if len(names) > 1 and not result:
            return result
    return result


class _Recorder(ast.NodeTransformer):
    """Replace comparisons inside assertions by calls of `compare`."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._is_in_assert = False

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        self._is_in_assert = True
        node.test = self.visit(node.test)
        self._is_in_assert = False
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        names = [type(each).__name__ for each in node.ops]
        if not self._is_in_assert or any(name not in _OPERATORS for name in names):
            return node
        place = ast.Tuple([ast.Constant(self._file), ast.Constant(node.lineno)], ast.Load())
        operators = ast.Tuple([ast.Constant(name) for name in names], ast.Load())
        function = ast.Attribute(
            ast.Subscript(
                ast.Attribute(
                    ast.Call(ast.Name("__import__", ast.Load()), [ast.Constant("sys")], []),
                    "modules",
                    ast.Load(),
                ),
                ast.Constant(__name__),
                ast.Load(),
            ),
            "compare",
            ast.Load(),
        )
        call = ast.Call(function, [place, operators, node.left, *node.comparators], [])
        return ast.fix_missing_locations(ast.copy_location(call, node))


def _install() -> None:
    """Transform test modules before pytest rewrites their assertions; use no stored bytecode."""
    rewrite_asserts = rewrite.rewrite_asserts

    def recorded(
        mod: ast.Module,
        source: bytes,
        module_path: str | None = None,
        config: pytest.Config | None = None,
    ) -> None:
        _Recorder(module_path or "?").visit(mod)
        rewrite_asserts(mod, source, module_path, config)

    rewrite.rewrite_asserts = recorded
    rewrite._read_pyc = lambda *arguments, **options: None
    sys.dont_write_bytecode = True


def pytest_configure(config: pytest.Config) -> None:
    """Empty the folder of records, once for all workers."""
    if not hasattr(config, "workerinput"):
        FOLDER.mkdir(parents=True, exist_ok=True)
        for file in FOLDER.glob("*.tsv"):
            file.unlink()


def pytest_sessionfinish() -> None:
    """Write the counts of this process."""
    lines = ["\t".join(map(str, (*key, count))) for key, count in sorted(_counts.items())]
    (FOLDER / f"{os.getpid()}.tsv").write_text("\n".join(lines))


def main() -> None:
    """Add the records of all workers up, and print and store the table."""
    total: collections.Counter[tuple[str, ...]] = collections.Counter()
    for file in FOLDER.glob("*.tsv"):
        for line in file.read_text().splitlines():
            *key, count = line.split("\t")
            total[tuple(key)] += int(count)
    lines = ["\t".join((*key, str(count))) for key, count in sorted(total.items())]
    FOLDER.with_suffix(".tsv").write_text("\n".join(lines) + "\n")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
else:
    _install()
