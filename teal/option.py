"""Options shared by commands, service requests and their documentation, each declared once.

A settings field is annotated with its option, ``gap: Annotated[float, GAP] = 0.01``: ``--help``
prints the option's text, and :func:`check_options` validates the value.  Request models are built
from the same :class:`Option` records.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from typing import Any

from teal.errors import InputError


@dataclasses.dataclass(frozen=True)
class Option:
    """Option of a command or a request: its name, help text and accepted values.

    Attributes:
        name: name of the option.
        text: help text, one sentence.
        low: lower limit; None for an option that takes a word.
        high: upper limit; None for none.
        words: accepted words; () for a number.
        above_low: whether the lower limit is exclusive.
        below_high: whether the upper limit is exclusive.
        base: number that means 0%, 0 for a share and 1 for a factor of growth.  For a number that
            looks like a percentage, the message suggests base + number / 100; None for no
            suggestion.
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
        """Description of the accepted numbers, for messages: ``a number in [0, 1)``."""
        if self.high is None:
            return f"a number {'above' if self.above_low else 'of at least'} {self.low:g}"
        return (
            f"a number in {'(' if self.above_low else '['}{self.low:g}, "
            f"{self.high:g}{')' if self.below_high else ']'}"
        )

    def allows(self, value: float) -> bool:
        """Return whether a number is within the option's limits."""
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        is_below_high = value < high if self.below_high else value <= high
        return is_below_high and (value > low if self.above_low else value >= low)

    def check(self, value: float, actual: object = None) -> None:
        """Raise InputError for a number outside the option's limits.

        The message suggests the fraction if the number looks like a percentage: 0.8 for 80.

        Args:
            value: the number.
            actual: text that the user wrote, if it differs from the number.
        """
        if self.low is None or self.allows(value):
            return
        expected = self.expected
        is_above = self.high is not None and value >= self.high
        if is_above and self.base is not None and self.allows(self.base + value / 100):
            increase = " more" if self.base else ""
            expected += f"; {value:g}%{increase} is {self.base + value / 100:g}"
        raise InputError(
            f"--{self.name.replace('_', '-')}", "", expected, value if actual is None else actual
        )

    @property
    def limits(self) -> dict[str, float]:
        """Limits of the option as keyword arguments of a request model's field: ``ge`` or ``gt``
        and ``le`` or ``lt``; {} without limits.
        """
        limits = {
            "gt" if self.above_low else "ge": self.low,
            "lt" if self.below_high else "le": self.high,
        }
        return {name: limit for name, limit in limits.items() if limit is not None}


TOPOLOGY = Option(
    "topology",
    "A .json file (node-link, RFC 8345, or FRR's database of IS-IS or OSPF), a table of links "
    "(.csv, .xlsx), BGP-LS updates of ExaBGP or GoBGP (.jsonl), a topology of containerlab "
    "(.clab.yml), a .graphml, SNDlib .xml or Repetita .graph file, "
    "topohub:GROUP/NAME[,capacity=GBPS], or b4.",
)
GAP = Option(
    "gap", "Certified gap at which to stop: (bound - value) / bound.", 0, 1, below_high=True
)
MAX_ITERATIONS = Option("max_iterations", "Maximum number of iterations.", 0)
PREFER = Option(
    "prefer",
    "Tie-break among equally good paths: lowest latency or fewest hops; none leaves the choice to "
    "the solver.",
    words=("latency", "hops", "none"),
)
ENTRIES = Option(
    "entries",
    "Round splits to integer weights with this sum (1 to 255), as switches use them; 0 keeps "
    "fractional splits.",
    0,
    255,
)
MIN_SPLIT = Option(
    "min_split",
    "Minimum split of a demand on a path; smaller splits are moved to its other paths. The loss is "
    "printed.",
    0,
    1,
    below_high=True,
)
PATH_GAP = Option(
    "path_gap",
    "Column generation stops at this certified gap to the optimum over all paths.",
    0,
    1,
    above_low=True,
    below_high=True,
)
MAX_PATHS = Option(
    "max_paths",
    "Column generation keeps at most this many paths a demand: the first 4, and those that carry "
    "most in some training matrix.",
    1,
    255,
)
GROWTH = Option(
    "growth",
    "Factor of all demands, such as 1.4 for a growth of 40%.",
    0,
    10,
    above_low=True,
    base=1,
)
GROWTH_PER_YEAR = Option(
    "growth_per_year",
    "Yearly growth of all demands: 0.3 for 30%, or fit to estimate it from at least eight weeks of "
    "traffic. Prints when each link exceeds --max-utilisation.",
    -1,
    5,
    above_low=True,
    base=0,
)
MAX_UTILISATION = Option(
    "max_utilisation",
    "Maximum link utilisation, such as 0.8.",
    0,
    5,
    above_low=True,
    base=0,
)
TARGET_UTILISATION = Option(
    "target_utilisation",
    "Likewise: the fewest demands with a policy that keep every link at or below this utilisation, "
    "such as 0.6; 0 for none.",
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


def field_options(config: type[Any]) -> dict[str, Option]:
    """Return the option of each field of a settings class that is annotated with one, by the name
    of the field.
    """
    hints = typing.get_type_hints(config, include_extras=True)
    options = {
        name: [part for part in getattr(hint, "__metadata__", ()) if isinstance(part, Option)]
        for name, hint in hints.items()
    }
    return {name: annotated[0] for name, annotated in options.items() if annotated}


def check_options(config: Any) -> None:
    """Raise InputError if a number in the settings is outside the limits of its option; None is
    accepted.

    Args:
        config: dataclass of settings whose fields are annotated with options.
    """
    for name, option in field_options(type(config)).items():
        value = getattr(config, name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number:
            option.check(value)
