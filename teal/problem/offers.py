"""The side conditions that a service request may contain, by the name of their option."""

from __future__ import annotations

from teal.problem.churn import ChurnLimit
from teal.problem.condition import Condition
from teal.problem.protection import Protection

CONDITIONS_BY_OPTION: dict[str, type[Condition]] = {
    kind.option.name: kind for kind in (ChurnLimit, Protection) if kind.option is not None
}
