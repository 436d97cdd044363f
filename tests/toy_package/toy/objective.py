"""half_flow: total flow, of which a Gbit/s is worth a half."""

from typing import Any

from teal.extend import Rules


class _Half(Rules):
    def demand_value(self, weight: Any, demands: int) -> Any:
        """(D,) value of one Gbit/s."""
        return super().demand_value(weight, demands) / 2


RULES = _Half()
