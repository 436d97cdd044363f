"""Networks as files: what is registered survives a restart, and every replica sees the same.

One folder holds two files a network: ``NAME.json``, what it was registered with, and
``NAME.links.json``, what has happened to its links since, and the number of additions of paths.
Once paths were added, ``NAME.paths/GENERATION.npz`` holds all of them.  Files are replaced whole,
so a reader never sees half of one.  On several machines the folder must be shared.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from teal.network import PathSet
from teal.network.path_file import save_paths
from teal.runtime.storage import atomic_files, small_text
from teal.serving.engine.errors import (
    LOCKED,
    ServiceError,
    not_found,
    replaced,
    storage_fault,
    unreadable,
    wrong,
)

NAMES = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_GENERATION = r"[0-9a-f]{32}"  # names a folder, so that nothing else may stand in a file
_LOCK_PATIENCE_S = 2.0  # that another process may hold the folder's lock
_LINKS = ".links.json"
_MAX_FILE_BYTES = 256 << 20
_OPEN_EVERY_S = 1.0  # between two times that the files of a network are opened to see their version
_PRIVATE = 0o600  # files are for the service's user alone
_MEASURED = ".measured"  # folder with a folder for each registration
_PATHS = ".paths"  # folder with a file for each registration to which paths were added


class Version(NamedTuple):
    """Changes whenever a network or its links do."""

    network: int
    links: int


class Stored(NamedTuple):
    """The stored registration of a network.

    Attributes:
        network: what it was registered with.
        links: what has happened to its links, by number.
        generation: number of the registration of its name.
        additions: number of additions of paths.
    """

    network: dict[str, Any]
    links: dict[str, Any]
    generation: str
    additions: int = 0


class Store:
    """The registered networks.

    Args:
        folder: made if it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened_at: dict[str, float] = {}  # by time.monotonic(), the files of each network
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def names(self) -> list[str]:
        """All networks, sorted.

        Raises:
            ServiceError: the folder cannot be read.
        """
        try:
            files = os.listdir(self._folder)
        except OSError as error:
            raise self._unavailable(error) from None
        return sorted(
            name[:-5]
            for name in files
            if name.endswith(".json") and not name.endswith(_LINKS) and not name.startswith(".")
        )

    def version(self, name: str) -> Version:
        """The version of a network's files.

        Files are opened once a second at most, since opening makes a network file system ask its
        server anew.  Between two openings only their status is read, for every call.

        Raises:
            ServiceError: there is none of that name, or its files could not be opened, which is
                noticed a second later at most.
        """
        now = time.monotonic()
        must_open = now - self._opened_at.get(name, -math.inf) >= _OPEN_EVERY_S
        try:
            network = _stamp(self._file(name), must_open=must_open)
            version = Version(network, _stamp(self._links(name), must_open=must_open))
        except OSError as error:
            raise unreadable(name, error) from None
        if version.network:
            if must_open:
                self._opened_at[name] = now
            return version
        self._opened_at.pop(name, None)
        if not self._folder.is_dir():
            raise self._unavailable(FileNotFoundError(errno.ENOENT, "there is none"))
        raise not_found(name, self.names())

    @staticmethod
    def _unavailable(error: OSError) -> ServiceError:
        """The folder itself is gone, or cannot be read."""
        return storage_fault(error, folder_is_there=False) or not_found("")

    def read(self, name: str) -> Stored:
        """Read a network; ``links`` by number.

        Raises:
            ServiceError: there is none of that name, or its files are damaged.
        """
        try:
            stored = _object(self._file(name))
            generation = stored["generation"]
            if not isinstance(generation, str) or not re.fullmatch(_GENERATION, generation):
                raise ValueError(
                    f"a generation of 32 hexadecimal digits, not {str(generation)[:80]!r}"
                )
            links, additions = self._read_links(name, generation)
            return Stored(stored["network"], links, generation, additions)
        except FileNotFoundError:
            raise not_found(name, self.names()) from None
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise unreadable(name, error) from None

    def read_links(self, name: str, generation: str) -> tuple[dict[str, Any], int]:
        """The changes of the links of a registration, by number, and the number of additions of
        paths.

        Raises:
            ServiceError: the file is damaged.
        """
        try:
            return self._read_links(name, generation)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise unreadable(name, error) from None

    def _read_links(self, name: str, generation: str) -> tuple[dict[str, Any], int]:
        try:
            links = _object(self._links(name))
        except FileNotFoundError:
            return {}, 0
        if links["generation"] != generation:
            return {}, 0
        changed, additions = links["links"], links.get("paths", 0)
        if not isinstance(changed, dict) or not all(
            isinstance(change, dict) for change in changed.values()
        ):
            raise ValueError("changes by number of the link expected")
        if not isinstance(additions, int):
            raise ValueError("the number of additions of paths: a number expected")
        return changed, additions

    def put(self, name: str, network: dict[str, Any]) -> bool:
        """Register or replace; whether it is new.  What happened to links of another one counts no
        more.

        The same network again changes nothing: its links, its measured matrices and its answers
        stay.

        Raises:
            ServiceError: something else than a file has the name.
        """
        with self._locked():
            new = not self._file(name).exists()
            with contextlib.suppress(ServiceError):  # there is none, or its files are damaged
                if not new and self.read(name).network == network:
                    return False
            contents: dict[Path, dict[str, Any]] = {
                self._file(name): {"generation": uuid.uuid4().hex, "network": network},
                # Always there, because file systems also remember for a while what is not.
                self._links(name): {"generation": "", "links": {}},
            }
            try:
                _write(contents)
            except IsADirectoryError as error:
                raise unreadable(name, error) from None
        return new

    def change_links(
        self, name: str, changes: dict[str, dict[str, Any]], network: dict[str, Any]
    ) -> None:
        """Add to what has happened to the links: by number, ``{"capacity": Gbit/s, "up": bool}`` or
        one of them.

        Args:
            name: name of the network.
            changes: by number of the link.
            network: network that the numbers belong to; by now another one may be registered.

        Raises:
            ServiceError: there is no network of that name, or another.
        """
        with self._locked():
            stored, links, generation, additions = self.read(name)
            if stored != network:
                raise replaced(name)
            for link, change in changes.items():
                links[link] = {**links.get(link, {}), **change}
            _write(
                {
                    self._links(name): {
                        "generation": generation,
                        "links": links,
                        "paths": additions,
                    }
                }
            )

    def paths_file(self, name: str, generation: str) -> Path:
        """Where the paths of a network are kept, once paths were added."""
        return self._folder / f"{name}{_PATHS}" / f"{generation}.npz"

    def write_paths(self, name: str, generation: str, paths: PathSet, after: int) -> bool:
        """Keep paths in place of those before; False where these are not the ones that ``paths``
        begin with.

        Args:
            name: name of the network.
            generation: registration that they belong to; by now another one may be registered.
            paths: those before, with further ones.
            after: number of additions when these were found.

        Raises:
            ServiceError: there is no network of that name, or another.
        """
        with self._locked():
            stored = self.read(name)
            if stored.generation != generation:
                raise replaced(name)
            if stored.additions != after:
                return False
            self.paths_file(name, generation).parent.mkdir(exist_ok=True, mode=0o700)
            save_paths(self.paths_file(name, generation), paths)
            counted = {
                "generation": generation,
                "links": stored.links,
                "paths": stored.additions + 1,
            }
            _write({self._links(name): counted})
        return True

    def delete(self, name: str) -> None:
        """Forget a network.

        Raises:
            ServiceError: there is none of that name, or something else than a file has it.
        """
        with self._locked():
            try:
                self._file(name).unlink()
                self._links(name).unlink(missing_ok=True)
            except FileNotFoundError:
                raise not_found(name, self.names()) from None
            except IsADirectoryError as error:
                raise unreadable(name, error) from None
            for folder in (_MEASURED, _PATHS):
                shutil.rmtree(self._folder / f"{name}{folder}", ignore_errors=True)

    def measured_folder(self, name: str, generation: str) -> Path:
        """Where what is measured on a network is kept."""
        return self._folder / f"{name}{_MEASURED}" / generation

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One at a time among all processes that write.

        Raises:
            ServiceError: another process keeps the lock.
        """
        end = time.monotonic() + _LOCK_PATIENCE_S
        try:
            lock = os.open(self._folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, _PRIVATE)
        except OSError as error:
            raise storage_fault(error, folder_is_there=False) from None  # type: ignore[misc]
        try:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        message = "another process holds the lock of the folder of networks"
                        raise ServiceError(503, LOCKED, message, _LOCK_PATIENCE_S) from None
                    time.sleep(_LOCK_PATIENCE_S / 100)
            yield
        finally:
            os.close(lock)

    def _file(self, name: str) -> Path:
        if not re.fullmatch(NAMES, name) or name.endswith((".links", _MEASURED, _PATHS)):
            raise wrong(
                "a network's name has up to 64 letters, digits, dots, dashes and underscores, not "
                f"{name[:80]!r}"
            )
        return self._folder / f"{name}.json"

    def _links(self, name: str) -> Path:
        return self._folder / f"{name}{_LINKS}"


def _object(file: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        ValueError: something else is in it.
    """
    try:
        content = json.loads(small_text(file, _MAX_FILE_BYTES))
    except RecursionError:
        raise ValueError(f"{file.name}: too deeply nested") from None
    if not isinstance(content, dict):
        raise ValueError(f"{file.name}: a JSON object expected")
    return content


def _write(contents: dict[Path, dict[str, Any]]) -> None:
    """Write all files or, on a full disk, none."""
    with atomic_files(contents, mode=_PRIVATE) as temporaries:
        for temporary, content in zip(temporaries, contents.values(), strict=True):
            temporary.write_text(json.dumps(content, allow_nan=False), encoding="utf-8")


def _stamp(file: Path, *, must_open: bool) -> int:
    """Which file it is and since when; 0 if there is none.

    Args:
        file: the file.
        must_open: whether to open it, which takes ten times as long as to ask for its status.
    """
    try:
        if must_open:
            os.close(os.open(file, os.O_RDONLY | os.O_NONBLOCK))
        status = os.stat(file)
    except FileNotFoundError:
        return 0
    if not stat.S_ISREG(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "no regular file", str(file))
    return hash((status.st_ino, status.st_mtime_ns, status.st_size))
