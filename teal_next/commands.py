"""The commands of this package: `next-interval` and `pretrain-hedge`."""

from __future__ import annotations

from teal.app.command import COMPARE, FIRST_SOLVE, LEARN, Command
from teal_next.settings import NextIntervalConfig, PretrainHedgeConfig

COMMANDS = {
    "next-interval": Command(
        NextIntervalConfig, "teal_next.command:next_interval_outcome", COMPARE
    ),
    "pretrain-hedge": Command(
        PretrainHedgeConfig, "teal_next.pretrain:pretrain_hedge_outcome", LEARN, FIRST_SOLVE
    ),
}
