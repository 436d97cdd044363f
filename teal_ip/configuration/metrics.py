"""Metric changes as configuration lines of FRR, in a safe order for single changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from teal.app.text import percent
from teal.errors import InputError
from teal_ip.metrics.changes import MetricChange


def frr_lines(
    changes: Sequence[MetricChange], interfaces: Mapping[str, Sequence[str]] | None = None
) -> str:
    """Format blocks for vtysh, one per change, in order; lines that begin with ``!`` are comments.

    Args:
        changes: the changes.
        interfaces: names of interfaces by the name of the link; None for the node at the other end,
            ``to-NODE``.

    Raises:
        InputError: a changed link without an interface in the table.
    """
    hint = (
        "" if interfaces is not None else "; name the interfaces as your routers do (--interfaces)"
    )
    lines = [f"! metrics, in the order in which to change them{hint}"]
    for index, change in enumerate(changes, 1):
        interface_names = (
            [f"to-{change.target}"] if interfaces is None else interfaces.get(change.link, ())
        )
        if not interface_names:
            raise InputError(
                "--interfaces",
                change.link,
                "an interface of each link whose metric changes",
                "none",
            )
        # "-" if the deadline came before the utilisation was computed.
        utilisation = percent(change.utilisation)
        lines.append(
            f"! {index}: on {change.source}, was {change.before}; "
            f"largest utilisation then {utilisation}"
        )
        for name in interface_names:
            lines += [f"interface {name}", f" isis metric {change.after}", "exit"]
    return "\n".join(lines) + "\n"
