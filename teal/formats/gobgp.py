"""BGP-LS as GoBGP prints it: ``gobgp global rib -a ls -j``, or the lines of ``gobgp monitor global rib -a ls -j``.

A path has an ``nlri`` with descriptors of one node or of two, and ``attrs``, one of which (type 29) has attributes of
nodes and links.  Versions spell keys with and without underscores: they are compared without.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

_LINK_STATE = 29  # type of the BGP-LS attribute


class GobgpNode(NamedTuple):
    """A router, by its ID, and its name."""

    router: str
    name: str


class GobgpLink(NamedTuple):
    """A link.

    Attributes:
        ends: router IDs, where it starts and where it ends.
        key: tells parallel links apart.
        metric: of the IGP; 1 if none is given.
        bandwidth: bytes a second; None if none is given.
        withdrawn: whether it is gone.
    """

    ends: tuple[str, str]
    key: str
    metric: float
    bandwidth: float | None
    withdrawn: bool


def gobgp_paths(document: Any) -> Iterator[GobgpNode | GobgpLink]:
    """The nodes with names, and the links, of a JSON document; nothing for a document of another kind."""
    if isinstance(document, list):
        for one in document:
            yield from gobgp_paths(one)
    elif isinstance(document, dict):
        nlri = document.get("nlri")
        if isinstance(nlri, dict) and "local_node_desc" in nlri:
            yield from _path(document, nlri)
        else:
            for one in document.values():
                yield from gobgp_paths(one)


def _path(path: dict[str, Any], nlri: dict[str, Any]) -> Iterator[GobgpNode | GobgpLink]:
    attributes = [one for one in path.get("attrs") or [] if isinstance(one, dict) and one.get("type") == _LINK_STATE]
    local = _router(nlri["local_node_desc"])
    if "remote_node_desc" in nlri:
        link = _of(attributes, "link")
        metric, bandwidth = _value(link, "igpmetric"), _value(link, "bandwidth", "maxlinkbw")
        yield GobgpLink(
            (local, _router(nlri["remote_node_desc"])), json.dumps(nlri.get("link_desc"), sort_keys=True),
            1.0 if metric is None else float(metric), None if bandwidth is None else float(bandwidth),
            bool(_value(path, "withdrawal", "iswithdraw")),
        )  # fmt: skip
    elif (name := _value(_of(attributes, "node"), "name")) and "prefix_desc" not in nlri:
        yield GobgpNode(local, str(name))


def _of(attributes: list[dict[str, Any]], part: str) -> dict[str, Any]:
    for one in attributes:
        found = _value(one, part)
        if isinstance(found, dict):
            return found
    return {}


def _value(part: Any, *names: str) -> Any:
    """The value of the first key of these names, without regard to case and underscores."""
    if isinstance(part, dict):
        for key, value in part.items():
            if re.sub("[^a-z0-9]", "", key.lower()) in names and value not in (None, ""):
                return value
    return None


def _router(descriptor: Any) -> str:
    """ID of a router; "" for none."""
    found = _value(descriptor, "igprouterid") or _value(descriptor, "bgprouterid")
    return str(found or "")
