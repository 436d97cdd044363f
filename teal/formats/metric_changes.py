"""Changes of IGP metrics as JSON, CSV, or configuration lines of FRR (https://docs.frrouting.org)."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from teal.errors import InputError
from teal.formats.rows import write_csv
from teal.runtime.storage import atomic_file

SUFFIXES = (".json", ".csv", ".conf")


def write_changes(path: Path, changes: Sequence[Any], figures: dict[str, Any]) -> None:
    """Write changes in their order.

    Args:
        path: of a .json, .csv or .conf file.
        changes: with the fields link, source, target, before, after and utilisation.
        figures: of the result, for JSON.
    """
    with atomic_file(path) as temporary:
        match path.suffix.lower():
            case ".json":
                temporary.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
            case ".csv" if changes:
                write_csv(temporary, changes)
            case ".csv":
                temporary.write_text("link,source,target,before,after,utilisation\n", encoding="utf-8")
            case _:
                temporary.write_text(frr_lines(changes), encoding="utf-8")


def read_changes(path: Path, links: Sequence[str]) -> dict[int, int]:
    """The metrics after all changes of a .json or .csv file, by the number of the link.

    Args:
        path: what :func:`write_changes` wrote.
        links: names of the links of the network.

    Raises:
        InputError: no such file, one of something else, or a link that the network does not have.
    """
    number = {name: link for link, name in enumerate(links)}
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            entries = list(csv.DictReader(stream)) if path.suffix == ".csv" else json.load(stream)["changes"]
        after = {str(entry["link"]): int(entry["after"]) for entry in entries}
    except (OSError, ValueError, KeyError, TypeError) as error:
        expected = "changes as teal metrics --out writes them, .json or .csv"
        raise InputError(str(path), "", expected, f"{type(error).__name__}: {error}") from None
    unknown = [name for name in after if name not in number]
    if unknown:
        raise InputError(str(path), f"link {unknown[0]}", "a link of the network", "none of this name")
    return {number[name]: value for name, value in after.items()}


def frr_lines(changes: Sequence[Any]) -> str:
    """Blocks for vtysh, one a change, in their order; the interface is named after the node at its other end.

    Lines that begin with ``!`` are comments.
    """
    lines = ["! metrics, in the order in which to change them; name the interfaces as your routers do"]
    for number, one in enumerate(changes, 1):
        lines += [
            f"! {number}: on {one.source}, was {one.before}; largest utilisation then {100 * one.utilisation:.2f}%",
            f"interface to-{one.target}",
            f" isis metric {one.after}",
            "exit",
        ]
    return "\n".join(lines) + "\n"
