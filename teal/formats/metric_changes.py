"""Changes of IGP metrics as JSON, CSV, or configuration lines of FRR (https://docs.frrouting.org)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
