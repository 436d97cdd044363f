"""What a long run has done so far: one line of JSON a piece, so that a kill at any time loses no more than one."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from teal.errors import InputError
from teal.reports.results import describe_machine

_FREE = ("out", "resume", "overwrite", "worst")  # settings that may differ from one part of a run to the next


class Journal:
    """The file ``journal.jsonl`` of a run: its settings first, then what it found.

    A last line that was cut off is dropped.

    Raises:
        InputError: to be resumed, but there is none, or it is of a run with other settings.
    """

    def __init__(self, path: Path, settings: Any, *, resume: bool) -> None:
        self.path = path
        self.entries: list[dict[str, Any]] = []
        mine = {"settings": _plain(dataclasses.asdict(settings)), "machine": describe_machine()}
        if resume:
            self.entries = _whole_lines(path)
            _same_settings(path, self.entries[0]["settings"], mine["settings"])
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(mine) + "\n", encoding="utf-8")
            self.entries = [mine]

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The entries of a kind, in the order in which they were added."""
        return [entry[kind] for entry in self.entries[1:] if kind in entry]

    def add(self, kind: str, entry: Mapping[str, Any]) -> None:
        """Write an entry down."""
        line = {kind: dict(entry)}
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        self.entries.append(line)

    def remove(self) -> None:
        """The run is complete and its results are written: the journal is no longer needed."""
        self.path.unlink(missing_ok=True)


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    return dict(json.loads(json.dumps(settings, default=str)))


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise InputError(str(path.parent), "resume", "a run that broke off", f"no {path.name}")
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    try:
        entries = [json.loads(line) for line in data[:end].splitlines()]
        entries[0]["settings"]
    except (ValueError, LookupError, TypeError) as error:
        raise InputError(str(path), "", "the journal of a run that broke off", f"{error}") from None
    if end < len(data):
        with path.open("r+b") as stream:
            stream.truncate(end)
    return entries


def _same_settings(path: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    for field in {**old, **new}:
        if field not in _FREE and old.get(field) != new.get(field):
            expected = f"the settings of the run that broke off, {old.get(field)!r}"
            raise InputError(f"--{field.replace('_', '-')}", "", expected, repr(new.get(field)))
