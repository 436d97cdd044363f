"""Metrics as configuration lines of FRR, in the order in which they are to be changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from teal.app.text import percent
from teal.errors import InputError
from teal_ip.metrics.changes import MetricChange


def frr_lines(
    changes: Sequence[MetricChange], interfaces: Mapping[str, Sequence[str]] | None = None
) -> str:
    """Blocks for vtysh, one a change, in their order; lines that begin with ``!`` are comments.

    Args:
        changes: the changes.
        interfaces: names of interfaces by the name of the link; None for the node at the other end,
            ``to-NODE``.

    Raises:
        InputError: a link that changes and has no interface in the table.
    """
    hint = (
        "" if interfaces is not None else "; name the interfaces as your routers do (--interfaces)"
    )
    lines = [f"! metrics, in the order in which to change them{hint}"]
    for number, one in enumerate(changes, 1):
        named = [f"to-{one.target}"] if interfaces is None else interfaces.get(one.link, ())
        if not named:
            raise InputError(
                "--interfaces", one.link, "an interface of each link whose metric changes", "none"
            )
        reached = percent(one.utilisation)  # "-" where the deadline came before it was measured
        lines.append(
            f"! {number}: on {one.source}, was {one.before}; largest utilisation then {reached}"
        )
        for name in named:
            lines += [f"interface {name}", f" isis metric {one.after}", "exit"]
    return "\n".join(lines) + "\n"
