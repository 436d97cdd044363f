"""Metric changes as configuration lines of FRR, in the order in which they can be applied one
by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from teal.app.text import percent
from teal.errors import InputError
from teal_ip.metrics.changes import MetricChange


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
                "the metric of this link changes, but it has no interface",
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
