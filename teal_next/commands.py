"""The command that this package adds to ``teal`` (entry point ``teal.commands``)."""

from __future__ import annotations

from teal.app.command import COMPARE, Command
from teal_next.settings import NextIntervalConfig

COMMANDS = {
    "next-interval": Command(
        NextIntervalConfig,
        "teal_next.command:next_interval_outcome",
        COMPARE,
        formerly={"evaluate": ("next_interval", "known", "lead", "lookback")},
    ),
}
