"""Files of metric changes: the output of ``teal metrics --out``, which other commands read; and the
changes as configuration lines of FRR.
"""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from teal.app.text import percent
from teal.errors import InputError
from teal.formats.rows import write_csv
from teal.runtime.storage import atomic_file

# Suffixes of files of metric changes.
SUFFIXES = (".json", ".csv")


@dataclasses.dataclass(frozen=True)
class MetricChange:
    """One metric change of a configuration.

    Attributes:
        link: name of the link.
        source: node whose configuration changes.
        target: node at the other end.
        before: current metric.
        after: new metric.
        utilisation: largest link utilisation after this change and the previous ones.
    """

    link: str
    source: str
    target: str
    before: int
    after: int
    utilisation: float


def write_changes(path: Path, changes: Sequence[MetricChange], result: dict[str, Any]) -> None:
    """Write metric changes in their order; a JSON file contains the whole result.

    Args:
        path: path of a .json or .csv file.
        changes: the changes.
        result: the result as JSON values, for a .json file.
    """
    with atomic_file(path) as temporary:
        match path.suffix.lower():
            case ".json":
                temporary.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            # A table; without changes it has only the heading.
            case _ if changes:
                write_csv(temporary, changes)
            case _:
                heading = ",".join(field.name for field in dataclasses.fields(MetricChange))
                temporary.write_text(heading + "\n", encoding="utf-8")


def load_changes(path: Path, links: Sequence[str]) -> list[MetricChange]:
    """Load metric changes in order.

    Args:
        path: file written by :func:`write_changes`.
        links: names of the links of the network.

    Raises:
        InputError: no such file, another format, or an unknown link.
    """
    # Parse the file; a utilisation that was not computed is null.
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            entries = (
                list(csv.DictReader(stream))
                if path.suffix.lower() == ".csv"
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
        raise InputError.invalid(
            str(path),
            "",
            f"no metric changes can be read ({type(error).__name__}: {error})",
            "use a .json or .csv file written by teal metrics --out",
        ) from None
    # Check the names of the links.
    known_links = set(links)
    for change in changes:
        if change.link not in known_links:
            raise InputError.invalid(
                str(path),
                f"link {change.link}",
                "the network has no link of this name; use the changes of this network",
            )
    return changes


def read_changes(path: Path, links: Sequence[str]) -> dict[int, int]:
    """Return the new metrics of a file of changes, by link index.

    Args:
        path: file written by :func:`write_changes`.
        links: names of the links of the network, by index.

    Raises:
        InputError: no such file, another format, or an unknown link.
    """
    link_index = {name: link for link, name in enumerate(links)}
    return {link_index[change.link]: change.after for change in load_changes(path, links)}


def frr_lines(
    changes: Sequence[MetricChange], interfaces: Mapping[str, Sequence[str]] | None = None
) -> str:
    """Return the configuration of metric changes for vtysh, the shell of FRR.

    It has one block per change, in order; ``!`` begins comments.

    Args:
        changes: the changes.
        interfaces: names of the interfaces of each link, by name of the link; None to name each
            interface ``to-NODE`` after the node at the other end.

    Raises:
        InputError: a changed link without an interface in the table.
    """
    # Without a table, the names of interfaces are placeholders.
    hint = (
        "" if interfaces is not None else "; replace the names of interfaces, or use --interfaces"
    )
    lines = [f"! metric changes, to be applied in this order{hint}"]
    for index, change in enumerate(changes, 1):
        interface_names = (
            [f"to-{change.target}"] if interfaces is None else interfaces.get(change.link, ())
        )
        if not interface_names:
            raise InputError.invalid(
                "--interfaces",
                change.link,
                "the metric of this link changes, but the table has no interface of it; add a row",
            )
        # "-" if the time limit prevented the computation of the utilisation.
        utilisation = percent(change.utilisation)
        lines.append(
            f"! {index}: on {change.source}, metric so far {change.before}; "
            f"largest link utilisation afterwards {utilisation}"
        )
        for name in interface_names:
            lines += [f"interface {name}", f" isis metric {change.after}", "exit"]
    return "\n".join(lines) + "\n"
