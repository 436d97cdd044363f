"""Settings of `teal sweep`."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from teal.config.base import require
from teal.config.option import RESUME
from teal.config.train import TrainConfig
from teal.errors import InputError, did_you_mean

_FIXED = ("out", "resume", "overwrite", "json", "seed", "topology", "traffic", "workers")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepConfig(TrainConfig):
    """Train with several settings and seeds, and compare: means with 95% confidence intervals over the seeds.

    Every run is what `teal train` would do, then evaluated on test matrices; all settings of train apply to all runs.
    An interrupted sweep goes on with --resume.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {"sweep": ("vary", "seeds", "limit"), **TrainConfig.GROUPS}

    vary: tuple[str, ...] = ()
    """A setting of train and its values: learning_rate=1e-3,3e-3; repeat for every combination of several settings."""
    seeds: int = 3
    """Number of runs of each combination, with the seeds SEED, SEED + 1, ..."""
    limit: int = 20
    """Number of test matrices to evaluate on, at most, evenly spread; 0 for all."""
    resume: Annotated[bool, RESUME] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range, or a setting that train does not have."""
        super().__post_init__()
        require(self, "seeds", "a whole number of at least 1", self.seeds >= 1)
        require(self, "limit", "a whole number of at least 0", self.limit >= 0)
        require(self, "workers", "0: runs of a sweep use this process", self.workers == 0)
        for _ in self.combinations():
            pass

    def combinations(self) -> Iterator[dict[str, Any]]:
        """The values of the varied settings, in the order in which they are run.

        Raises:
            InputError: an unknown setting, or a value of another type.
        """
        names = {field.name: field for field in dataclasses.fields(TrainConfig) if field.name not in _FIXED}
        axes: list[list[tuple[str, Any]]] = []
        for text in self.vary:
            name, _, values = text.partition("=")
            name = name.strip().replace("-", "_")
            name = "from_" if name == "from" else name
            if name not in names or not values:
                raise InputError("--vary", "", f"SETTING=A,B of train{did_you_mean(name, names)}", repr(text))
            axes.append([(name, self._value(name, value.strip(), text)) for value in values.split(",")])
        for combination in itertools.product(*axes):
            yield dict(combination)

    def _value(self, name: str, text: str, where: str) -> Any:
        now = getattr(self, name)
        try:
            if isinstance(now, bool):
                return {"true": True, "false": False}[text.lower()]
            if name == "num_paths":
                return text if text == "auto" else int(text)
            if isinstance(now, int | float):
                return type(now)(text)
            return float(text) if name == "calibrate" else text
        except (ValueError, KeyError):
            raise InputError("--vary", name, f"a value like {now!r}", f"{text!r} in {where!r}") from None
