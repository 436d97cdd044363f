"""Options of the benchmarks that process a series of measured matrices in time order."""

from __future__ import annotations

import argparse


def series_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with options for the network, its series of matrices, and the capacity of
    links without one.

    Args:
        description: docstring of the script.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("topology")
    parser.add_argument("traffic")
    parser.add_argument("--default-capacity", type=float)
    return parser


def loop_parser(description: str | None, first: int, intervals: int) -> argparse.ArgumentParser:
    """Return the parser of a closed loop: options for the network, the series, and the rows of it
    that the loop runs on.

    Args:
        description: docstring of the script.
        first: default row of the first interval.
        intervals: default number of intervals.
    """
    parser = series_parser(description)
    parser.add_argument("--first", type=int, default=first)
    parser.add_argument("--intervals", type=int, default=intervals)
    parser.add_argument("--history", type=int, default=0)
    return parser
