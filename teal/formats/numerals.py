"""Numbers as people and spreadsheets write them in the columns of tables: decimal points and
decimal commas.

``2,5`` is two and a half in half of the world, and ``10,000`` is ten or ten thousand.  How a number
is meant is decided by its whole column:

| written | meant |
|---|---|
| ``2.5``, ``0.622``, ``12.3456``, ``1,000.5``, ``1,000,000`` | a decimal point, and commas between thousands |
| ``2,5``, ``0,622``, ``12,3456``, ``1.000,5``, ``1.000.000`` | a decimal comma, and points between thousands |
| ``10.000``, ``10,000`` | either: the other numbers of the column decide |

A column that has numbers of both kinds is refused.  Where nothing is certain, bare numbers in a
file whose columns are separated by commas have decimal points, since a decimal comma would end the
column; any others are refused, and the message names both readings.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence

from teal.errors import InputError

# between thousands: a space, one without a break, a narrow one, apostrophes
_SPACES = " \u00a0\u202f'\u2019"
# A number within a cell, such as the two of 2x100G and of 16000-23999, and the one of 1.000,5
# Mbit/s.
_NUMBER = re.compile(r"(?:\d[\d.,]*|[.,]\d+)(?:[eE][+-]?\d+(?![\w.,]))?")
_SPACED = re.compile(rf"\b\d{{1,3}}(?:[{_SPACES}]\d{{3}})+(?![\d{_SPACES}])")
_AMBIGUOUS = re.compile(r"[1-9]\d{0,2}[.,]\d{3}")
# With a decimal comma for certain; such as can be read with commas and points exchanged have a
# decimal point.
CERTAIN_COMMA = (
    r"[0-9]*,[0-9]{1,2}"  # 2,5
    r"|[0-9]*,[0-9]{4,}"  # 12,3456
    r"|0*,[0-9]+"  # 0,622
    r"|[0-9]{4,},[0-9]+"  # 1000,500
    r"|[0-9]{1,3}([.][0-9]{3})+,[0-9]+"  # 1.000,5
    r"|[1-9][0-9]{0,2}([.][0-9]{3}){2,}"  # 1.000.000
    r"|[0-9]*,[0-9]+[eE][+-]?[0-9]+"  # 1,500e3
)
_DECIMAL_COMMA = re.compile(CERTAIN_COMMA)
_SWAP = str.maketrans(",.", ".,")


class Decimal(enum.Enum):
    """The sign between the whole part of a number and its fraction."""

    POINT = "."
    COMMA = ","


def _certain(number: str) -> Decimal | None:
    """How a number is certainly meant; None where it may be read in both ways, or has neither
    sign.
    """
    if _DECIMAL_COMMA.fullmatch(number):
        return Decimal.COMMA
    if _DECIMAL_COMMA.fullmatch(number.translate(_SWAP)):
        return Decimal.POINT
    return None


def _plain(number: str, decimal: Decimal) -> str:
    """The number as Python reads it."""
    if decimal is Decimal.COMMA:
        number = number.translate(_SWAP)
    return number.replace(",", "")


def _without_spaces(text: str) -> str:
    """The text without the spaces and apostrophes between thousands: 10 000 is 10000."""
    return _SPACED.sub(lambda found: re.sub(rf"[{_SPACES}]", "", found[0]), text)


def decimal_of(cells: Sequence[str], where: str, column: str, separator: str = "") -> Decimal:
    """The decimal sign of a column, by all of its cells.

    Args:
        cells: texts, each with numbers and perhaps units.
        where: the file, for messages.
        column: name of the column, for messages.
        separator: what separates columns in the file; "" where nothing does.

    Raises:
        InputError: numbers of both kinds, or a number that may be read in both ways where none
            decides.
    """
    example: dict[Decimal, str] = {}
    ambiguous = ""
    for cell in cells:
        if "," not in cell and "." not in cell:
            continue
        text = _without_spaces(cell)
        for number in _NUMBER.findall(text):
            decimal = _certain(number)
            if decimal is not None:
                example.setdefault(decimal, cell)
            elif _AMBIGUOUS.fullmatch(number):
                is_bare = number == text.strip() and "." in number and separator == ","
                ambiguous = ambiguous or ("" if is_bare else cell)
    if len(example) == 2:
        found = f"{example[Decimal.POINT]!r} and {example[Decimal.COMMA]!r}"
        raise InputError(where, column, "decimal points or decimal commas, not both", found)
    if ambiguous and not example:
        number = next(
            one for one in _NUMBER.findall(_without_spaces(ambiguous)) if _AMBIGUOUS.fullmatch(one)
        )
        readings = sorted(float(_plain(number, decimal)) for decimal in Decimal)
        raise InputError(
            where,
            column,
            "numbers that can be read in one way, such as 10000, 10.0 or 10,0",
            f"{ambiguous!r}, which may be {readings[0]:g} or {readings[1]:.12g}",
        )
    return next(iter(example), Decimal.POINT)


def plain_numbers(cells: Sequence[str], where: str, column: str, separator: str = "") -> list[str]:
    """The cells of a column with all of their numbers as Python writes them; units and other text
    stay.

    Arguments and errors as for :func:`decimal_of`.
    """
    decimal = decimal_of(cells, where, column, separator)

    def rewritten(found: re.Match[str]) -> str:
        return _plain(found[0], decimal)

    return [_NUMBER.sub(rewritten, _without_spaces(cell)) for cell in cells]
