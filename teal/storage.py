"""Where Teal keeps things on disk, and how it writes them: all or nothing."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import platformdirs


def cache_dir(kind: str) -> Path:
    """The folder for cached things of one kind: ``$TEAL_CACHE_DIR``, else the platform's cache folder."""
    root = os.environ.get("TEAL_CACHE_DIR") or platformdirs.user_cache_dir("teal")
    path = Path(root) / kind
    path.mkdir(parents=True, exist_ok=True)
    return path


def content_key(*parts: object) -> str:
    """A hexadecimal SHA-256 over ``parts``: arrays by bytes and dtype, anything else by its text."""
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
    """A hexadecimal SHA-256 of a file, or of the names and contents of the files in a folder."""
    digest = hashlib.sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
        digest.update(file.name.encode())
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path that becomes ``path`` if the block succeeds, and vanishes if it does not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(handle)
    os.chmod(name, 0o666 & ~_umask())
    try:
        yield Path(name)
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Like :func:`atomic_file` for a folder; an existing one is replaced only at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    os.chmod(temporary, 0o777 & ~_umask())
    try:
        yield temporary
        if path.exists():
            old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.old."))
            os.replace(path, old)
            os.replace(temporary, path)
            shutil.rmtree(old)
        else:
            os.replace(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def packaged(name: str) -> Path:
    """A file or folder that comes with Teal: ``data/b4.json``, ``models/...``.

    In a checkout these lie beside the package, in an installed wheel inside it.
    """
    package = Path(__file__).parent
    inside = package / "_shipped" / name
    return inside if inside.exists() else package.parent / name
