"""The files of a run: results written whole, its settings, the manifest, and the journal from which
it continues.

The journal has one line of JSON for each finished unit of work, forced to the disk.

A run that is killed loses only the unit that it was working on.
"""

from __future__ import annotations

import dataclasses
import glob
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_type_hints

from teal.app.typed_values import typed
from teal.errors import InputError
from teal.runtime.storage import atomic_file, check_out_folder, file_key

_PACKAGES = (
    "teal-te",
    "torch",
    "torch-geometric",
    "numba",
    "numpy",
    "scipy",
    "cvxpy",
    "highspy",
    "gurobipy",
    "ortools",
)


def write_manifest(path: Path, settings: Any, machines: Sequence[Mapping[str, Any]] = ()) -> None:
    """Write ``manifest.json``: every setting, the SHA-256 of every file that a setting names,
    versions, machine.

    Args:
        path: path of the file.
        settings: a dataclass.
        machines: from :func:`describe_machine`, of each part of a resumed run; none for this
            machine.
    """
    machine = machines[0] if machines else describe_machine()
    manifest = {"settings": dataclasses.asdict(settings), "inputs": inputs_of(settings), **machine}
    if len(machines) > 1:
        manifest["resumed"] = list(machines[1:])
    path.write_text(json.dumps(manifest, indent=2, default=str) + "\n", encoding="utf-8")


def inputs_of(settings: Any) -> dict[str, str]:
    """SHA-256 of each file or folder that a setting names, or a pattern of one finds; of all
    settings but OUT.
    """
    hashes: dict[str, str] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        texts = value if isinstance(value, tuple) else (value,)
        for text in texts if field.name != "out" else ():
            if isinstance(text, str | Path) and str(text):
                names = sorted(glob.glob(str(text))) if glob.has_magic(str(text)) else [str(text)]
                hashes |= {name: file_key(Path(name)) for name in names if os.path.exists(name)}
    return hashes


def describe_machine() -> dict[str, Any]:
    """Versions of the packages, processor, threads, GPU."""
    import torch  # here, since the names of the files of a run are asked for without it

    installed: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            installed[package] = None
    return {
        "versions": installed,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


JOURNAL = "journal.jsonl"
# State of a training run.
TRAINER = "trainer.safetensors"
# Block of the backward search for the last newline; longer than most lines.
_READ_BYTES = 1 << 16
# Settings that may differ when a run is resumed, because no entry depends on them: where the run is
# written, how many of the worst cases are printed, how many processes work.
_CHANGEABLE_SETTINGS = ("out", "resume", "overwrite", "worst", "workers")


class Entries(Protocol):
    """The results of a run so far, part by part."""

    def entries(self, kind: str) -> Iterator[dict[str, Any]]:
        """The entries of a kind, in the order in which they were added."""
        ...

    def add(self, kind: str, entry: Mapping[str, Any]) -> None:
        """Append an entry, of values that JSON can represent."""
        ...


def require_same(entries: Entries, content: str, where: str) -> None:
    """Check that the run's input is the one recorded earlier, and record it.

    Args:
        entries: entries of the run.
        content: hash of topology, traffic and paths.
        where: option or file to name in the message.

    Raises:
        InputError: the interrupted run had another input.
    """
    if any(entry["content"] != content for entry in entries.entries("instance")):
        raise InputError(
            where, "", "the topology, traffic and paths of the interrupted run", "a different one"
        )
    entries.add("instance", {"content": content})


class MemoryEntries:
    """Entries that are kept in memory alone."""

    def __init__(self) -> None:
        self._entries: dict[str, list[dict[str, Any]]] = {}

    def entries(self, kind: str) -> Iterator[dict[str, Any]]:
        """The entries of a kind (:meth:`Entries.entries`)."""
        return iter(self._entries.get(kind, ()))

    def add(self, kind: str, entry: Mapping[str, Any]) -> None:
        """Append an entry (:meth:`Entries.add`)."""
        self._entries.setdefault(kind, []).append(dict(entry))


class Journal:
    """The file ``journal.jsonl`` of a run: its settings in the first line, then its entries.

    Entries are read from the file whenever they are requested.  A last line that is not complete is
    removed.

    Args:
        path: path of the file.
        settings: dataclass with the settings of the run.
        resume: true to continue the run of the file; false to start a new file, which replaces an
            existing one.

    Attributes:
        header: first line: the settings, SHA-256 of every file that they name, and the machine,
            which may differ when a run is resumed.

    Raises:
        InputError: ``resume``, but there is no such run, or one with other settings or files.
    """

    def __init__(self, path: Path, settings: Any, *, resume: bool) -> None:
        self.path = path
        header = {
            "settings": _as_json(dataclasses.asdict(settings)),
            "inputs": inputs_of(settings),
            "machine": describe_machine(),
        }
        if resume:
            _remove_incomplete_line(path)
            self.header = _read_header(path)
            _require_same_settings(self.header["settings"], header["settings"])
            _require_same_inputs(self.header["inputs"], header["inputs"])
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(header) + "\n", encoding="utf-8")
            self.header = header

    def entries(self, kind: str) -> Iterator[dict[str, Any]]:
        """The entries of a kind, in the order in which they were added.

        Args:
            kind: name of the kind; not ``settings`` or ``instance``, which the journal itself uses.
        """
        start = f'{{"{kind}": '
        with self.path.open(encoding="utf-8") as stream:
            for line in stream:
                if line.startswith(start):
                    yield json.loads(line)[kind]

    def add(self, kind: str, entry: Mapping[str, Any]) -> None:
        """Append an entry, of values that JSON can represent, and force it to the disk."""
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({kind: dict(entry)}) + "\n")
            stream.flush()
            os.fsync(stream.fileno())

    def remove(self) -> None:
        """Delete the file, once the run is complete and its results are written."""
        self.path.unlink(missing_ok=True)


