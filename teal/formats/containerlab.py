"""Topologies of containerlab (https://containerlab.dev/manual/topo-def-file): ``NAME.clab.yml``, in and out.

    name: lab
    topology:
      nodes:
        r1: {kind: linux, image: quay.io/frrouting/frr:10.2.1}
        r2: {kind: linux, image: quay.io/frrouting/frr:10.2.1}
      links:
        - endpoints: ["r2:eth2", "r1:eth2"]
        - type: veth
          endpoints: [{node: r1, interface: eth1}, {node: r2, interface: eth1}]
          labels: {capacity: "100", latency: "3.5", metric: "10", back-metric: "20"}

A link is a cable with both directions, in the short form or that of type veth.  Containerlab knows no capacities and
metrics: they stand in the labels of the second form, which it passes over; of the direction from the second end to the
first with ``back-`` where they differ, and ``one-way`` where there is none.  A link of capacity 0 has failed.  Nodes of
the kinds ``bridge`` and ``ovs-bridge`` are no routers: those on one are connected in pairs.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from teal.errors import InputError
from teal.formats.link_tables import gbps
from teal.formats.records import LinkRecord, affinities_of, number, topology_from_records
from teal.network import Topology

SUFFIXES = (".clab.yml", ".clab.yaml")
_BRIDGES = ("bridge", "ovs-bridge")
_NO_NODES = ("host", "mgmt-net", "macvlan")  # what stands for a node in an end of a link and is none
_IMAGE = "quay.io/frrouting/frr:10.2.1"
_BACK, _ONE_WAY, _NAME = "back-", "one-way", "name"  # prefix of labels, and labels


def read_containerlab(path: Path, default_capacity: float | None) -> Topology:
    """Read a topology.

    Raises:
        InputError: no YAML, no nodes or links, a link with other than two ends, or what
            :func:`teal.formats.records.topology_from_records` refuses.
    """
    where = str(path)
    document = _yaml(path)
    topology = document.get("topology") if isinstance(document, dict) else None
    nodes = topology.get("nodes") if isinstance(topology, dict) else None
    if not isinstance(topology, dict) or not isinstance(nodes, dict) or not isinstance(topology.get("links"), list):
        raise InputError(where, "topology", "nodes and links, as containerlab has them", repr(document)[:60])
    kinds = {str(name): str((node or {}).get("kind", "")) for name, node in nodes.items()}
    names = {str(name): str(((node or {}).get("labels") or {}).get(_NAME, name)) for name, node in nodes.items()}
    records, skipped, on_bridge = list[LinkRecord](), 0, dict[str, list[tuple[str, dict[str, Any], str]]]()
    for place, link in enumerate(topology["links"]):
        field = f"links[{place}]"
        ends = [_node(end) for end in (link or {}).get("endpoints") or []]
        if len(ends) != 2 or any(end in _NO_NODES for end in ends):
            skipped += 1
            continue
        unknown = [end for end in ends if end not in kinds]
        if unknown:
            raise InputError(where, f"{field}: endpoints", "nodes of the file", unknown[0])
        labels = link.get("labels") or {}
        bridges = [end for end in ends if kinds[end] in _BRIDGES]
        for bridge in bridges:
            on_bridge.setdefault(bridge, []).append((next(end for end in ends if end != bridge), labels, field))
        if not bridges:
            records += _records((names[ends[0]], names[ends[1]]), labels, where, field)
    for members in on_bridge.values():
        for (a, labels, field), (b, _, _) in itertools.combinations(members, 2):
            records += _records((names[a], names[b]), labels, where, field)
    notes = (f"{skipped} links do not connect two nodes and are left out.",) if skipped else ()
    routers: dict[str, tuple[float, float] | None] = {
        names[name]: None for name, kind in kinds.items() if kind not in _BRIDGES
    }
    title = str(document.get("name") or path.name.split(".")[0])
    return topology_from_records(
        title, where, routers, records, directed=True, default_capacity=default_capacity, notes=notes
    )


def _yaml(path: Path) -> Any:
    try:
        import yaml
    except ImportError:
        raise InputError(str(path), "", "pip install pyyaml, to read YAML files", "pyyaml is missing") from None
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(str(path), "", "a YAML file", " ".join(str(error).split())[:120]) from None


def _node(end: Any) -> str:
    """The node of an end of a link, ``node:interface`` or an object."""
    return str(end.get("node", "")) if isinstance(end, dict) else str(end).split(":")[0]


def _records(ends: tuple[str, str], labels: Any, where: str, field: str) -> Iterator[LinkRecord]:
    """Both directions of a cable, or one."""
    labels = labels if isinstance(labels, dict) else {}

    def text(name: str, prefix: str) -> str:
        return str(labels.get(prefix + name, labels.get(name, "")))

    def value(name: str, prefix: str) -> float | None:
        given = text(name, prefix)
        return number(given, where, f"{field}: {name}") if given else None

    for prefix, (source, target) in (("", ends), (_BACK, ends[::-1])):
        if prefix and str(labels.get(_ONE_WAY, "")).lower() in ("true", "yes"):
            return
        capacity = gbps(text("capacity", prefix), "", where, f"{field}: capacity")
        yield LinkRecord(
            source, target, capacity, value("latency", prefix), field, tuple(map(str, labels)),
            value("metric", prefix), has_failed=capacity == 0, te_metric=value("te_metric", prefix),
            affinities=affinities_of(text("affinity", prefix), where, f"{field}: affinity"),
        )  # fmt: skip


def containerlab_text(topology: Topology) -> str:
    """The file of a network, which :func:`read_containerlab` reads back; interfaces are eth1, eth2, ... in order.

    Names of nodes are those of the network with ``-`` for what names of containers cannot have; the label ``name`` has
    the original.
    """
    import yaml

    words, nodes = list[str](), dict[str, Any]()
    for place, name in enumerate(topology.node_names):
        word = re.sub(r"[^a-zA-Z0-9_.-]", "-", name).strip("-._") or "node"
        while word in nodes:
            word += f"-{place + 1}"
        words.append(word)
        nodes[word] = {} if word == name else {"labels": {_NAME: name}}
    used = [0] * topology.num_nodes
    links: list[dict[str, Any]] = []
    for pair in topology.link_pairs():
        ends: list[dict[str, str]] = []
        for node in (int(topology.link_source[pair[0]]), int(topology.link_target[pair[0]])):
            used[node] += 1
            ends.append({"node": words[node], "interface": f"eth{used[node]}"})
        forth, back = _labels(topology, pair[0]), _labels(topology, pair[-1])
        names = [name for name in {**forth, **back} if back.get(name) != forth.get(name)]
        differing = {_BACK + name: back.get(name, "") for name in names}
        one_way = {_ONE_WAY: "true"} if len(pair) == 1 else {}
        links.append({"type": "veth", "endpoints": ends, "labels": {**forth, **differing, **one_way}})
    title = re.sub(r"[^a-zA-Z0-9_.-]", "-", topology.name) or "network"
    defaults = {"kind": "linux", "image": _IMAGE}
    document = {"name": title, "topology": {"defaults": defaults, "nodes": nodes, "links": links}}
    return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))


def _labels(topology: Topology, link: int) -> dict[str, str]:
    others = topology.igp_attributes(link)
    if "affinity" in others:
        others["affinity"] = ";".join(others["affinity"])
    numbers = {"capacity": float(topology.capacity[link]), "latency": float(topology.latency[link])}
    exact = {name: repr(value).removesuffix(".0") for name, value in numbers.items()}
    return exact | {name: str(value) for name, value in others.items()}
