"""Stamps of kernels: what the machine code of a kernel depends on but the types of its arguments.

Numba's own cache stamps a kernel with the content of its file alone: it keeps the old code of a
helper in another file, and the old value of a constant.  Here a kernel's stamp is the SHA-256 of

    its bytecode and constants, the values of the globals that it reads, and the same of every kernel that it calls;
    the content of :mod:`teal.runtime.lanes`, whose operators kernels use without naming them;
    the options of compilation, the versions of Numba and Python, and the processor with its features.

Neither the place of the sources nor comments and docstrings are part of it: checkouts and
installations share one folder, and an edit compiles only what it changes.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import platform
import sys
import types
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np

from teal.runtime.storage import content_key

_ALWAYS = ("lanes.py",)  # files beside this one that are part of every stamp
# Of Numba: what it may call (Intel's library of functions on vectors, where it is installed), and
# what it makes of the same text.
_SETTINGS = (
    "USING_SVML",
    "OPT",
    "LOOP_VECTORIZE",
    "SLP_VECTORIZE",
    "BOUNDSCHECK",
    "DEBUGINFO_DEFAULT",
)
LANES_MODULE = "teal.runtime.lanes"  # whose operations exist in machine code alone

# Kinds of globals whose ``repr`` tells their value; among them the types of Numba, such as
# ``float64``.
_PLAIN = (
    bool | int | float | complex | str | bytes | np.generic | np.dtype | Enum | numba.types.Type
)


class Processor(NamedTuple):
    """A target of machine code.

    Attributes:
        triple: architecture, vendor and operating system, as LLVM names them.
        name: LLVM's name of a processor, or of a level of processors.
        features: instructions beside those that the name implies, such as ``+avx2``, with commas;
            "" for none.
    """

    triple: str
    name: str
    features: str


@functools.cache
def processor() -> Processor:
    """The processor that Numba compiles for: this machine's, unless ``NUMBA_CPU_NAME`` says
    another.
    """
    from numba.core.registry import cpu_target

    return Processor(*cpu_target.target_context.codegen().magic_tuple())


def stamp(
    function: Callable[..., Any], options: object = (), target: Processor | None = None
) -> str:
    """Hexadecimal SHA-256 of all that the machine code of a kernel depends on but the types of its
    arguments.

    Args:
        function: the kernel's Python function, or anything with one (``py_func``).
        options: options of its compilation; their ``repr`` is part of the stamp.
        target: what it is compiled for; None for :func:`processor`.

    Raises:
        TypeError: the kernel reads a global of a kind whose value cannot be told.
    """
    return stamp_of(content(function, options), target)


def stamp_of(of_kernel: bytes, target: Processor | None = None) -> str:
    """The stamp of a kernel whose :func:`content` is known."""
    return hashlib.sha256(machine(target).encode() + of_kernel).hexdigest()


def content(function: Callable[..., Any], options: object = ()) -> bytes:
    """SHA-256 of what a stamp holds beside the machine; see :func:`stamp`."""
    digest = hashlib.sha256(repr(options).encode())
    for name, text in of_function(getattr(function, "py_func", function), set()):
        digest.update(f"{name}={text}\0".encode())
    return digest.digest()


@functools.cache
def machine(target: Processor | None = None) -> str:
    """SHA-256 of a processor, the versions of Numba and Python, Numba's settings of compilation,
    and the files that are part of every stamp.
    """
    files = [(Path(__file__).parent / name).read_bytes() for name in _ALWAYS]
    version = platform.python_version_tuple()[:2]
    settings = [repr(getattr(numba.config, name, None)) for name in _SETTINGS]
    of_target = tuple(target or processor())
    return content_key(files, numba.__version__, version, settings, of_target)


def of_function(function: Callable[..., Any], seen: set[int]) -> Iterator[tuple[str, str]]:
    """Name and content of everything that the code of a function depends on."""
    if id(function) in seen:
        return
    seen.add(id(function))
    name = f"{function.__module__}.{function.__qualname__}"
    yield name, repr(function.__defaults__)
    if function.__closure__:
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__, strict=True):
            yield from _of_value(f"{name}.{variable}", cell.cell_contents, seen)
    yield from _of_code(name, function.__code__, function.__doc__, function.__globals__, seen)


def _of_code(
    name: str, code: types.CodeType, doc: str | None, values: dict[str, Any], seen: set[int]
) -> Iterator[tuple[str, str]]:
    yield f"{name}.code", f"{code.co_code.hex()} {code.co_varnames} {code.co_names} {code.co_flags}"
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _of_code(f"{name}.{constant.co_name}", constant, None, values, seen)
        else:
            is_doc = isinstance(constant, str) and constant == doc
            yield f"{name}.constant", repr(None if is_doc else constant)
    for variable in code.co_names:
        if variable in values:  # the others are attributes, and functions of Python
            yield from _of_value(f"{name}.{variable}", values[variable], seen)


def _of_value(name: str, value: Any, seen: set[int]) -> Iterator[tuple[str, str]]:
    """Name and content of a global that a kernel reads."""
    if hasattr(value, "py_func"):  # another kernel
        yield name, repr(getattr(value, "targetoptions", ()))
        yield from of_function(value.py_func, seen)
    elif isinstance(value, types.FunctionType):
        yield from of_function(value, seen)
    elif value is None or isinstance(value, _PLAIN):
        yield name, f"{type(value).__name__} {value!r}"
    elif isinstance(value, tuple):
        yield name, f"{type(value).__name__} of {len(value)}"
        for position, entry in enumerate(value):
            yield from _of_value(f"{name}[{position}]", entry, seen)
    elif isinstance(value, np.ndarray):
        yield name, content_key(value)
    elif isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
        yield name, f"{value.__module__}.{value.__qualname__}{value._fields}"
    elif isinstance(value, types.ModuleType):
        yield name, _of_module(value.__name__)
    elif isinstance(value, type | types.BuiltinFunctionType | np.ufunc) or hasattr(value, "_defn"):
        definition = getattr(value, "_defn", value)  # of an intrinsic of Numba
        yield (
            name,
            (
                f"{definition.__name__} "
                f"{_of_module(getattr(definition, '__module__', None) or 'numpy')}"
            ),
        )
    else:
        raise TypeError(
            f"{name}: a kernel may read numbers, strings, types, arrays, kernels and modules, not "
            f"{value!r}"
        )


@functools.cache
def _of_module(name: str) -> str:
    """Libraries are part of the stamp by name: Numba's version decides what it makes of them. Ours
    are by content.
    """
    source = None
    if name.partition(".")[0] not in ("numba", "numpy", "math", "builtins"):
        with contextlib.suppress(TypeError, OSError):
            source = Path(inspect.getfile(sys.modules[name])).read_bytes()
    return name if source is None else f"{name} {hashlib.sha256(source).hexdigest()}"
