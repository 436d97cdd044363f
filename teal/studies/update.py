"""`teal update`: from the files of two allocations to those of the steps between them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from teal.config import UpdateConfig
from teal.formats import topology_of
from teal.formats.allocations import demands_of, read_allocation
from teal.network import Topology
from teal.runtime.arrays import FloatArray
from teal.runtime.storage import atomic_file, check_out_folder, remove_files
from teal.solvers.update import NamedPaths, Update, plan_update

_PATTERN = "step-*.json"
_LEAST_SHARE = 1e-9  # share of a path's largest flow below which it is left out of a step's file

_Demand = tuple[str, str, str]  # router, target, class ("" for none)
_Key = tuple[_Demand, tuple[int, ...]]  # demand, links of a path


def run_update(config: UpdateConfig) -> Update:
    """Read, plan, write.

    Raises:
        InputError: a fault in the settings or in a file.
        SolverError: an allocation that overloads a link, or no way in so many steps.
    """
    earlier = tuple(file.name for file in config.out.glob(_PATTERN))
    check_out_folder(config.out, earlier or ("step-1.json",), overwrite=config.overwrite)
    topology = topology_of(config)
    before, after = (_flows(file, topology) for file in (config.before, config.after))
    keys = list(dict.fromkeys([*before, *after]))
    names = list(dict.fromkeys(demand for demand, _ in keys))
    number = {name: d for d, name in enumerate(names)}
    rows = np.array([link for _, links in keys for link in links], dtype=np.int64)
    columns = np.repeat(np.arange(len(keys)), [len(links) for _, links in keys])
    through = sp.csr_array((np.ones(len(rows)), (rows, columns)), shape=(topology.num_links, len(keys)))
    paths = NamedPaths(through, np.array([number[demand] for demand, _ in keys], dtype=np.int64), topology.capacity)
    start, end = (np.array([flows.get(key, 0.0) for key in keys]) for flows in (before, after))
    update = plan_update(paths, start, end, config.max_steps)
    remove_files(config.out, earlier)
    for step in range(1, update.steps + 1):
        written = _as_json(topology, keys, update.flows[step], update, step)
        with atomic_file(config.out / f"step-{step}.json") as temporary:
            temporary.write_text(json.dumps(written) + "\n", encoding="utf-8")
    return update


def _flows(file: Path, topology: Topology) -> dict[_Key, float]:
    """Gbit/s of each path of an allocation."""
    return {
        ((router, demand["target"], demand.get("class", "")), tuple(path["numbers"])): float(path["rate"])
        for router, demand, paths in demands_of(read_allocation(file), topology)
        for path in paths
    }


def _as_json(topology: Topology, keys: list[_Key], flows: FloatArray, update: Update, step: int) -> dict[str, Any]:
    """One step as `teal solve --out X.json` writes allocations; splits are shares of what is carried in this step."""
    names, nodes = topology.link_names(), topology.node_names
    largest = update.flows.max(0)
    carried: dict[_Demand, list[dict[str, Any]]] = {}
    for (demand, links), rate, most in zip(keys, flows.tolist(), largest.tolist(), strict=True):
        paths_of = carried.setdefault(demand, [])
        if rate > _LEAST_SHARE * most:
            along = [nodes[topology.link_source[links[0]]], *(nodes[topology.link_target[link]] for link in links)]
            paths_of.append({"nodes": along, "links": [names[link] for link in links], "rate": rate})
    routers: dict[str, list[dict[str, Any]]] = {}
    for (router, target, name), paths in carried.items():
        total = sum(path["rate"] for path in paths)
        for path in paths:
            path["split"] = path["rate"] / total
        one = {"target": target, "demand": total, "admitted": total, "shed": 0.0}
        routers.setdefault(router, []).append(one | ({"class": name} if name else {}) | {"paths": paths})
    figures = {"step": step, "steps": update.steps, "kept": update.kept}
    return {"topology": topology.name, "unit": "Gbit/s", "figures": figures, "routers": routers}
