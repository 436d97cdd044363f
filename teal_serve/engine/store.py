"""Persistent store of registered networks, in a folder that all replicas share.

Each network has two files: ``NAME.json`` with its registration, and ``NAME.links.json`` with later
link changes and the number of path additions. After an addition, ``NAME.paths/GENERATION.npz``
holds the whole path set. Files are replaced atomically; writers hold a lock file. On several
machines the folder must be shared.
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
from teal_serve.engine.errors import (
    LOCKED,
    ServiceError,
    invalid_request,
    not_found,
    replaced,
    storage_fault,
    unreadable,
)

# Valid names of networks.
NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
# Valid identifiers of a registration; they are used as names of folders and files, so that a
# damaged file must not contain anything else.
_GENERATION_PATTERN = r"[0-9a-f]{32}"
# Maximum wait for the lock file, seconds.
_LOCK_PATIENCE_S = 2.0
# Suffix of the file of link changes.
_LINKS_SUFFIX = ".links.json"
# Larger files are not read.
_MAX_FILE_BYTES = 256 << 20
# Minimum interval between two openings of a network's files, seconds.
_OPEN_INTERVAL_S = 1.0
# Files are readable by the user of the service only.
_PRIVATE_MODE = 0o600
# Suffix of the folder of measured matrices, with a folder for each registration.
_MEASURED_SUFFIX = ".measured"
# Suffix of the folder of path sets, with a file for each registration with added paths.
_PATHS_SUFFIX = ".paths"


class Version(NamedTuple):
    """Fingerprints of the files of a network.

    Attributes:
        network: fingerprint of the file of the registration; 0 if it is missing.
        links: fingerprint of the file of link changes and path additions; 0 if it is missing.
    """

    network: int
    links: int


class StoredNetwork(NamedTuple):
    """Stored registration of a network.

    Attributes:
        network: settings of the registration.
        links: link index -> change {"capacity": Gbit/s, "up": bool}; either key may be missing.
        generation: identifier of the registration.
        paths_version: number of path additions.
    """

    network: dict[str, Any]
    links: dict[str, Any]
    generation: str
    paths_version: int = 0


class Store:
    """Store of the registered networks in a state folder.

    Args:
        folder: state folder; created if missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Last opening of the files of each network, by time.monotonic().
        self._opened_at: dict[str, float] = {}
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def names(self) -> list[str]:
        """Return the names of all networks, sorted.

        Raises:
            ServiceError: the folder cannot be read.
        """
        try:
            file_names = os.listdir(self._folder)
        except OSError as error:
            raise self._unavailable(error) from None
        # Registrations are the files NAME.json, without those of link changes and hidden files; the
        # five characters of the suffix are cut off.
        return sorted(
            file_name[:-5]
            for file_name in file_names
            if file_name.endswith(".json")
            and not file_name.endswith(_LINKS_SUFFIX)
            and not file_name.startswith(".")
        )

    def version(self, name: str) -> Version:
        """Return the fingerprints of a network's files.

        Files are opened at most once a second, since opening makes a network file system query its
        server. In between only their status is read, which is faster.

        Raises:
            ServiceError: unknown network, or files that cannot be opened (noticed within a second).
        """
        now = time.monotonic()
        must_open = now - self._opened_at.get(name, -math.inf) >= _OPEN_INTERVAL_S
        try:
            registration_fingerprint = _fingerprint(
                self._registration_file(name), must_open=must_open
            )
            version = Version(
                registration_fingerprint, _fingerprint(self._links_file(name), must_open=must_open)
            )
        except OSError as error:
            raise unreadable(name, error) from None
        if version.network:
            if must_open:
                self._opened_at[name] = now
            return version
        # Without its file the network is unknown, unless the whole folder is missing.
        self._opened_at.pop(name, None)
        if not self._folder.is_dir():
            raise self._unavailable(FileNotFoundError(errno.ENOENT, "it does not exist"))
        raise not_found(name, self.names())

    @staticmethod
    def _unavailable(error: OSError) -> ServiceError:
        """Return the error for a state folder that is missing or cannot be read."""
        return storage_fault(error, folder_is_there=False) or not_found("")

    def read(self, name: str) -> StoredNetwork:
        """Read the registration of a network.

        Raises:
            ServiceError: unknown network, or damaged files.
        """
        try:
            # The generation is used in file names, so that only an identifier is accepted.
            registration = _read_json_object(self._registration_file(name))
            generation = registration["generation"]
            if not isinstance(generation, str) or not re.fullmatch(_GENERATION_PATTERN, generation):
                raise ValueError(
                    f"generation {str(generation)[:80]!r} is not 32 hexadecimal digits"
                )
            links, paths_version = self._read_links(name, generation)
            return StoredNetwork(registration["network"], links, generation, paths_version)
        except FileNotFoundError:
            raise not_found(name, self.names()) from None
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise unreadable(name, error) from None

    def read_links(self, name: str, generation: str) -> tuple[dict[str, Any], int]:
        """Read the link changes of a registration, by link index, and its number of path additions.

        Raises:
            ServiceError: damaged file.
        """
        try:
            return self._read_links(name, generation)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise unreadable(name, error) from None

    def _read_links(self, name: str, generation: str) -> tuple[dict[str, Any], int]:
        """Read link changes and number of path additions from the links file.

        Returns ``({}, 0)`` if the file is missing or belongs to another registration.

        Raises:
            ValueError, LookupError, TypeError, OSError: damaged or unreadable file.
        """
        try:
            links_object = _read_json_object(self._links_file(name))
        except FileNotFoundError:
            return {}, 0
        if links_object["generation"] != generation:
            return {}, 0
        changes = links_object["links"]
        paths_version = links_object.get("paths", 0)
        if not isinstance(changes, dict) or not all(
            isinstance(change, dict) for change in changes.values()
        ):
            raise ValueError("links is not an object of link changes by link index")
        if not isinstance(paths_version, int):
            raise ValueError("paths, the number of path additions, is not an integer")
        return changes, paths_version

    def put(self, name: str, network: dict[str, Any]) -> bool:
        """Register or replace a network; return whether the name is new.

        A replacement discards link changes. Registering the same settings again changes nothing:
        links, measured matrices and answers stay.

        Args:
            name: name of the network.
            network: settings of the registration.

        Raises:
            ServiceError: the path of the network's file is not a regular file.
        """
        with self._hold_lock():
            is_new = not self._registration_file(name).exists()
            # Keep a network with the same settings; replace a damaged one, which `read` refuses.
            with contextlib.suppress(ServiceError):
                if not is_new and self.read(name).network == network:
                    return False
            contents: dict[Path, dict[str, Any]] = {
                self._registration_file(name): {"generation": uuid.uuid4().hex, "network": network},
                # Write it even without link changes, since file systems cache missing files.
                self._links_file(name): {"generation": "", "links": {}},
            }
            try:
                _write_json_objects(contents)
            except IsADirectoryError as error:
                raise unreadable(name, error) from None
        return is_new

    def change_links(
        self, name: str, changes: dict[str, dict[str, Any]], expected_settings: dict[str, Any]
    ) -> None:
        """Merge link changes into the stored ones.

        Args:
            name: name of the network.
            changes: link index -> change ``{"capacity": Gbit/s, "up": bool}``; either key may be
                missing.
            expected_settings: settings to which the link indices belong; if the stored ones
                differ, the name was registered again.

        Raises:
            ServiceError: the network was deleted or replaced.
        """
        with self._hold_lock():
            stored_settings, links, generation, paths_version = self.read(name)
            # The link indices are those of the settings that the caller has read.
            if stored_settings != expected_settings:
                raise replaced(name)
            for link, change in changes.items():
                links[link] = {**links.get(link, {}), **change}
            _write_json_objects(
                {
                    self._links_file(name): {
                        "generation": generation,
                        "links": links,
                        "paths": paths_version,
                    }
                }
            )

    def paths_file(self, name: str, generation: str) -> Path:
        """Return the file of a registration's path set, which exists once paths were added."""
        return self._folder / f"{name}{_PATHS_SUFFIX}" / f"{generation}.npz"

    def write_paths(
        self, name: str, generation: str, paths: PathSet, expected_version: int
    ) -> bool:
        """Store an extended path set, unless another process has added paths (optimistic locking).

        Args:
            name: name of the network.
            generation: identifier of the registration to which the paths belong.
            paths: previous paths of each demand, followed by the new ones.
            expected_version: version of the path set that is extended: how often paths were added.

        Returns:
            whether the path set was stored; False if the stored version is not the expected one.

        Raises:
            ServiceError: the network was deleted or replaced.
        """
        with self._hold_lock():
            stored_network = self.read(name)
            if stored_network.generation != generation:
                raise replaced(name)
            if stored_network.paths_version != expected_version:
                return False
            # Write the path set first: the new version in the links file tells others to load it.
            self.paths_file(name, generation).parent.mkdir(exist_ok=True, mode=0o700)
            save_paths(self.paths_file(name, generation), paths)
            links = {
                "generation": generation,
                "links": stored_network.links,
                "paths": stored_network.paths_version + 1,
            }
            _write_json_objects({self._links_file(name): links})
        return True

    def delete(self, name: str) -> None:
        """Delete a network with its measured matrices and added paths.

        Raises:
            ServiceError: unknown network, or its path is not a regular file.
        """
        with self._hold_lock():
            try:
                self._registration_file(name).unlink()
                self._links_file(name).unlink(missing_ok=True)
            except FileNotFoundError:
                raise not_found(name, self.names()) from None
            except IsADirectoryError as error:
                raise unreadable(name, error) from None
            for suffix in (_MEASURED_SUFFIX, _PATHS_SUFFIX):
                shutil.rmtree(self._folder / f"{name}{suffix}", ignore_errors=True)

    def measured_folder(self, name: str, generation: str) -> Path:
        """Return the folder of a registration's measured matrices, which need not exist."""
        return self._folder / f"{name}{_MEASURED_SUFFIX}" / generation

    @contextlib.contextmanager
    def _hold_lock(self) -> Iterator[None]:
        """Hold the lock file while the block runs; it serialises the writers of all processes.

        Raises:
            ServiceError: another process holds the lock for ``_LOCK_PATIENCE_S``.
        """
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        try:
            lock_descriptor = os.open(
                self._folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, _PRIVATE_MODE
            )
        except OSError as error:
            raise storage_fault(error, folder_is_there=False) from None  # type: ignore[misc]
        # Poll the lock until it is free or the time limit has passed; closing the file releases it.
        try:
            while True:
                try:
                    fcntl.flock(lock_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        message = "another process holds the lock of the state folder; retry"
                        raise ServiceError(503, LOCKED, message, _LOCK_PATIENCE_S) from None
                    time.sleep(_LOCK_PATIENCE_S / 100)
            yield
        finally:
            os.close(lock_descriptor)

    def _registration_file(self, name: str) -> Path:
        """Return the file of a registration; raise ServiceError for an invalid name."""
        if not re.fullmatch(NAME_PATTERN, name) or name.endswith(
            (".links", _MEASURED_SUFFIX, _PATHS_SUFFIX)
        ):
            raise invalid_request(
                f"{name[:80]!r} is not a valid name of a network; use up to 64 letters, digits, "
                "dots, dashes and underscores"
            )
        return self._folder / f"{name}.json"

    def _links_file(self, name: str) -> Path:
        """Return the file of a network's link changes and number of path additions."""
        return self._folder / f"{name}{_LINKS_SUFFIX}"


def _read_json_object(file: Path) -> dict[str, Any]:
    """Read a JSON object from a file.

    Raises:
        ValueError: the file has no JSON object.
    """
    try:
        content = json.loads(small_text(file, _MAX_FILE_BYTES))
    except RecursionError:
        raise ValueError(f"{file.name}: the JSON is too deeply nested") from None
    if not isinstance(content, dict):
        raise ValueError(f"{file.name}: not a JSON object")
    return content


def _write_json_objects(contents: dict[Path, dict[str, Any]]) -> None:
    """Write JSON objects to their files atomically: all files or none, even on a full disk."""
    with atomic_files(contents, mode=_PRIVATE_MODE) as temporaries:
        for temporary, content in zip(temporaries, contents.values(), strict=True):
            temporary.write_text(json.dumps(content, allow_nan=False), encoding="utf-8")


def _fingerprint(file: Path, *, must_open: bool) -> int:
    """Return a hash of inode, modification time and size of a file; 0 if it is missing.

    Args:
        file: file to check.
        must_open: whether to open the file first, which takes ten times as long as reading its
            status.

    Raises:
        OSError: the file cannot be opened, or is not a regular file.
    """
    try:
        # Without blocking, in case the file is a pipe.
        if must_open:
            os.close(os.open(file, os.O_RDONLY | os.O_NONBLOCK))
        status = os.stat(file)
    except FileNotFoundError:
        return 0
    if not stat.S_ISREG(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "not a regular file", str(file))
    return hash((status.st_ino, status.st_mtime_ns, status.st_size))
