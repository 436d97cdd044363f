"""The public names of this package."""

from .api import next_interval
from .command import NextIntervals
from .variety import vary

__all__ = [
    "NextIntervals",
    "next_interval",
    "vary",
]
