"""`teal degree`: the largest degree of a node."""

import dataclasses

import teal
from teal.command import INPUT, Command, Notify, Outcome


@dataclasses.dataclass(frozen=True, kw_only=True)
class DegreeConfig:
    """Print the largest number of links that leave a node."""

    topology: str
    """A file or name."""


def degree_outcome(config: DegreeConfig, _: Notify) -> Outcome:
    """The command."""
    topology = teal.load_topology(config.topology)
    degree = max(int((topology.link_source == node).sum()) for node in range(topology.num_nodes))
    return Outcome(text=f"{degree} links", data={"degree": degree})


COMMANDS = {"degree": Command(DegreeConfig, degree_outcome, INPUT)}
