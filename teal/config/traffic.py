"""Settings of `teal traffic`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

from teal.config.base import NetworkConfig
from teal.config.option import OVERWRITE


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrafficConfig(NetworkConfig):
    """Describe the traffic matrices of a network."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrafficConvertConfig(TrafficConfig):
    """Write traffic matrices to another format."""

    out: Path
    """A .npz (fastest to train from), .csv or .parquet file."""
    overwrite: Annotated[bool, OVERWRITE] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrafficGenerateConfig(TrafficConvertConfig):
    """Generate traffic matrices into a file.

    gravity:seed=0,count=200,load=4,interval=300,top=0.88,noise=0.3,correlation=0.9, where load is the
    largest link utilisation of the mean matrix under shortest-path routing, interval the seconds from
    one matrix to the next, top the share of the volume of the largest tenth of the demands, noise the standard
    deviation of the logarithm of a rate, and correlation that of the noise from one matrix to the next.
    """

    traffic: str = "gravity:seed=0,count=200,load=4"
    """The generator's options; all have defaults."""
