"""Fingerprints of compiled kernels: SHA-256 of everything their machine code depends on.

Numba's own cache checks only the file of a kernel, so that it would reuse code compiled with an old
helper of another file, or an old value of a constant.  A fingerprint covers, apart from the types
of the arguments:

- bytecode and constants of the kernel, and values of the globals that it reads;
- bytecode, constants and globals of every kernel that it calls;
- the content of :mod:`teal.runtime.lanes` and :mod:`teal.runtime.thread_team`, whose functions emit
  machine code;
- the options of compilation, the versions of Numba and Python, and the processor with its features.

It excludes the location of the sources, comments and docstrings, so that checkouts and
installations share one cache, and an edit recompiles only affected kernels.  Entry point:
:func:`fingerprint`.
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

# Files beside this one that are part of every fingerprint.
_COMMON_FILES = ("lanes.py", "thread_team.py")
# Settings of Numba that change machine code: Intel's short vector math library, and code
# generation.
_NUMBA_SETTINGS = (
    "USING_SVML",
    "OPT",
    "LOOP_VECTORIZE",
    "SLP_VECTORIZE",
    "BOUNDSCHECK",
    "DEBUGINFO_DEFAULT",
)
# Module of operations that exist in machine code only.
LANES_MODULE = "teal.runtime.lanes"

# Types of globals whose ``repr`` determines their value; Numba's types, such as ``float64``, are
# among them.
_VALUE_TYPES = (
    bool | int | float | complex | str | bytes | np.generic | np.dtype | Enum | numba.types.Type
)


class Processor(NamedTuple):
    """Processor for which machine code is compiled, as LLVM describes it.

    Attributes:
        triple: architecture, vendor and operating system, as LLVM names them.
        name: LLVM's name of a processor or a processor level.
        features: comma-separated instruction sets beyond the name's, such as ``+avx2``; "" for
            none.
    """

    triple: str
    name: str
    features: str


@functools.cache
def processor() -> Processor:
    """Return the processor that Numba compiles for: this machine's, or ``NUMBA_CPU_NAME``."""
    from numba.core.registry import cpu_target

    return Processor(*cpu_target.target_context.codegen().magic_tuple())


def fingerprint(
    function: Callable[..., Any], options: object = (), target: Processor | None = None
) -> str:
    """Return the hexadecimal SHA-256 of a kernel's dependencies, apart from the types of its
    arguments.

    Args:
        function: the kernel's Python function, or an object with one (``py_func``).
        options: options of its compilation; their ``repr`` is included.
        target: compilation target; None for :func:`processor`.

    Raises:
        TypeError: the kernel reads a global of an unsupported type.
    """
    return fingerprint_of(content_hash(function, options), target)


def fingerprint_of(kernel_hash: bytes, target: Processor | None = None) -> str:
    """Return the hexadecimal fingerprint of a kernel for a processor.

    Args:
        kernel_hash: result of :func:`content_hash` for the kernel.
        target: compilation target; None for :func:`processor`.
    """
    return hashlib.sha256(machine_fingerprint(target).encode() + kernel_hash).hexdigest()


def content_hash(function: Callable[..., Any], options: object = ()) -> bytes:
    """Return the SHA-256 of a kernel's code, constants, globals, callees and options, without the
    machine.

    Args:
        function: the kernel's Python function, or an object with one (``py_func``).
        options: options of its compilation; their ``repr`` is included.
    """
    digest = hashlib.sha256(repr(options).encode())
    for name, text in dependencies(getattr(function, "py_func", function), set()):
        digest.update(f"{name}={text}\0".encode())
    return digest.digest()


@functools.cache
def machine_fingerprint(target: Processor | None = None) -> str:
    """Return the SHA-256 of processor, versions of Numba and Python, Numba's settings, and the
    files that are part of every fingerprint.
    """
    file_contents = [(Path(__file__).parent / name).read_bytes() for name in _COMMON_FILES]
    version = platform.python_version_tuple()[:2]
    settings = [repr(getattr(numba.config, name, None)) for name in _NUMBA_SETTINGS]
    target_fields = tuple(target or processor())
    return content_key(file_contents, numba.__version__, version, settings, target_fields)


