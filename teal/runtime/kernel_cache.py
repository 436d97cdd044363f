"""On-disk cache of compiled kernels, keyed by fingerprint (:mod:`teal.runtime.kernel_fingerprint`).

A *specialisation* is a kernel compiled for given argument types.  It is stored in one file,
``FUNCTION.FINGERPRINT.TYPES.nbc`` with hashes of kernel and types, written atomically.  One process
compiles a specialisation while others wait for its file.  The folder is ``kernels`` in
``$NUMBA_CACHE_DIR``, else in Teal's cache folder.  A specialisation that is not there may come with
the package (:mod:`teal.runtime.shipped_kernels`).
:class:`KernelCache` implements Numba's cache interface.

Numba's own cache knows a kernel by path and modification time of its source file: it would not find
kernels that a wheel brings, and would keep one whose called functions in other files have changed.

The files are pickles, as Numba's are.  For security, world-writable folders, and folders or files
of other users, are not used.
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
from teal.runtime.kernel_fingerprint import (
    LANES_MODULE,
    content_hash,
    dependencies,
    fingerprint_of,
)
from teal.runtime.storage import atomic_file, cache_dir, content_key

# Maximum number of versions of a function that stay on disk, so that switching between branches
# compiles nothing.
_MAX_VERSIONS = 3
# Files that were not loaded for this number of days are deleted.
_MAX_UNUSED_DAYS = 60
# Maximum wait for a specialisation that another process compiles; no kernel takes a tenth of it.
_MAX_WAIT_S = 120.0
# Interval between two attempts to lock the specialisation.
_LOCK_POLL_S = 0.02
_FOLDER = "kernels"
# Lock file: a specialisation is locked by a lock of one byte of this file.
_LOCK = "lock"


def folder() -> Path | None:
    """Return the cache folder, created if missing; None if it is not writable, is world-writable,
    or belongs to another user.
    """
    numba_folder = os.environ.get("NUMBA_CACHE_DIR")
    with contextlib.suppress(OSError):
        path = Path(numba_folder) / _FOLDER if numba_folder else cache_dir(_FOLDER)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
        if os.access(path, os.W_OK) and not status.st_mode & stat.S_IWOTH and _is_trusted(status):
            return path
    return None


def _is_trusted(status: os.stat_result) -> bool:
    """Return whether a folder or file belongs to this user or root."""
    return status.st_uid in (os.geteuid(), 0)


class Announcer:
    """Observer of compilations, which subclasses extend; this base class does nothing."""

    def begins(self, name: str) -> None:
        """React to the start of the compilation of the kernel ``name``, which is not on disk."""

    def ends(self, name: str, seconds: float) -> None:
        """React to the end of a compilation, which took ``seconds`` including the kernels that the
        kernel ``name`` calls.
        """


_announcer: Announcer = Announcer()
_num_compiled = 0


def num_compiled() -> int:
    """Return the number of compilations, one for each kernel and its argument types, that this
    process has begun.
    """
    return _num_compiled


@contextlib.contextmanager
def announcing(announcer: Announcer) -> Iterator[None]:
    """Notify ``announcer`` of compilations in the block, by any thread."""
    global _announcer
    previous = _announcer
    _announcer = announcer
    try:
        yield
    finally:
        _announcer = previous


# Whether the program is within a block of `interpreting`.
_is_interpreting = False


@contextlib.contextmanager
def interpreting() -> Iterator[None]:
    """Run kernels without a cached binary in the Python interpreter within the block; for small
    networks this is faster than compiling.

    Kernels over lanes (:mod:`teal.runtime.lanes`), which Python cannot run, are still compiled.
    """
    global _is_interpreting
    previous = _is_interpreting
    _is_interpreting = True
    try:
        # As in machine code, divisions by 0 and overflows are silent.
        with np.errstate(all="ignore"):
            yield
    finally:
        _is_interpreting = previous


def is_interpreting() -> bool:
    """Return whether kernels that are not on disk run in the Python interpreter: whether the
    program is within a block of :func:`interpreting`.
    """
    return _is_interpreting


def _type_text(argument_types: Any) -> str:
    """Return a text that identifies argument types.

    It includes the field names of named tuples: compiled code reads fields by position, so that
    reordered fields need another specialisation.

    Args:
        argument_types: tuple of Numba types, or Numba's signature with ``args``.
    """
    text = repr(argument_types)
    for argument_type in (
        argument_types if isinstance(argument_types, tuple) else getattr(argument_types, "args", ())
    ):
        fields = getattr(argument_type, "fields", None)
        if fields is not None:
            text += f"{argument_type.instance_class.__module__}{fields}"
        element_types = getattr(argument_type, "types", None)
        if element_types is not None:
            text += _type_text(tuple(element_types))
    return text


class KernelCache(NullCache):
    """Disk cache of one kernel's specialisations, with Numba's cache interface.

    Numba passes its signature of the argument types to the methods.

    Args:
        function: the kernel's Python function.
        options: options of its compilation.

    Attributes:
        name: name of the kernel in messages and file names.
    """

    def __init__(self, function: Callable[..., Any], options: object) -> None:
        self._function = function
        self._options = options
        self.name = f"{function.__module__.removeprefix('teal.')}.{function.__qualname__}"
        # Start of each compilation in progress; the compilation of a kernel includes its callees.
        self._start_times: list[float] = []
        # Byte of the lock file that this process holds locked.
        self._locked_byte: int | None = None

    @property
    def cache_path(self) -> str:
        """Name of the cache folder; ``""`` if there is no usable one."""
        return str(folder() or "")

    @functools.cached_property
    def _content_hash(self) -> bytes:
        """SHA-256 of the kernel's code and dependencies, without the machine."""
        return content_hash(self._function, self._options)

    @functools.cached_property
    def _fingerprint(self) -> str:
        """Fingerprint of the kernel for this machine."""
        return fingerprint_of(self._content_hash)

    @functools.cached_property
    def _shipped_fingerprints(self) -> list[str]:
        """Fingerprints of the kernel for the processor levels whose machine code may come with the
        package.
        """
        return [
            fingerprint_of(self._content_hash, target) for target in shipped_kernels.processors()
        ]

    @functools.cached_property
    def _runs_in_python(self) -> bool:
        """Whether Python can run the kernel: it uses no SIMD lanes."""
        return not any(LANES_MODULE in text for _, text in dependencies(self._function, set()))

    def is_better_interpreted(self, signature: Any) -> bool:
        """Return whether a call with these argument types should run in the Python interpreter: the
        program is within a block of :func:`interpreting`, and no machine code is on disk.
        """
        if not _is_interpreting or not self._runs_in_python or self._shipped_name(signature):
            return False
        path = self.path(signature)
        return path is None or not path.exists()

    def path(self, signature: Any) -> Path | None:
        """Return the path of the file for these argument types, which may not exist; None without a
        cache folder.
        """
        cache_folder = folder()
        return (
            None
            if cache_folder is None
            else cache_folder / self._file_name(self._fingerprint, _type_text(signature))
        )

    def _file_name(self, fingerprint: str, types: str) -> str:
        """Return the file name of a specialisation, from a fingerprint of the kernel and the text
        of its argument types.
        """
        type_hash = hashlib.sha256(types.encode()).hexdigest()
        return f"{self.name}.{fingerprint[:24]}.{type_hash[:24]}.nbc"

    def _shipped_name(self, signature: Any) -> str | None:
        """Return the name of the package's file for these argument types; None if there is none."""
        if not self._shipped_fingerprints:
            return None
        types = _type_text(signature)
        names = (self._file_name(fingerprint, types) for fingerprint in self._shipped_fingerprints)
        return next((name for name in names if shipped_kernels.has(name)), None)

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """Load the specialisation for these argument types from disk or from the package.

        Returns None if there is none.  Numba then compiles it, and this process holds its lock
        until :meth:`save_overload`.

        Args:
            signature: Numba's signature of the argument types.
            target_context: Numba's target context.
        """
        # Register the types and functions of Numba's extensions, which stored code may use.
        target_context.refresh()
        # Read the file of the cache folder, else that of the package.
        path = self.path(signature)
        compiled = self._load_file(path, target_context) or self._load_shipped(
            signature, target_context
        )
        if compiled is not None:
            return compiled
        if path is not None:
            self._lock(path)
            # Another process may have compiled it while this one waited for the lock.
            compiled = self._load_file(path, target_context)
            if compiled is not None:
                self._unlock()
                return compiled
        # Numba compiles after this call.
        global _num_compiled
        _num_compiled += 1
        self._start_times.append(time.perf_counter())
        _announcer.begins(self.name)
        return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Write a compiled specialisation to disk, evict old files, and release its lock.

        Args:
            signature: Numba's signature of the argument types.
            compiled: Numba's result of the compilation.
        """
        path = self.path(signature)
        try:
            # Numba cannot store lifted loops, and machine code with addresses of this process.
            if (
                path is not None
                and not compiled.lifted
                and not compiled.library.has_dynamic_globals
            ):
                # If the disk is full, the kernel is compiled in each process.
                with (
                    contextlib.suppress(OSError),
                    atomic_file(path, 0o600) as file,
                ):
                    file.write_bytes(dumps(compiled._reduce()))
                _evict(path)
        finally:
            self._unlock()
            _announcer.ends(self.name, time.perf_counter() - self._start_times.pop())

    def _load_file(self, path: Path | None, target_context: Any) -> Any:
        """Load a specialisation from a file of this user or root; None if there is no such file.

        Args:
            path: path of the file; None without a cache folder.
            target_context: Numba's target context.
        """
        try:
            if path is None:
                return None
            with path.open("rb") as file:
                content = file.read() if _is_trusted(os.fstat(file.fileno())) else None
            # Mark the file as used, so that it is not evicted.
            os.utime(path)
        except OSError:
            return None
        return _deserialise(content, target_context)

    def _load_shipped(self, signature: Any, target_context: Any) -> Any:
        """Load the specialisation that comes with the package for these argument types; None if
        there is none.
        """
        name = self._shipped_name(signature)
        return None if name is None else _deserialise(shipped_kernels.read(name), target_context)

    def _lock(self, path: Path) -> None:
        """Lock the specialisation of a file against compilation by other processes.

        Waits up to two minutes; then, or on a file system without locks, the caller compiles
        without the lock.

        Args:
            path: path of the file in the cache folder.
        """
        self._unlock()
        descriptor = _lock_file(path.parent)
        if descriptor is None:
            return
        # A hash of the file's name selects the byte of the lock file, among 2^56.
        lock_byte = int(content_key(path.name)[:14], 16)
        deadline = time.monotonic() + _MAX_WAIT_S
        while True:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, lock_byte)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    return
                time.sleep(_LOCK_POLL_S)
            except OSError:
                # The file system has no locks.
                return
            else:
                self._locked_byte = lock_byte
                return

    def _unlock(self) -> None:
        """Release the lock of a specialisation, if this process holds one."""
        if self._locked_byte is not None:
            cache_folder = folder()
            descriptor = None if cache_folder is None else _lock_file(cache_folder)
            if descriptor is not None:
                fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, self._locked_byte)
            self._locked_byte = None


def _deserialise(content: bytes | None, target_context: Any) -> Any:
    """Return Numba's result of a compilation from the content of its file; None for no, truncated
    or incompatible content.

    Args:
        content: content of the file; None if it must not be used.
        target_context: Numba's target context.
    """
    if content is None:
        return None
    try:
        return compiler.CompileResult._rebuild(target_context, *pickle.loads(content))
    except (OSError, EOFError, AttributeError, ImportError, TypeError, pickle.UnpicklingError):
        return None


@functools.cache
def _lock_file(cache_folder: Path) -> int | None:
    """Return a file descriptor of the lock file; None if it cannot be opened.

    It is opened once per process: closing a second descriptor would release the locks of the first.
    """
    try:
        return os.open(cache_folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None


def _evict(path: Path) -> None:
    """Delete old versions of the kernel of a file, and files of any kernel that were not loaded for
    60 days.

    The three versions (fingerprints) of the kernel that were loaded last stay.

    Args:
        path: file of the kernel in the cache folder.
    """
    kernel_name = path.name.rsplit(".", 3)[0]
    now = time.time()
    # Time of the last use, and files, of each version of the function.
    last_used: dict[str, float] = {}
    files_of_version: dict[str, list[Path]] = {}
    for file in path.parent.glob("*.nbc"):
        # Another process may remove it at the same time.
        with contextlib.suppress(OSError, ValueError):
            modified_at = file.stat().st_mtime
            file_kernel, version, _, _ = file.name.rsplit(".", 3)
            if now - modified_at > _MAX_UNUSED_DAYS * 86_400:
                file.unlink(missing_ok=True)
            elif file_kernel == kernel_name:
                last_used[version] = max(last_used.get(version, 0.0), modified_at)
                files_of_version.setdefault(version, []).append(file)
    for version in sorted(last_used, key=lambda version: last_used[version], reverse=True)[
        _MAX_VERSIONS:
    ]:
        for file in files_of_version[version]:
            file.unlink(missing_ok=True)


# Seconds of compilation before a command prints a message, so that one or two kernels are silent.
_SILENT_S = 1.0
# Minimum seconds between two such messages.
_MIN_MESSAGE_INTERVAL_S = 5.0


class _CompilationReport(Announcer):
    """Printer of progress messages about a command's compilations.

    Args:
        notify: prints a message.
    """

    def __init__(self, notify: Callable[[str], None]) -> None:
        self._notify = notify
        self._lock = threading.RLock()
        # Number of nested compilations in progress, and of finished ones.
        self._nesting_depth = 0
        self._num_finished = 0
        # Seconds of finished outermost compilations, start of the present one, and time of the last
        # message by time.perf_counter(), 0 for none.
        self._finished_s = 0.0
        self._outermost_begin = 0.0
        self._last_message_time = 0.0

    @override
    def begins(self, name: str) -> None:
        """Start the clock of an outermost compilation; print a message if it takes long so far."""
        with self._lock:
            if not self._nesting_depth:
                self._outermost_begin = time.perf_counter()
            self._nesting_depth += 1
            # The first message comes after a second of compilation, later ones every five seconds.
            elapsed_s = self._finished_s + time.perf_counter() - self._outermost_begin
            if elapsed_s > _SILENT_S and (
                not self._last_message_time
                or time.perf_counter() - self._last_message_time > _MIN_MESSAGE_INTERVAL_S
            ):
                # The first message names the cache folder, later ones the number of kernels.
                cache_folder = folder()
                cache_text = (
                    "not stored, since there is no writable cache folder"
                    if cache_folder is None
                    else f"once; stored in {cache_folder}"
                )
                progress_text = (
                    f" ({self._num_finished} in {elapsed_s:.0f} s so far)"
                    if self._last_message_time
                    else f" for this machine, {cache_text}"
                )
                self._notify(f"compiling {name}{progress_text}")
                self._last_message_time = time.perf_counter()

    @override
    def ends(self, name: str, seconds: float) -> None:
        """Count a finished compilation; add up the seconds of outermost ones."""
        with self._lock:
            self._nesting_depth -= 1
            self._num_finished += 1
            if not self._nesting_depth:
                self._finished_s += time.perf_counter() - self._outermost_begin

    def close(self) -> None:
        """Print the number of compiled kernels and their time, if there was a message before."""
        if self._last_message_time:
            self._notify(f"compiled {self._num_finished} kernels in {self._finished_s:.1f} s")


@contextlib.contextmanager
def announced(notify: Callable[[str], None]) -> Iterator[None]:
    """Print progress of compilations in the block, if they take more than a second."""
    report = _CompilationReport(notify)
    try:
        with announcing(report):
            yield
    finally:
        report.close()
