"""File storage: cache folders, content hashes, atomic writes, packaged files, JSON values."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import json
import math
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from teal.errors import InputError

# Prefix of scratch folders, and the file in each that its process holds locked.
_SCRATCH_PREFIX = ".state-"
_SCRATCH_LOCK = "lock"
# Random bytes in the name of a temporary file.
_RANDOM_BYTES = 4
# Transient errors: too many open files, no memory, network disks.
_TRANSIENT_ERRORS = (
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EAGAIN,
    errno.ESTALE,
    errno.EIO,
    errno.ETIMEDOUT,
)


def cache_dir(kind: str) -> Path:
    """Return the folder ``kind`` (``paths``, ``traffic``, ...) in ``$TEAL_CACHE_DIR``, else in the
    platform's cache folder; created if missing.
    """
    root = os.environ.get("TEAL_CACHE_DIR")
    if not root:
        try:
            import platformdirs
        except ImportError:
            # Optional where only the library runs.
            root = str(Path.home() / ".cache" / "teal")
        else:
            root = platformdirs.user_cache_dir("teal")
    path = Path(root) / kind
    path.mkdir(parents=True, exist_ok=True)
    return path


def content_key(*parts: object) -> str:
    """Return the hexadecimal SHA-256 of ``parts``: arrays by bytes, shape and dtype, other values
    by ``repr``.
    """
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            digest.update(f"{part.dtype.str}{part.shape}".encode())
            digest.update(np.ascontiguousarray(part).tobytes())
        else:
            digest.update(repr(part).encode())
        digest.update(b"\0")
    return digest.hexdigest()


def file_key(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file or, for a folder, of names and contents of its .xml
    files.
    """
    # A folder's files in the order of their paths, each after its relative path.
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*.xml")) if path.is_dir() else [path]:
        if path.is_dir():
            digest.update(str(file.relative_to(path)).encode() + b"\0")
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def atomic_file(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """Yield a temporary path that replaces ``path`` if the block succeeds, and is deleted
    otherwise.

    Args:
        path: path of the file.
        mode: permissions of the file, before the umask.

    Raises:
        OSError: the error of the block; a full disk names ``path`` instead of the temporary file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A hidden file with a random name in the same folder, so that replacing is atomic.
    random = secrets.token_hex(_RANDOM_BYTES)
    name = str(path.parent / f".{path.name}.{random}{path.suffix}")
    try:
        handle = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    # The system has applied the umask, which a process cannot read without changing it.
    permissions = stat.S_IMODE(os.fstat(handle).st_mode)
    os.close(handle)
    try:
        yield Path(name)
        # After the block: some writers replace the temporary file by a new one.
        os.chmod(name, permissions)
        os.replace(name, path)
    except OSError as error:
        if error.errno is not None and error.filename in (None, name):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        Path(name).unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_files(paths: Iterable[Path], mode: int = 0o666) -> Iterator[list[Path]]:
    """Yield temporary paths that replace ``paths`` if the block succeeds; if it fails, all files
    stay unchanged.

    Args:
        paths: paths of the files.
        mode: permissions of the files, before the umask.
    """
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(atomic_file(path, mode)) for path in paths]


def check_out_folder(
    path: Path, files: Sequence[str], *, overwrite: bool, hint: str = "--overwrite"
) -> None:
    """Raise InputError unless ``files`` can be written into the folder ``path``.

    Args:
        path: the folder; it may not exist yet.
        files: names of the files to write; other files in the folder are not touched.
        overwrite: whether existing files may be replaced.
        hint: option that the message suggests.
    """
    # The nearest existing parent must be a writable folder.
    for parent in (path, *path.parents):
        if parent.exists():
            if not parent.is_dir():
                raise InputError.invalid(
                    str(path), "out", f"{parent} is a file, not a folder", "name another folder"
                )
            if not os.access(parent, os.W_OK | os.X_OK):
                raise InputError.invalid(
                    str(path), "out", f"no permission to write into {parent}", "name another folder"
                )
            break
    existing = [name for name in files if (path / name).exists()]
    if existing and not overwrite:
        raise InputError.invalid(
            str(path),
            "out",
            f"files of an earlier run exist: {', '.join(existing)}",
            f"name another folder, or use {hint}",
        )


def is_transient(error: BaseException) -> bool:
    """Return whether an error is transient: too many open files, no memory, a network disk."""
    return isinstance(error, OSError) and error.errno in _TRANSIENT_ERRORS


def small_text(file: Path, most_bytes: int) -> str:
    """Read the text of a regular file of at most ``most_bytes``.

    Raises:
        OSError: a missing file, or not a regular file: a pipe would block its reader.
        ValueError: the file is too large, or not UTF-8 text.
    """
    with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK), encoding="utf-8") as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "no regular file", str(file))
        if status.st_size > most_bytes:
            raise ValueError(
                f"{file.name} has {status.st_size:,} bytes, above the limit of {most_bytes:,}"
            )
        return stream.read(most_bytes + 1)


def remove_files(folder: Path, names: Iterable[str]) -> None:
    """Delete the files with these names in ``folder``, if they exist."""
    for name in names:
        (folder / name).unlink(missing_ok=True)


def check_out_file(path: Path, suffixes: tuple[str, ...], *, overwrite: bool) -> None:
    """Raise InputError unless a file can be written.

    Args:
        path: path of the file.
        suffixes: accepted endings of its name, of one or two parts, such as .csv and .rfc8345.json.
        overwrite: whether an existing file may be replaced.
    """
    double_suffix = "".join(path.suffixes[-2:]).lower()
    if path.suffix.lower() not in suffixes and double_suffix not in suffixes:
        raise InputError(
            str(path),
            "out",
            "a file named " + " or ".join(f"*{s}" for s in suffixes),
            repr(path.name),
        )
    if path.is_dir():
        raise InputError.invalid(
            str(path), "out", "this is a folder, but a file is written", "name a file"
        )
    check_out_folder(path.parent, (), overwrite=overwrite)
    if path.exists() and not overwrite:
        raise InputError.invalid(
            str(path), "out", "the file exists already", "name another file, or use --overwrite"
        )


def require_disk(folder: Path, needed: int, what: str) -> None:
    """Raise InputError unless a file system has enough free space.

    Args:
        folder: existing folder of the file system.
        needed: required bytes.
        what: description of the files, for the message.
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise InputError.invalid(
            str(folder),
            "",
            f"{needed / 1e9:.1f} GB on disk are needed for {what}, but only {free / 1e9:.1f} GB "
            "are free",
        )


class ScratchFolder:
    """Temporary folder in the cache for the state of a running command; deleted at the end.

    Folders of killed processes, whose locks are free, are deleted when the next one is created.

    Args:
        kind: name of the subfolder of Teal's cache folder.

    Attributes:
        path: path of the folder.
    """

    def __init__(self, kind: str) -> None:
        parent = cache_dir(kind)
        for folder in parent.glob(f"{_SCRATCH_PREFIX}*"):
            _remove_if_unused(folder)
        self.path = Path(tempfile.mkdtemp(dir=parent, prefix=_SCRATCH_PREFIX))
        self._lock = (self.path / _SCRATCH_LOCK).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def close(self) -> None:
        """Delete the folder with its files, and release its lock."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _remove_if_unused(folder: Path) -> None:
    """Delete a scratch folder unless a running process holds its lock."""
    # Without a lock file, another process is just creating the folder.
    with (
        contextlib.suppress(OSError),
        (folder / _SCRATCH_LOCK).open() as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)


def packaged(name: str) -> Path:
    """Return the path of a file or folder of the package: ``data/b4.json``, ``models/...``.

    In a checkout they lie beside the package, in an installed wheel inside it.
    """
    package = Path(__file__).parents[1]
    installed = package / "_shipped" / name
    return installed if installed.exists() else package.parent / name


def model_folder(name: Path) -> Path:
    """Return the folder of a checkpoint: ``name`` if it exists, else the packaged checkpoint of
    that name.
    """
    shipped = packaged(f"models/{name}")
    return shipped if not name.exists() and len(name.parts) == 1 and shipped.is_dir() else name


def json_value(value: Any) -> Any:
    """Convert dataclasses to objects, NumPy scalars to Python numbers, and non-finite numbers to
    null.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: json_value(getattr(value, field.name))
            for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {key: json_value(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(part) for part in value]
    # A NumPy scalar.
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def parsed_json(text: str) -> Any:
    """Parse a JSON text, refusing repeated members of objects.

    Raises:
        ValueError: invalid JSON, or a repeated member of an object, of which :func:`json.loads`
            keeps the last.
    """
    try:
        return json.loads(text, object_pairs_hook=_reject_duplicates)
    except RecursionError:
        raise ValueError("lists or objects are nested too deeply") from None


def _reject_duplicates(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object from its members; raise ValueError for a repeated name."""
    result = dict[str, Any]()
    for name, value in members:
        if name in result:
            raise ValueError(f"an object has two members named {name!r}")
        result[name] = value
    return result
