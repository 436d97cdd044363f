"""Numbers with decimal points or decimal commas in the columns of tables.

``2,5`` is two and a half in half of the world, and ``10,000`` is ten or ten thousand.  The whole
column decides how a number is read:

- ``2.5``, ``0.622``, ``12.3456``, ``1,000.5`` and ``1,000,000`` certainly have a decimal point, and
  commas between thousands;
- ``2,5``, ``0,622``, ``12,3456``, ``1.000,5`` and ``1.000.000`` certainly have a decimal comma, and
  points between thousands;
- ``10.000`` and ``10,000`` are ambiguous: the certain numbers of the column decide.

A column with certain numbers of both kinds is refused.  In a column without a certain number, bare
numbers of a file with comma-separated columns have decimal points, since a decimal comma would end
the column; other ambiguous numbers are refused, and the message names both readings.  Entry point:
:func:`plain_numbers`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence

from teal.errors import InputError

# Thousands separators: space, no-break space, narrow no-break space, apostrophes.
_THOUSANDS_SEPARATORS = " \u00a0\u202f'\u2019"
# A number within a cell: both numbers of 2x100G and of 16000-23999, the number of 1.000,5 Mbit/s.
_NUMBER = re.compile(r"(?:\d[\d.,]*|[.,]\d+)(?:[eE][+-]?\d+(?![\w.,]))?")
_SPACED = re.compile(
    rf"\b\d{{1,3}}(?:[{_THOUSANDS_SEPARATORS}]\d{{3}})+(?![\d{_THOUSANDS_SEPARATORS}])"
)
_AMBIGUOUS_NUMBER = re.compile(r"[1-9]\d{0,2}[.,]\d{3}")
# Numbers that certainly have a decimal comma; with commas and points exchanged, a decimal point.
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
_SWAP_COMMA_POINT = str.maketrans(",.", ".,")


class Decimal(enum.Enum):
    """Sign between the integer and the decimals of a number: a point or a comma."""

    POINT = "."
    COMMA = ","


def _certain_decimal(number: str) -> Decimal | None:
    """Return the decimal sign of an unambiguous number; None for an ambiguous one, or one without
    signs.
    """
    if _DECIMAL_COMMA.fullmatch(number):
        return Decimal.COMMA
    if _DECIMAL_COMMA.fullmatch(number.translate(_SWAP_COMMA_POINT)):
        return Decimal.POINT
    return None


def _python_notation(number: str, decimal: Decimal) -> str:
    """Rewrite a number with this decimal sign in Python's notation: with a decimal point and
    without separators of thousands.
    """
    if decimal is Decimal.COMMA:
        number = number.translate(_SWAP_COMMA_POINT)
    return number.replace(",", "")


def _without_spaces(text: str) -> str:
    """Remove spaces and apostrophes between thousands: 10 000 becomes 10000."""
    return _SPACED.sub(lambda match: re.sub(rf"[{_THOUSANDS_SEPARATORS}]", "", match[0]), text)


def decimal_of(cells: Sequence[str], where: str, column: str, separator: str = "") -> Decimal:
    """Return the decimal sign of a column: that of its certain numbers; a point without any.

    ``2,5`` certainly has a decimal comma; ``10,000`` is ambiguous.

    Args:
        cells: texts with numbers, possibly with units.
        where: name of the file, for messages.
        column: name of the column, for messages.
        separator: column separator of the file; "" for none.

    Raises:
        InputError: certain numbers of both kinds, or ambiguous numbers only.
    """
    # A cell with a certain number of each sign, and the first cell with an ambiguous number.
    examples: dict[Decimal, str] = {}
    ambiguous_cell = ""
    for cell in cells:
        if "," not in cell and "." not in cell:
            continue
        text = _without_spaces(cell)
        for number in _NUMBER.findall(text):
            decimal = _certain_decimal(number)
            if decimal is not None:
                examples.setdefault(decimal, cell)
            elif _AMBIGUOUS_NUMBER.fullmatch(number):
                # Between commas as column separators, a bare 10.000 has a decimal point.
                is_bare = number == text.strip() and "." in number and separator == ","
                ambiguous_cell = ambiguous_cell or ("" if is_bare else cell)
    if len(examples) == 2:
        raise InputError.invalid(
            where,
            column,
            f"{examples[Decimal.POINT]!r} has a decimal point, but {examples[Decimal.COMMA]!r} a "
            "decimal comma",
            "use one of them",
        )
    # Without a certain number, name both readings of the ambiguous one.
    if ambiguous_cell and not examples:
        number = next(
            candidate
            for candidate in _NUMBER.findall(_without_spaces(ambiguous_cell))
            if _AMBIGUOUS_NUMBER.fullmatch(candidate)
        )
        readings = sorted(float(_python_notation(number, decimal)) for decimal in Decimal)
        raise InputError.invalid(
            where,
            column,
            f"{ambiguous_cell!r} is ambiguous: {readings[0]:g} or {readings[1]:.12g}",
            "write an unambiguous number, such as 10000, 10.0 or 10,0",
        )
    return next(iter(examples), Decimal.POINT)


def plain_numbers(cells: Sequence[str], where: str, column: str, separator: str = "") -> list[str]:
    """Return the cells of a column with all numbers in Python's notation; units and other text
    stay.

    Args:
        cells: texts with numbers, possibly with units.
        where: name of the file, for messages.
        column: name of the column, for messages.
        separator: column separator of the file; "" for none.

    Raises:
        InputError: decimal points and decimal commas in one column, or ambiguous numbers only.
    """
    decimal = decimal_of(cells, where, column, separator)

    def rewrite(match: re.Match[str]) -> str:
        return _python_notation(match[0], decimal)

    return [_NUMBER.sub(rewrite, _without_spaces(cell)) for cell in cells]
