"""Files of a run: results, settings, manifest, and the journal that ``--resume`` continues.

Result files are written atomically.  The journal has one line of JSON for each finished unit of
work, forced to the disk, so that a killed run loses only the unit in progress.  Entry points:
:class:`Journal`, :func:`write_files`, :func:`write_manifest`.
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
    """Write ``manifest.json``: all settings, the SHA-256 of every input file, versions of packages,
    and the machine.

    Args:
        path: path of the file.
        settings: dataclass with the settings of the run.
        machines: descriptions of the machines of each part of a resumed run, by
            :func:`describe_machine`; () for this machine.
    """
    machine = machines[0] if machines else describe_machine()
    manifest = {"settings": dataclasses.asdict(settings), "inputs": inputs_of(settings), **machine}
    if len(machines) > 1:
        manifest["resumed"] = list(machines[1:])
    path.write_text(json.dumps(manifest, indent=2, default=str) + "\n", encoding="utf-8")


def inputs_of(settings: Any) -> dict[str, str]:
    """Return the SHA-256 of each input file or folder, by its name.

    Inputs are existing paths and matches of patterns in the fields of a dataclass, except ``out``.
    """
    # Each text or path of a field, or of its tuple, may be a file, a folder or a pattern.
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
    """Return a description of this machine for a manifest, a dict for JSON: versions of packages,
    processor, numbers of cores and threads, and GPU.
    """
    # Imported here: torch is slow to load, and other functions of this module do not need it.
    import torch

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
    """Return the model name of the processor, or what Python knows of it where Linux's
    ``/proc/cpuinfo`` lacks it.
    """
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
# Settings that may differ when a run is resumed, since no journal entry depends on them: output
# folder, number of printed cases, and number of processes.
_CHANGEABLE_SETTINGS = ("out", "resume", "overwrite", "worst", "workers")


class Entries(Protocol):
    """Results of a run so far: lists of JSON objects, each list under a name, its kind."""

    def entries(self, kind: str) -> Iterator[dict[str, Any]]:
        """Yield the entries of the list ``kind``, in the order in which they were added."""
        ...

    def add(self, kind: str, entry: Mapping[str, Any]) -> None:
        """Append an entry, whose values JSON can represent, to the list ``kind``."""
        ...


def require_same(entries: Entries, content: str, where: str) -> None:
    """Raise InputError unless the run's input equals that of the interrupted run; then record its
    hash in ``entries``.

    Args:
        entries: entries of the run (written).
        content: hash of topology, traffic and paths.
        where: option or file to name in the message.

    Raises:
        InputError: the interrupted run had another input.
    """
    if any(entry["content"] != content for entry in entries.entries("instance")):
        raise InputError.invalid(
            where,
            "",
            "topology, traffic or paths differ from those of the interrupted run",
            "restore them, or start a new run with --overwrite",
        )
    entries.add("instance", {"content": content})


class MemoryEntries:
    """Results of a run in memory, for a run without a journal."""

    def __init__(self) -> None:
        self._entries: dict[str, list[dict[str, Any]]] = {}

    def entries(self, kind: str) -> Iterator[dict[str, Any]]:
        """Return an iterator over the entries of the list ``kind``, in the order in which they were
        added.
        """
        return iter(self._entries.get(kind, ()))

    def add(self, kind: str, entry: Mapping[str, Any]) -> None:
        """Append a copy of an entry to the list ``kind``."""
        self._entries.setdefault(kind, []).append(dict(entry))


class Journal:
    """File ``journal.jsonl`` of a run: its settings in the first line, then an entry per line.

    Entries are read from the file whenever they are requested.  An incomplete last line, of a
    killed run, is removed.

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
        """Write the first line of a new file, or check that of the file to continue."""
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
        """Yield the entries of the list ``kind`` from the file, in the order in which they were
        added.

        Args:
            kind: name of the list; not ``settings``, with which the first line begins.
        """
        line_start = f'{{"{kind}": '
        with self.path.open(encoding="utf-8") as stream:
            for line in stream:
                if line.startswith(line_start):
                    yield json.loads(line)[kind]

    def add(self, kind: str, entry: Mapping[str, Any]) -> None:
        """Append an entry, whose values JSON can represent, to the list ``kind``, and force it to
        the disk.
        """
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({kind: dict(entry)}) + "\n")
            stream.flush()
            os.fsync(stream.fileno())

    def remove(self) -> None:
        """Delete the file, once the run is complete and its results are written."""
        self.path.unlink(missing_ok=True)


