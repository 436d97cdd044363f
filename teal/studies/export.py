"""`teal export`: from the file of an allocation to what routers take."""

from __future__ import annotations

import json

from teal.config import ExportConfig
from teal.formats import topology_of
from teal.formats.allocations import read_allocation
from teal.formats.export import Exported, next_hop_groups, sr_policies
from teal.network.paths import link_weights
from teal.network.segments import Igp
from teal.runtime.storage import atomic_file, check_out_file


def run_export(config: ExportConfig) -> Exported:
    """Read, express, write.

    Raises:
        InputError: a fault in the settings or in the allocation's file.
    """
    check_out_file(config.out, (".json",), overwrite=config.overwrite)
    topology = topology_of(config)
    allocation = read_allocation(config.allocation)
    if config.format == "wcmp":
        exported = next_hop_groups(allocation, topology)
    else:
        igp = Igp(topology, link_weights(topology, config.igp))
        exported = sr_policies(allocation, topology, igp, config.msd, config.max_lists)
    with atomic_file(config.out) as temporary:
        temporary.write_text(json.dumps(exported.data) + "\n", encoding="utf-8")
    return exported
