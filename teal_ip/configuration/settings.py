"""Settings of ``teal export``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from teal.app.settings import TopologyFileConfig, require
from teal.errors import InputError
from teal.network.path_options import PathWeight
from teal.option import OVERWRITE, TOPOLOGY

# Options of which exactly one is given: the input.
_INPUT_OPTIONS = ("allocation", "policies", "metrics", "flex_algo")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportConfig(TopologyFileConfig):
    """Export an allocation, segment lists, metrics or flexible algorithms in formats for routers.

    An allocation becomes SR policies or WCMP next-hop groups (.json); segment lists become
    configuration (.conf), or candidate paths with labels (.json); metrics and algorithms become
    configuration (.conf).  Paths that routers cannot express are dropped and reported.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "input": ("allocation", "policies", "metrics", "flex_algo"),
        "conversion of an allocation": ("format", "igp", "msd", "max_lists"),
        "names of routers and interfaces": ("routers", "interfaces"),
        "output": ("out", "overwrite"),
    }

    allocation: Path | None = None
    """Allocation, a .json file of teal solve --out."""
    policies: Path | None = None
    """Segment lists, a .json file of teal segments --out."""
    metrics: Path | None = None
    """Metric changes, a .json or .csv file of teal metrics --out, exported as FRR configuration."""
    flex_algo: tuple[str, ...] = ()
    """Flexible algorithm, such as 128:metric=delay,exclude=red, for all routers (IOS-XR, Junos,
    FRR); its SIDs are in a column such as sid_128 of --routers.  Repeat for more algorithms.
    """
    topology: Annotated[str, TOPOLOGY]
    format: Literal["sr-policy", "wcmp"] = "sr-policy"
    """sr-policy: for each demand, weighted segment lists that follow its paths exactly.  wcmp: for
    each node and target, weighted next hops (destination-based forwarding)."""
    igp: PathWeight = PathWeight.HOPS
    """For sr-policy: metric of the IGP's shortest paths: hops, latency or inverse-capacity."""
    msd: int = 10
    """For sr-policy: maximum SID depth (MSD), the maximum number of segments of a list."""
    max_lists: int = 16
    """For sr-policy: maximum number of segment lists of a policy."""
    interfaces: Path | None = None
    """For metrics and algorithms: table (.csv or .parquet) of the interfaces of links, with columns
    router, interface, neighbour, number."""
    out: Path
    """Write to this .json or .conf file."""
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range, or not exactly one input."""
        for field in ("msd", "max_lists"):
            require(self, field, "a positive integer", getattr(self, field) >= 1)
        # Exactly one input.
        given_inputs = [name for name in _INPUT_OPTIONS if getattr(self, name)]
        if len(given_inputs) != 1:
            options = " or ".join(f"--{name.replace('_', '-')}" for name in _INPUT_OPTIONS)
            source_options = ", ".join(f"--{name.replace('_', '-')}" for name in given_inputs)
            problem = f"several inputs: {source_options}" if given_inputs else "no input"
            raise InputError.invalid("export", "", problem, f"give exactly one of {options}")
        # Algorithms need both tables; other input than metrics and algorithms has no interfaces.
        for field in ("interfaces", "routers"):
            is_given = getattr(self, field) is not None
            if self.flex_algo and not is_given:
                raise InputError.invalid(
                    "--flex-algo", "", f"algorithms need a table of {field}", f"add --{field}"
                )
        uses_interfaces = bool(self.metrics or self.flex_algo)
        if self.interfaces is not None and not uses_interfaces:
            raise InputError.invalid(
                "--interfaces",
                "",
                "only --metrics and --flex-algo use a table of interfaces",
                "drop --interfaces",
            )
