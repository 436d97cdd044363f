"""Options that several places offer, declared once: commands, requests to the service and their
documents.

A field of settings is annotated with its option, ``gap: Annotated[float, GAP] = 0.01``: ``--help``
then prints the option's text, and :func:`check_options` refuses what it forbids.  Request models
make fields from the same record.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from typing import Any

from teal.errors import InputError


@dataclasses.dataclass(frozen=True)
class Option:
    """An option of a command or a request.

    Attributes:
        name: name of the option.
        text: what it does, in a sentence.
        low: least number; None for an option that is a word.
        high: largest number; None for none.
        words: its words; () for a number.
        above_low: whether the number must be above ``low``.
        below_high: whether it must be below ``high``.
        base: what 0% is of a number that people also write in per cent: 0 of a share, 1 of a
            factor; None for others.
    """

    name: str
    text: str
    low: float | None = None
    high: float | None = None
    words: tuple[str, ...] = ()
    above_low: bool = False
    below_high: bool = False
    base: float | None = None

    @property
    def expected(self) -> str:
        """The range of a number, for messages."""
        if self.high is None:
            return f"a number {'above' if self.above_low else 'of at least'} {self.low:g}"
        return (
            f"a number in {'(' if self.above_low else '['}{self.low:g}, "
            f"{self.high:g}{')' if self.below_high else ']'}"
        )

    def allows(self, value: float) -> bool:
        """Whether a number is in the range."""
        low, high = (
            -math.inf if self.low is None else self.low,
            math.inf if self.high is None else self.high,
        )
        is_low_enough = value < high if self.below_high else value <= high
        return is_low_enough and (value > low if self.above_low else value >= low)

    def check(self, value: float, found: object = None) -> None:
        """Raise InputError for a number out of the range, with the number that is meant if it is
        one in per cent.

        Args:
            value: the number.
            found: what the user wrote, if that is another thing.
        """
        if self.low is None or self.allows(value):
            return
        expected = self.expected
        is_above = self.high is not None and value >= self.high
        if is_above and self.base is not None and self.allows(self.base + value / 100):
            more = " more" if self.base else ""
            expected += f"; {value:g}%{more} is {self.base + value / 100:g}"
        raise InputError(
            f"--{self.name.replace('_', '-')}", "", expected, value if found is None else found
        )

    @property
    def limits(self) -> dict[str, float]:
        """The range as a request model takes it."""
        names = {
            "gt" if self.above_low else "ge": self.low,
            "lt" if self.below_high else "le": self.high,
        }
        return {name: limit for name, limit in names.items() if limit is not None}


TOPOLOGY = Option(
    "topology",
    "A .json file (node-link, RFC 8345, or FRR's database of IS-IS or OSPF), a table of links "
    "(.csv, .xlsx), BGP-LS "
    "updates of ExaBGP or GoBGP (.jsonl), a topology of containerlab (.clab.yml), a .graphml, "
    "SNDlib .xml or Repetita "
    ".graph file, topohub:GROUP/NAME[,capacity=GBPS], or b4.",
)
GAP = Option(
    "gap", "Certified gap at which to stop: (bound - value) / bound.", 0, 1, below_high=True
)
MAX_ITERATIONS = Option("max_iterations", "Number of iterations, at most.", 0)
PREFER = Option(
    "prefer",
    "Of paths between which the objective does not choose, prefer those of least latency or of "
    "fewest hops; none "
    "to leave the choice to the solver.",
    words=("latency", "hops", "none"),
)
ENTRIES = Option(
    "entries",
    (
        "Round splits to whole-number weights that sum to this number, as switches have them, 1 to "
        "255; 0 for splits."
    ),
    0,
    255,
)
MIN_SPLIT = Option(
    "min_split",
    (
        "Least share of a demand on a path; smaller ones go to its other paths. What that costs is "
        "printed."
    ),
    0,
    1,
    below_high=True,
)
PATH_GAP = Option(
    "path_gap",
    (
        "Where candidate paths are chosen: certified gap to the optimum over all paths, at which "
        "no "
        "more paths are added."
    ),
    0,
    1,
    above_low=True,
    below_high=True,
)
MAX_PATHS = Option(
    "max_paths",
    "Where candidate paths are chosen: paths of a demand at most; besides the first 4, those that "
    "carry most in some "
    "training matrix.",
    1,
    255,
)
GROWTH = Option(
    "growth",
    "Factor of all demands: 1.4 for next year's traffic, if it grows by 40%.",
    0,
    10,
    above_low=True,
    base=1,
)
GROWTH_PER_YEAR = Option(
    "growth_per_year",
    "Growth of all demands in a year: 0.3 for 30%, or fit, from the traffic (of eight weeks and "
    "more). Prints when "
    "which link is full: passes --max-utilisation.",
    -1,
    5,
    above_low=True,
    base=0,
)
MAX_UTILISATION = Option(
    "max_utilisation",
    "Largest utilisation that a link may have, such as 0.8.",
    0,
    5,
    above_low=True,
    base=0,
)
TARGET_UTILISATION = Option(
    "target_utilisation",
    "Likewise: the fewest demands with a policy that keep every link at or below this utilisation, "
    "such as 0.6; 0 for "
    "none.",
    0,
    5,
    base=0,
)
OVERWRITE = Option("overwrite", "Replace OUT if it exists.")
RESUME = Option("resume", "Continue the interrupted run in OUT, with the same settings.")
DEVICE = Option(
    "device",
    "auto (a GPU if there is one and the network is large, or a model is trained), cpu or cuda.",
)


def of_fields(config: type[Any]) -> dict[str, Option]:
    """The option of each annotated field of a class of settings."""
    hints = typing.get_type_hints(config, include_extras=True)
    options = {
        name: [part for part in getattr(hint, "__metadata__", ()) if isinstance(part, Option)]
        for name, hint in hints.items()
    }
    return {name: found[0] for name, found in options.items() if found}


def check_options(config: Any) -> None:
    """Raise InputError for a number that its option forbids; None stands for no number.

    Args:
        config: settings.
    """
    for name, option in of_fields(type(config)).items():
        value = getattr(config, name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number:
            option.check(value)
