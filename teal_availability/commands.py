"""The commands of this package."""

from __future__ import annotations

from teal.app.command import COMPARE, Command
from teal_availability.settings import AdmitConfig, AvailabilityConfig

COMMANDS = {
    "availability": Command(
        AvailabilityConfig, "teal_availability.command:availability_outcome", COMPARE
    ),
    "admit": Command(AdmitConfig, "teal_availability.admit_command:admit_outcome", COMPARE),
}
