"""What a long run has done so far: one line of JSON a piece, so that a kill at any time loses no more than one."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from teal.errors import InputError
from teal.reports.results import describe_machine

_BLOCK = 1 << 16
# Settings that may differ from one part of a run to the next.
_FREE = ("out", "resume", "overwrite", "worst", "workers")


class Journal:
    """The file ``journal.jsonl`` of a run: its settings first, then what it found; read again whenever it is asked.

    A last line that was cut off is dropped.

    Raises:
        InputError: to be resumed, but there is none, or it is of a run with other settings.
    """

    def __init__(self, path: Path, settings: Any, *, resume: bool) -> None:
        self.path = path
        mine = {"settings": _plain(dataclasses.asdict(settings)), "machine": describe_machine()}
        if resume:
            _cut(path)
            self.first = _first(path)
            _same_settings(self.first["settings"], mine["settings"])
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(mine) + "\n", encoding="utf-8")
            self.first = mine

    def of(self, kind: str) -> Iterator[dict[str, Any]]:
        """The entries of a kind, in the order in which they were added."""
        start = f'{{"{kind}": '
        with self.path.open(encoding="utf-8") as stream:
            for line in stream:
                if line.startswith(start):
                    yield json.loads(line)[kind]

    def add(self, kind: str, entry: Mapping[str, Any]) -> None:
        """Write an entry down."""
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({kind: dict(entry)}) + "\n")
            stream.flush()
            os.fsync(stream.fileno())

    def require_content(self, content: str, where: str) -> None:
        """Note what the run is about, as a content key.

        Raises:
            InputError: the part before was about something else; ``where`` names what the user gave.
        """
        if any(entry["content"] != content for entry in self.of("instance")):
            raise InputError(where, "", "the topology, traffic and paths of the run that broke off", "others")
        self.add("instance", {"content": content})

    def remove(self) -> None:
        """The run is complete and its results are written: the journal is no longer needed."""
        self.path.unlink(missing_ok=True)


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    return dict(json.loads(json.dumps(settings, default=str)))


def _cut(path: Path) -> None:
    """Drop what stands behind the last whole line."""
    if not path.is_file():
        raise InputError(str(path.parent), "resume", "a run that broke off", f"no {path.name}")
    with path.open("r+b") as stream:
        size = stream.seek(0, os.SEEK_END)
        end = size
        while end:  # backwards, block by block
            begin = max(0, end - _BLOCK)
            stream.seek(begin)
            last = stream.read(end - begin).rfind(b"\n")
            if last >= 0:
                stream.truncate(begin + last + 1)
                return
            end = begin
        stream.truncate(0)


def _first(path: Path) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as stream:
            first = json.loads(stream.readline())
        first["settings"], first["machine"]
    except (ValueError, LookupError, TypeError) as error:
        raise InputError(str(path), "", "the journal of a run that broke off", f"{error}") from None
    return dict(first)


def _same_settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    for field in {**old, **new}:
        if field not in _FREE and old.get(field) != new.get(field):
            expected = f"the settings of the run that broke off, {old.get(field)!r}"
            raise InputError(f"--{field.replace('_', '-')}", "", expected, repr(new.get(field)))
