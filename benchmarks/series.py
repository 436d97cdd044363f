"""Options and input of the benchmarks that walk along a measured series."""

from __future__ import annotations

import argparse


def series_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser of a network, a series of matrices on it, and the capacity of links that have none.

    Args:
        description: the docstring of the script.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("topology")
    parser.add_argument("traffic")
    parser.add_argument("--default-capacity", type=float)
    return parser


def loop_parser(description: str | None, first: int, intervals: int) -> argparse.ArgumentParser:
    """The same for a closed loop over ``intervals`` matrices from number ``first`` on, after a
    history.
    """
    parser = series_parser(description)
    parser.add_argument("--first", type=int, default=first)
    parser.add_argument("--intervals", type=int, default=intervals)
    parser.add_argument("--history", type=int, default=0)
    return parser
