"""The public names of this package."""

from .api import next_interval
from .variety import vary

__all__ = [
    "next_interval",
    "vary",
]
