"""Compiled kernels on disk, each under a stamp of all that its machine code was made from.

Numba's own cache stamps a kernel with the content of its file alone: it keeps the old code of a
helper in another file, and the old value of a constant.  Here a kernel's stamp is the SHA-256 of

    its bytecode and constants, the values of the globals that it reads, and the same of every kernel that it calls;
    the content of :mod:`teal.runtime.lanes`, whose operators kernels use without naming them;
    the options of compilation, the versions of Numba and Python, and the processor with its features.

Neither the place of the sources nor comments and docstrings are part of it: checkouts and
installations share one folder, and an edit compiles only what it changes.  A form is a kernel
compiled for arguments of given types; it is one file, named ``FUNCTION.STAMP.FORM.nbc``, written
whole.  A form is compiled in one process at a time: others wait for its file.  The folder is
``kernels`` in ``$NUMBA_CACHE_DIR``, else in Teal's cache folder.

The files are pickles, as Numba's are: a folder that everybody may write to is not used.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import inspect
import os
import pickle
import platform
import stat
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.core import compiler
from numba.core.caching import NullCache
from numba.core.serialize import dumps
from typing_extensions import override

from teal.runtime.storage import atomic_file, cache_dir, content_key

_KEPT_STAMPS = 3  # of a function: to turn between two or three versions compiles nothing
_KEPT_DAYS = 60  # a form that nothing has loaded for so long is removed
_MAX_WAIT_S = 120.0  # for a form that another process compiles; no kernel takes a tenth of it
_POLL_S = 0.02  # between two looks at its lock
_ALWAYS = ("lanes.py",)  # files beside this one that are part of every stamp
_LANES = "teal.runtime.lanes"  # whose operations exist in machine code alone
_FOLDER = "kernels"
_LOCK = "lock"  # file whose bytes are the locks of forms


def folder() -> Path | None:
    """Where kernels are kept; None where nothing can be written, or where everybody could write."""
    named = os.environ.get("NUMBA_CACHE_DIR")
    with contextlib.suppress(OSError):
        path = Path(named) / _FOLDER if named else cache_dir(_FOLDER)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(path, os.W_OK) and not path.stat().st_mode & stat.S_IWOTH:
            return path
    return None


class Announcer:
    """Is told what is compiled.  This one says nothing."""

    def begins(self, name: str) -> None:
        """A kernel of that name is not on disk and is compiled now."""

    def ends(self, name: str, seconds: float) -> None:
        """It has been compiled, together with the kernels that it calls, in so many seconds."""


_announcer: Announcer = Announcer()
_num_compiled = 0


def num_compiled() -> int:
    """Number of forms that this process has compiled."""
    return _num_compiled


@contextlib.contextmanager
def announcing(announcer: Announcer) -> Iterator[None]:
    """Tell ``announcer`` what is compiled in the block, by any thread."""
    global _announcer
    before, _announcer = _announcer, announcer
    try:
        yield
    finally:
        _announcer = before


# Kinds of globals whose ``repr`` tells their value; among them the types of Numba, such as
# ``float64``.
_PLAIN = (
    bool | int | float | complex | str | bytes | np.generic | np.dtype | Enum | numba.types.Type
)

_interprets = False


@contextlib.contextmanager
def interpreting() -> Iterator[None]:
    """In the block, kernels that are not on disk run as Python: for networks so small that this
    takes less time.

    A kernel over lanes (:mod:`teal.runtime.lanes`), which Python cannot run, is compiled all the
    same.
    """
    global _interprets
    before, _interprets = _interprets, True
    try:
        with np.errstate(all="ignore"):  # as in machine code
            yield
    finally:
        _interprets = before


def is_interpreting() -> bool:
    """Whether kernels that are not on disk run as Python."""
    return _interprets


def stamp(function: Callable[..., Any], options: object = ()) -> str:
    """Hexadecimal SHA-256 of all that the machine code of a kernel depends on but the types of its
    arguments.

    Args:
        function: the kernel's Python function, or anything with one (``py_func``).
        options: options of its compilation; their ``repr`` is part of the stamp.

    Raises:
        TypeError: the kernel reads a global of a kind whose value cannot be told.
    """
    digest = hashlib.sha256(machine().encode())
    digest.update(repr(options).encode())
    seen: set[int] = set()
    for name, text in _of_function(getattr(function, "py_func", function), seen):
        digest.update(f"{name}={text}\0".encode())
    return digest.hexdigest()


@functools.cache
def machine() -> str:
    """SHA-256 of the processor, the versions of Numba and Python, and the files that are part of
    every stamp.
    """
    from numba.core.registry import cpu_target

    processor = cpu_target.target_context.codegen().magic_tuple()
    files = [(Path(__file__).parent / name).read_bytes() for name in _ALWAYS]
    return content_key(files, numba.__version__, platform.python_version_tuple()[:2], processor)


def _of_function(function: Callable[..., Any], seen: set[int]) -> Iterator[tuple[str, str]]:
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
        yield from _of_function(value.py_func, seen)
    elif isinstance(value, types.FunctionType):
        yield from _of_function(value, seen)
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


def _of_types(kinds: Any) -> str:
    """Types of arguments, and the fields of those that are named tuples, which machine code reads
    by position.
    """
    text = repr(kinds)
    for kind in kinds if isinstance(kinds, tuple) else getattr(kinds, "args", ()):
        fields = getattr(kind, "fields", None)
        if fields is not None:
            text += f"{kind.instance_class.__module__}{fields}"
        inner = getattr(kind, "types", None)
        if inner is not None:
            text += _of_types(tuple(inner))
    return text


class KernelCache(NullCache):
    """Numba's interface of a cache, for one kernel.

    Args:
        function: the kernel's Python function.
        options: options of its compilation.
    """

    def __init__(self, function: Callable[..., Any], options: object) -> None:
        self._function, self._options = function, options
        self.name = f"{function.__module__.removeprefix('teal.')}.{function.__qualname__}"
        self._begins: list[float] = []
        self._locked: int | None = None

    @property
    def cache_path(self) -> str:
        """The folder, ``""`` if there is none."""
        return str(folder() or "")

    @functools.cached_property
    def _stamp(self) -> str:
        return stamp(self._function, self._options)

    @functools.cached_property
    def _runs_in_python(self) -> bool:
        return not any(_LANES in text for _, text in _of_function(self._function, set()))

    def is_better_interpreted(self, signature: Any) -> bool:
        """Whether a call with arguments of these types should run as Python."""
        if not _interprets or not self._runs_in_python:
            return False
        path = self.path(signature)
        return path is None or not path.exists()

    def path(self, signature: Any) -> Path | None:
        """The file of the form for arguments of these types; None where nothing can be kept."""
        where = folder()
        if where is None:
            return None
        form = hashlib.sha256(_of_types(signature).encode()).hexdigest()
        return where / f"{self.name}.{self._stamp[:24]}.{form[:24]}.nbc"

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """The form if it is on disk; else None, with its lock held until :meth:`save_overload`."""
        target_context.refresh()
        path = self.path(signature)
        if path is not None:
            form = self._loaded(path, target_context)
            if form is None:
                self._lock(path)
                form = self._loaded(
                    path, target_context
                )  # another process may have compiled it meanwhile
            if form is not None:
                self._unlock()
                return form
        global _num_compiled
        _num_compiled += 1
        self._begins.append(time.perf_counter())
        _announcer.begins(self.name)
        return None

    def save_overload(self, signature: Any, form: Any) -> None:
        """Keep a form, and remove old ones."""
        path = self.path(signature)
        try:
            if path is not None and not form.lifted and not form.library.has_dynamic_globals:
                with (
                    contextlib.suppress(OSError),
                    atomic_file(path, 0o600) as file,
                ):  # a full disk: compiled each time
                    file.write_bytes(dumps(form._reduce()))
                _remove_old(path)
        finally:
            self._unlock()
            _announcer.ends(self.name, time.perf_counter() - self._begins.pop())

    def _loaded(self, path: Path, target_context: Any) -> Any:
        try:
            content = path.read_bytes()
            os.utime(path)  # so that what is in use is kept
            return compiler.CompileResult._rebuild(target_context, *pickle.loads(content))
        except FileNotFoundError:
            return None
        except (OSError, EOFError, AttributeError, ImportError, TypeError, pickle.UnpicklingError):
            return None  # half a file, or one that names what is gone: written anew

    def _lock(self, path: Path) -> None:
        self._unlock()
        descriptor = _lock_file(path.parent)
        if descriptor is None:
            return
        byte, until = int(content_key(path.name)[:14], 16), time.monotonic() + _MAX_WAIT_S
        while True:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
            except BlockingIOError:
                if time.monotonic() > until:
                    return
                time.sleep(_POLL_S)
            except OSError:  # a file system without locks
                return
            else:
                self._locked = byte
                return

    def _unlock(self) -> None:
        if self._locked is not None:
            where = folder()
            descriptor = None if where is None else _lock_file(where)
            if descriptor is not None:
                fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, self._locked)
            self._locked = None


@functools.cache
def _lock_file(where: Path) -> int | None:
    """One descriptor a process: to close a second one of the same file would free the locks of the
    first.
    """
    try:
        return os.open(where / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None


def _remove_old(path: Path) -> None:
    """Remove forms of the same function whose stamps have not been used lately, and all that
    nothing uses any more.
    """
    name, now = path.name.rsplit(".", 3)[0], time.time()
    used: dict[str, float] = {}
    files: dict[str, list[Path]] = {}
    for file in path.parent.glob("*.nbc"):
        with contextlib.suppress(
            OSError, ValueError
        ):  # another process may remove it at the same time
            last = file.stat().st_mtime
            function, key, _, _ = file.name.rsplit(".", 3)
            if now - last > _KEPT_DAYS * 86_400:
                file.unlink(missing_ok=True)
            elif function == name:
                used[key] = max(used.get(key, 0.0), last)
                files.setdefault(key, []).append(file)
    for key in sorted(used, key=lambda key: used[key], reverse=True)[_KEPT_STAMPS:]:
        for file in files[key]:
            file.unlink(missing_ok=True)


# seconds that a command compiles before it prints a message: one or two kernels stay silent
_QUIET_S = 1.0
_EVERY_S = 5.0  # seconds between two such messages


class _Report(Announcer):
    """Messages of one command; kernels that another kernel calls count as parts of it."""

    def __init__(self, notify: Callable[[str], None]) -> None:
        self._notify, self._lock = notify, threading.RLock()
        self._depth, self._kernels, self._seconds, self._begin, self._last = 0, 0, 0.0, 0.0, 0.0

    @override
    def begins(self, name: str) -> None:
        with self._lock:
            if not self._depth:
                self._begin = time.perf_counter()
            self._depth += 1
            spent = self._seconds + time.perf_counter() - self._begin
            if spent > _QUIET_S and (not self._last or time.perf_counter() - self._last > _EVERY_S):
                where = folder()
                kept = (
                    "and kept nowhere: no folder can be written"
                    if where is None
                    else f"once; kept in {where}"
                )
                so_far = (
                    f" ({self._kernels} in {spent:.0f} s so far)"
                    if self._last
                    else f" for this machine, {kept}"
                )
                self._notify(f"compiling {name}{so_far}")
                self._last = time.perf_counter()

    @override
    def ends(self, name: str, seconds: float) -> None:
        with self._lock:
            self._depth -= 1
            self._kernels += 1
            if not self._depth:
                self._seconds += time.perf_counter() - self._begin

    def close(self) -> None:
        """The last message, if there was one before."""
        if self._last:
            self._notify(f"compiled {self._kernels} kernels in {self._seconds:.1f} s")


@contextlib.contextmanager
def announced(notify: Callable[[str], None]) -> Iterator[None]:
    """Say what is compiled in the block, if it takes more than a second."""
    report = _Report(notify)
    try:
        with announcing(report):
            yield
    finally:
        report.close()
