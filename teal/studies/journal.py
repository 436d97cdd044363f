"""The journal of a long run: one line of JSON for each finished unit of work, forced to the disk.

A run that is killed loses only the unit that it was working on.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from teal.errors import InputError
from teal.reports.manifest import describe_machine

JOURNAL = "journal.jsonl"
_READ_BYTES = 1 << 16  # block of the backward search for the last newline; longer than most lines
# Settings that may differ when a run is resumed, because no entry depends on them: where the run is written, how many
# of the worst cases are printed, how many processes work.
_CHANGEABLE_SETTINGS = ("out", "resume", "overwrite", "worst", "workers")


class Journal:
    """The file ``journal.jsonl`` of a run: its settings in the first line, then its entries.

    Entries are read from the file whenever they are requested.  A last line that is not complete is removed.

    Args:
        path: of the file.
        settings: dataclass with the settings of the run.
        resume: true to continue the run of the file; false to start a new file, which replaces an existing one.

    Attributes:
        header: first line: the settings, and the machine, which may differ when a run is resumed.

    Raises:
        InputError: ``resume``, but there is no such run, or one with other settings.
    """

    def __init__(self, path: Path, settings: Any, *, resume: bool) -> None:
        self.path = path
        header = {"settings": _as_json(dataclasses.asdict(settings)), "machine": describe_machine()}
        if resume:
            _remove_incomplete_line(path)
            self.header = _read_header(path)
            _require_same_settings(self.header["settings"], header["settings"])
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

    def require_content(self, content: str, where: str) -> None:
        """Check that the run's input is the one recorded earlier, and record it.

        Args:
            content: hash of topology, traffic and paths.
            where: option or file to name in the message.

        Raises:
            InputError: the interrupted run had another input.
        """
        if any(entry["content"] != content for entry in self.entries("instance")):
            raise InputError(where, "", "the topology, traffic and paths of the interrupted run", "a different one")
        self.add("instance", {"content": content})

    def remove(self) -> None:
        """Delete the file, once the run is complete and its results are written."""
        self.path.unlink(missing_ok=True)


def _as_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings after a round trip through JSON, so that they compare equal to those in a file."""
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
        for field in ("settings", "machine"):
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