def _as_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings after a round trip through JSON, so that they compare equal to those in a
    file.
    """
    return dict(json.loads(json.dumps(settings, default=str)))


def _remove_incomplete_line(path: Path) -> None:
    """Truncate the file after its last newline."""
    if not path.is_file():
        raise InputError(str(path.parent), "resume", "an interrupted run", f"no {path.name}")
    with path.open("r+b") as stream:
        end = stream.seek(0, os.SEEK_END)
        while end:
            begin = max(0, end - _READ_BYTES)
            stream.seek(begin)
            newline = stream.read(end - begin).rfind(b"\n")
            if newline >= 0:
                stream.truncate(begin + newline + 1)
                return
            end = begin
        stream.truncate(0)


def _read_header(path: Path) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as stream:
            header = json.loads(stream.readline())
        for field in ("settings", "inputs", "machine"):
            if field not in header:
                raise LookupError(f"no {field}")
    except (ValueError, LookupError, TypeError) as error:
        raise InputError(str(path), "", "the journal of an interrupted run", f"{error}") from None
    return dict(header)


def _require_same_settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    for field in {**old, **new}:
        if field not in _CHANGEABLE_SETTINGS and old.get(field) != new.get(field):
            expected = f"the setting of the interrupted run, {old.get(field, 'not set')!r}"
            raise InputError(f"--{field.replace('_', '-')}", "", expected, repr(new.get(field)))


def _require_same_inputs(old: Mapping[str, str], new: Mapping[str, str]) -> None:
    for name in {**old, **new}:
        if old.get(name) != new.get(name):
            what = "no such file" if name not in new else "another content"
            expected = "the file of the interrupted run (--overwrite begins a new one)"
            raise InputError(name, "", expected, what)


SETTINGS = "settings.json"
_Config = TypeVar("_Config")


def save_settings(config: Any) -> None:
    """Write the settings of a run into its folder ``config.out``."""
    config.out.mkdir(parents=True, exist_ok=True)
    with atomic_file(config.out / SETTINGS) as temporary:
        values = dataclasses.asdict(config) | {"resume": False}
        text = json.dumps(values, default=str, indent=1)
        temporary.write_text(text + "\n", encoding="utf-8")


def stored_settings(kind: type[_Config], out: Path) -> _Config | None:
    """The settings of the run in a folder; None if the folder has none.

    Args:
        kind: class of the settings.
        out: folder of the run, with ``settings.json`` or a journal.

    Raises:
        InputError: settings of another command or version.
    """
    for name in (SETTINGS, JOURNAL):
        file = out / name
        try:
            with file.open(encoding="utf-8") as stream:
                values = (
                    json.load(stream)
                    if name == SETTINGS
                    else json.loads(stream.readline())["settings"]
                )
        except FileNotFoundError:
            continue
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise InputError(str(file), "", "the settings of a run", str(error)) from None
        hints = get_type_hints(kind, include_extras=False)
        try:
            return kind(**{field: typed(hints[field], value) for field, value in values.items()})
        except (KeyError, TypeError, ValueError) as error:
            expected = f"the settings of a run of this version and command ({kind.__name__})"
            raise InputError(str(file), "", expected, f"{type(error).__name__}: {error}") from None
    return None


# Options that a message suggests where OUT contains an earlier run.
RESUME_HINT = "--resume or --overwrite"


def write_files(
    folder: Path | str,
    writers: Mapping[str, Callable[[Path], None]],
    *,
    overwrite: bool = True,
) -> None:
    """Write files into ``folder``, each whole or not at all.

    Args:
        folder: folder of the files.
        writers: name of each file, and the function that writes it to the path that it is given.
        overwrite: whether existing ones may be replaced.

    Raises:
        InputError: there are such files in it, and ``overwrite`` is false.
    """
    if not overwrite:
        check_out_folder(Path(folder), tuple(writers), overwrite=False)
    for name, write in writers.items():
        with atomic_file(Path(folder) / name) as temporary:
            write(temporary)
