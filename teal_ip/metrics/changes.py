"""Changes of metrics as files: what `teal metrics --out` writes, and other commands read."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from teal.errors import InputError
from teal.formats.rows import write_csv
from teal.runtime.storage import atomic_file

SUFFIXES = (".json", ".csv")


@dataclasses.dataclass(frozen=True)
class MetricChange:
    """One change of a configuration.

    Attributes:
        link: name.
        source: node whose configuration changes.
        target: node at the other end.
        before: metric in force.
        after: metric to come.
        utilisation: largest of a link once this change and those before it are made.
    """

    link: str
    source: str
    target: str
    before: int
    after: int
    utilisation: float


def write_changes(path: Path, changes: Sequence[MetricChange], figures: dict[str, Any]) -> None:
    """Write changes in their order.

    Args:
        path: path of a .json or .csv file.
        changes: the changes.
        figures: figures of the result, for JSON.
    """
    with atomic_file(path) as temporary:
        match path.suffix.lower():
            case ".json":
                temporary.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
            case _ if changes:
                write_csv(temporary, changes)
            case _:
                heading = ",".join(field.name for field in dataclasses.fields(MetricChange))
                temporary.write_text(heading + "\n", encoding="utf-8")


def load_changes(path: Path, links: Sequence[str]) -> list[MetricChange]:
    """The changes of a file, in their order.

    Args:
        path: what :func:`write_changes` wrote.
        links: names of the links of the network.

    Raises:
        InputError: no such file, one of something else, or a link that the network does not have.
    """
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            entries = (
                list(csv.DictReader(stream))
                if path.suffix == ".csv"
                else json.load(stream)["changes"]
            )
        changes = [
            MetricChange(
                str(entry["link"]),
                str(entry["source"]),
                str(entry["target"]),
                int(entry["before"]),
                int(entry["after"]),
                float("nan") if entry["utilisation"] is None else float(entry["utilisation"]),
            )
            for entry in entries
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        expected = "changes as teal metrics --out writes them, .json or .csv"
        raise InputError(str(path), "", expected, f"{type(error).__name__}: {error}") from None
    known = set(links)
    for change in changes:
        if change.link not in known:
            expected = "a link of the network"
            raise InputError(str(path), f"link {change.link}", expected, "none of this name")
    return changes


def read_changes(path: Path, links: Sequence[str]) -> dict[int, int]:
    """The metrics after all changes of a file, by the number of the link; arguments and errors of
    :func:`load_changes`.
    """
    number = {name: link for link, name in enumerate(links)}
    return {number[change.link]: change.after for change in load_changes(path, links)}