def _as_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings after a round trip through JSON, for comparison with those of a file."""
    return dict(json.loads(json.dumps(settings, default=str)))


def _remove_incomplete_line(path: Path) -> None:
    """Truncate a journal after its last newline, which is searched for from the end; raise
    InputError if there is no such file.
    """
    if not path.is_file():
        raise InputError.invalid(
            str(path.parent),
            "resume",
            f"the folder has no interrupted run (no {path.name})",
            "drop --resume to start a new run",
        )
    # Read blocks from the end to the start until one has a newline.
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
    """Return the first line of a journal, a JSON object with ``settings``, ``inputs`` and
    ``machine``; raise InputError for another file.
    """
    try:
        with path.open(encoding="utf-8") as stream:
            header = json.loads(stream.readline())
        for field in ("settings", "inputs", "machine"):
            if field not in header:
                raise LookupError(f"no {field}")
    except (ValueError, LookupError, TypeError) as error:
        raise InputError.invalid(
            str(path),
            "",
            f"not the journal of an interrupted run: {error}",
            "start a new run with --overwrite",
        ) from None
    return dict(header)


def _require_same_settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raise InputError if a setting differs from that of the interrupted run.

    Args:
        old: settings of the interrupted run, by field.
        new: settings of this run, by field.
    """
    for field in {**old, **new}:
        if field not in _CHANGEABLE_SETTINGS and old.get(field) != new.get(field):
            expected = f"the setting of the interrupted run, {old.get(field, 'not set')!r}"
            raise InputError(f"--{field.replace('_', '-')}", "", expected, repr(new.get(field)))


def _require_same_inputs(old: Mapping[str, str], new: Mapping[str, str]) -> None:
    """Raise InputError if an input file differs: ``old`` and ``new`` are SHA-256 by file name."""
    for name in {**old, **new}:
        if old.get(name) != new.get(name):
            problem = (
                "the file of the interrupted run is missing"
                if name not in new
                else "the file has changed since the interrupted run"
            )
            raise InputError.invalid(
                name, "", problem, "restore it, or start a new run with --overwrite"
            )


SETTINGS = "settings.json"
_Config = TypeVar("_Config")


def save_settings(config: Any) -> None:
    """Write the settings of a run, a dataclass, to ``settings.json`` in its folder ``config.out``.

    The field ``resume`` is stored as false.
    """
    config.out.mkdir(parents=True, exist_ok=True)
    with atomic_file(config.out / SETTINGS) as temporary:
        values = dataclasses.asdict(config) | {"resume": False}
        text = json.dumps(values, default=str, indent=1)
        temporary.write_text(text + "\n", encoding="utf-8")


def stored_settings(kind: type[_Config], out: Path) -> _Config | None:
    """Read the settings of the run in a folder; None if the folder has no run.

    Args:
        kind: dataclass of the settings.
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
            raise InputError.invalid(
                str(file), "", f"the settings of a run cannot be read: {error}"
            ) from None
        # Convert the JSON values to the types of the fields.
        hints = get_type_hints(kind, include_extras=False)
        try:
            return kind(**{field: typed(hints[field], value) for field, value in values.items()})
        except (KeyError, TypeError, ValueError) as error:
            raise InputError.invalid(
                str(file),
                "",
                f"another command or version of Teal wrote these settings ({kind.__name__}: "
                f"{type(error).__name__}: {error})",
                "start a new run with --overwrite",
            ) from None
    return None


# Options that a message suggests if the output folder has an earlier run.
RESUME_HINT = "--resume or --overwrite"


def write_files(
    folder: Path | str,
    writers: Mapping[str, Callable[[Path], None]],
    *,
    overwrite: bool = True,
) -> None:
    """Write files into ``folder``, each atomically.

    Args:
        folder: folder of the files.
        writers: by file name: a function that writes the file's content to a path.
        overwrite: whether existing files may be replaced.

    Raises:
        InputError: files of these names exist, and ``overwrite`` is false.
    """
    if not overwrite:
        check_out_folder(Path(folder), tuple(writers), overwrite=False)
    for name, write in writers.items():
        with atomic_file(Path(folder) / name) as temporary:
            write(temporary)
