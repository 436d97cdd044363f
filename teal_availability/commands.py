"""The command of this package."""

from __future__ import annotations

from teal.app.command import COMPARE, Command
from teal_availability.settings import AvailabilityConfig

COMMANDS = {
    "availability": Command(
        AvailabilityConfig, "teal_availability.command:availability_outcome", COMPARE
    ),
}
