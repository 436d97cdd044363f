"""Command table of this package; an entry point of ``teal``."""

from __future__ import annotations

from teal.app.command import COMPARE, Command
from teal_availability.settings import AdmitConfig, AvailabilityConfig, ExpandConfig

COMMANDS = {
    "availability": Command(
        AvailabilityConfig, "teal_availability.command:availability_outcome", COMPARE
    ),
    "expand": Command(ExpandConfig, "teal_availability.expand_command:expand_outcome", COMPARE),
    "admit": Command(AdmitConfig, "teal_availability.admit_command:admit_outcome", COMPARE),
}