def dependencies(function: Callable[..., Any], visited: set[int]) -> Iterator[tuple[str, str]]:
    """Yield name and content of each dependency of a function: bytecode, constants, default
    arguments, closure, globals, and those of called functions.

    Args:
        function: the Python function.
        visited: ids of the functions whose dependencies were yielded already (written).
    """
    if id(function) in visited:
        return
    visited.add(id(function))
    name = f"{function.__module__}.{function.__qualname__}"
    yield name, repr(function.__defaults__)
    if function.__closure__:
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__, strict=True):
            yield from _value_dependencies(f"{name}.{variable}", cell.cell_contents, visited)
    yield from _code_dependencies(
        name, function.__code__, function.__doc__, function.__globals__, visited
    )


def _code_dependencies(
    name: str,
    code: types.CodeType,
    doc: str | None,
    global_values: dict[str, Any],
    visited: set[int],
) -> Iterator[tuple[str, str]]:
    """Yield name and content of each dependency of a code object.

    Args:
        name: qualified name of its function.
        code: the code object.
        doc: docstring, which is excluded; None for none.
        global_values: globals of the function, by name.
        visited: ids of the functions whose dependencies were yielded already (written).
    """
    yield f"{name}.code", f"{code.co_code.hex()} {code.co_varnames} {code.co_names} {code.co_flags}"
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code_dependencies(
                f"{name}.{constant.co_name}", constant, None, global_values, visited
            )
        else:
            is_doc = isinstance(constant, str) and constant == doc
            yield f"{name}.constant", repr(None if is_doc else constant)
    for variable in code.co_names:
        # Names that are not globals are attributes or built-in functions.
        if variable in global_values:
            yield from _value_dependencies(f"{name}.{variable}", global_values[variable], visited)


def _value_dependencies(name: str, value: Any, visited: set[int]) -> Iterator[tuple[str, str]]:
    """Yield name and content of a global that a kernel reads, and of its dependencies.

    Args:
        name: qualified name of the global.
        value: its value.
        visited: ids of the functions whose dependencies were yielded already (written).

    Raises:
        TypeError: a value of an unsupported type.
    """
    # Another kernel: its options of compilation, and its function.
    if hasattr(value, "py_func"):
        yield name, repr(getattr(value, "targetoptions", ()))
        yield from dependencies(value.py_func, visited)
    # A Python function, and constants: numbers, texts, tuples, arrays.
    elif isinstance(value, types.FunctionType):
        yield from dependencies(value, visited)
    elif value is None or isinstance(value, _VALUE_TYPES):
        yield name, f"{type(value).__name__} {value!r}"
    elif isinstance(value, tuple):
        yield name, f"{type(value).__name__} of {len(value)}"
        for position, entry in enumerate(value):
            yield from _value_dependencies(f"{name}[{position}]", entry, visited)
    elif isinstance(value, np.ndarray):
        yield name, content_key(value)
    # A class of named tuples: its name and fields.
    elif isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
        yield name, f"{value.__module__}.{value.__qualname__}{value._fields}"
    elif isinstance(value, types.ModuleType):
        yield name, _module_content(value.__name__)
    elif isinstance(value, type | types.BuiltinFunctionType | np.ufunc) or hasattr(value, "_defn"):
        # A type, a built-in function, or an intrinsic of Numba: its name and module.
        definition = getattr(value, "_defn", value)
        module = getattr(definition, "__module__", None) or "numpy"
        yield name, f"{definition.__name__} {_module_content(module)}"
    else:
        raise TypeError(
            f"{name}: a kernel cannot read a global of type {type(value).__name__}, {value!r}; use "
            "numbers, strings, types, arrays, kernels or modules"
        )


@functools.cache
def _module_content(name: str) -> str:
    """Return the name of a module, with the SHA-256 of its source unless it is part of Python,
    NumPy or Numba, which Numba's version determines.
    """
    source = None
    if name.partition(".")[0] not in ("numba", "numpy", "math", "builtins"):
        with contextlib.suppress(TypeError, OSError):
            source = Path(inspect.getfile(sys.modules[name])).read_bytes()
    return name if source is None else f"{name} {hashlib.sha256(source).hexdigest()}"
