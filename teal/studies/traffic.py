"""`teal traffic generate` and `teal traffic convert`: traffic matrices into a file."""

from __future__ import annotations

from teal.config import TrafficConvertConfig
from teal.formats import TRAFFIC_SUFFIXES, load_traffic, save_traffic, topology_of
from teal.network import TrafficMatrices
from teal.runtime.storage import check_out_file


def run_convert(config: TrafficConvertConfig) -> TrafficMatrices:
    """Load or generate the matrices, and write them.

    Raises:
        InputError: a fault in the settings, or an output file that must not be replaced.
    """
    check_out_file(config.out, TRAFFIC_SUFFIXES, overwrite=config.overwrite)
    topology = topology_of(config)
    traffic = load_traffic(config.traffic, topology, progress=True, unit=config.traffic_unit)
    save_traffic(config.out, traffic, topology)
    return traffic
