"""Compiled kernels on disk, each under the stamp of all that its machine code was made from
(:mod:`teal.runtime.kernel_stamp`).

A form is a kernel compiled for arguments of given types; it is one file, named
``FUNCTION.STAMP.FORM.nbc``, written whole.  A form is compiled in one process at a time: others
wait for its file.  The folder is ``kernels`` in ``$NUMBA_CACHE_DIR``, else in Teal's cache folder.
What it lacks may come with the package (:mod:`teal.runtime.shipped_kernels`).

The files are pickles, as Numba's are: neither a folder that everybody may write to is used, nor a
folder or a file of another user.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import pickle
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numba.core import compiler
from numba.core.caching import NullCache
from numba.core.serialize import dumps
from typing_extensions import override

from teal.runtime import shipped_kernels
from teal.runtime.kernel_stamp import LANES_MODULE, content, of_function, stamp_of
from teal.runtime.storage import atomic_file, cache_dir, content_key

_KEPT_STAMPS = 3  # of a function: to turn between two or three versions compiles nothing
_KEPT_DAYS = 60  # a form that nothing has loaded for so long is removed
_MAX_WAIT_S = 120.0  # for a form that another process compiles; no kernel takes a tenth of it
_POLL_S = 0.02  # between two looks at its lock
_FOLDER = "kernels"
_LOCK = "lock"  # file whose bytes are the locks of forms


def folder() -> Path | None:
    """Where kernels are kept; None where nothing can be written, where everybody could write, or
    where the folder is another user's.
    """
    named = os.environ.get("NUMBA_CACHE_DIR")
    with contextlib.suppress(OSError):
        path = Path(named) / _FOLDER if named else cache_dir(_FOLDER)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.stat()
        if os.access(path, os.W_OK) and not found.st_mode & stat.S_IWOTH and _is_trusted(found):
            return path
    return None


def _is_trusted(found: os.stat_result) -> bool:
    """Whether a folder or file is this user's, or the administrator's."""
    return found.st_uid in (os.geteuid(), 0)


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
    def _content(self) -> bytes:
        return content(self._function, self._options)

    @functools.cached_property
    def _stamp(self) -> str:
        return stamp_of(self._content)

    @functools.cached_property
    def _shipped_stamps(self) -> list[str]:
        """Stamps of the levels of processors whose machine code may come with the package."""
        return [stamp_of(self._content, target) for target in shipped_kernels.processors()]

    @functools.cached_property
    def _runs_in_python(self) -> bool:
        return not any(LANES_MODULE in text for _, text in of_function(self._function, set()))

    def is_better_interpreted(self, signature: Any) -> bool:
        """Whether a call with arguments of these types should run as Python."""
        if not _interprets or not self._runs_in_python or self._shipped(signature):
            return False
        path = self.path(signature)
        return path is None or not path.exists()

    def path(self, signature: Any) -> Path | None:
        """The file of the form for arguments of these types; None where nothing can be kept."""
        where = folder()
        return None if where is None else where / self._name(self._stamp, _of_types(signature))

    def _name(self, stamp: str, types: str) -> str:
        form = hashlib.sha256(types.encode()).hexdigest()
        return f"{self.name}.{stamp[:24]}.{form[:24]}.nbc"

    def _shipped(self, signature: Any) -> str | None:
        """Name of the file of the package for arguments of these types."""
        if not self._shipped_stamps:
            return None
        types = _of_types(signature)
        names = (self._name(stamp, types) for stamp in self._shipped_stamps)
        return next((name for name in names if shipped_kernels.has(name)), None)

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """The form if it is on disk; else None, with its lock held until :meth:`save_overload`."""
        target_context.refresh()
        path = self.path(signature)
        form = self._loaded(path, target_context) or self._from_package(signature, target_context)
        if form is not None:
            return form
        if path is not None:
            self._lock(path)
            form = self._loaded(path, target_context)  # another process may have compiled it
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

    def _loaded(self, path: Path | None, target_context: Any) -> Any:
        """The form of a file of this user; None if there is none."""
        try:
            if path is None:
                return None
            with path.open("rb") as file:
                form = file.read() if _is_trusted(os.fstat(file.fileno())) else None
            os.utime(path)  # so that what is in use is kept
        except OSError:
            return None
        return _rebuilt(form, target_context)

    def _from_package(self, signature: Any, target_context: Any) -> Any:
        """The form that comes with the package; None if there is none."""
        name = self._shipped(signature)
        return None if name is None else _rebuilt(shipped_kernels.read(name), target_context)

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


def _rebuilt(form: bytes | None, target_context: Any) -> Any:
    """The form that a file holds; None for half a file, or one that names what is gone."""
    if form is None:
        return None
    try:
        return compiler.CompileResult._rebuild(target_context, *pickle.loads(form))
    except (OSError, EOFError, AttributeError, ImportError, TypeError, pickle.UnpicklingError):
        return None


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
