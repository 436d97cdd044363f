"""``teal export``: write allocations, segment lists, metrics or algorithms for routers."""

from __future__ import annotations

import json
from pathlib import Path

from teal.app.command import Notify, Outcome
from teal.errors import InputError, listed
from teal.formats import topology_of
from teal.formats.allocations import read_allocation
from teal.formats.routers import read_routers
from teal.formats.segment_lists import read_policies
from teal.network import Topology
from teal.network.paths import link_weights
from teal.runtime.storage import atomic_file, check_out_file
from teal_ip.configuration.algorithms import algorithm_config
from teal_ip.configuration.allocations import Exported, Igp, next_hop_groups, sr_policies
from teal_ip.configuration.policies import write_sr_policies, write_texts
from teal_ip.configuration.settings import ExportConfig
from teal_ip.metrics.changes import frr_lines, load_changes
from teal_ip.readings.files import interface_names
from teal_ip.routing.flex_algo import lists_and_algorithms


def export_outcome(config: ExportConfig, notify: Notify) -> Outcome:
    """Run ``teal export``: write the file, and return its summary and JSON data.

    Raises:
        InputError: invalid settings or files, or input that a router cannot express.
    """
    if config.allocation is not None:
        return _export_allocation(config, config.allocation, notify)
    if config.flex_algo:
        return _export_algorithms(config)
    if config.policies is not None:
        return _export_policies(config, config.policies)
    assert config.metrics is not None
    return _export_metrics(config, config.metrics)


def _export_allocation(config: ExportConfig, file: Path, notify: Notify) -> Outcome:
    """Export an allocation as SR policies or next-hop groups, and report dropped paths."""
    check_out_file(config.out, (".json",), overwrite=config.overwrite)
    exported = _convert_allocation(config, file)
    with atomic_file(config.out) as temporary:
        temporary.write_text(json.dumps(exported.data) + "\n", encoding="utf-8")
    for reason in exported.reasons:
        notify(f"path dropped: {reason}")
    after_text = f"{100 * exported.utilisation:.4g}%"
    before_text = f"{100 * exported.utilisation_before:.4g}%"
    return Outcome(
        text=f"{config.out}: {exported.admitted:.6g} of {exported.admitted_before:.6g} Gbit/s, "
        f"{exported.left_out:,} paths dropped; largest link utilisation {after_text}, "
        + ("unchanged" if after_text == before_text else f"{before_text} in the allocation"),
        data={
            "out": str(config.out),
            "admitted": exported.admitted,
            "admitted_before": exported.admitted_before,
            "left_out": exported.left_out,
            "utilisation": exported.utilisation,
            "utilisation_before": exported.utilisation_before,
        },
    )


def _convert_allocation(config: ExportConfig, file: Path) -> Exported:
    """Convert an allocation file to SR policies or next-hop groups."""
    topology = topology_of(config)
    allocation = read_allocation(file)
    if config.format == "wcmp":
        return next_hop_groups(allocation, topology)
    igp = Igp(topology, link_weights(topology, config.igp))
    return sr_policies(allocation, topology, igp, config.msd, config.max_lists)


def _export_policies(config: ExportConfig, file: Path) -> Outcome:
    """Export segment lists as configuration of all headends (.conf) or as candidate paths with
    labels (.json).
    """
    check_out_file(config.out, (".json", ".conf"), overwrite=config.overwrite)
    topology = topology_of(config)
    policies = read_policies(file, topology)
    routers = None if config.routers is None else read_routers(config.routers)
    write_sr_policies(config.out, topology, policies, routers)
    count = len(policies.lists)
    return Outcome(
        text=f"{config.out}: {count:,} policies written",
        data={"out": str(config.out), "policies": count},
    )


def _export_algorithms(config: ExportConfig) -> Outcome:
    """Export the configuration of flexible algorithms on all routers."""
    check_out_file(config.out, (".conf",), overwrite=config.overwrite)
    assert config.routers is not None
    assert config.interfaces is not None
    topology = topology_of(config)
    routers = read_routers(config.routers)
    _, algorithms = lists_and_algorithms(None, config.flex_algo, topology)
    names = interface_names(config.interfaces, topology)
    texts = algorithm_config(topology, algorithms, routers, names)
    write_texts(config.out, texts, routers)
    numbers = [algorithm.number for algorithm in algorithms]
    return Outcome(
        text=f"{config.out}: algorithms {', '.join(map(str, numbers))} on {len(texts):,} routers",
        data={"out": str(config.out), "algorithms": numbers, "routers": len(texts)},
    )


def _export_metrics(config: ExportConfig, file: Path) -> Outcome:
    """Export metric changes as configuration lines of FRR, one block per change."""
    check_out_file(config.out, (".conf",), overwrite=config.overwrite)
    topology = topology_of(config)
    changes = load_changes(file, topology.link_names())
    interfaces = None
    if config.interfaces is not None:
        interfaces = interface_names(config.interfaces, topology)
        _check_interfaces(config.interfaces, topology, interfaces)
    with atomic_file(config.out) as temporary:
        temporary.write_text(frr_lines(changes, interfaces), encoding="utf-8")
    return Outcome(
        text=f"{config.out}: {len(changes)} metric changes written",
        data={"out": str(config.out), "changes": len(changes)},
    )


def _check_interfaces(table: Path, topology: Topology, interfaces: dict[str, list[str]]) -> None:
    """Raise InputError if a link with capacity has no interface in the table."""
    live = zip(topology.link_names(), topology.capacity > 0, strict=True)
    missing = [name for name, is_live in live if is_live and name not in interfaces]
    if missing:
        raise InputError.invalid(
            str(table), "", f"no interface for the links {listed(missing)}; add rows for them"
        )
