"""One declaration of an option, from which the fields of request models are made."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Option:
    """An option that a request may name.

    Attributes:
        name: of the option.
        text: what it does, in a sentence.
        low: least number; None for an option that is a word.
        high: largest number.
        words: that it may be; () for a number.
    """

    name: str
    text: str
    low: float | None = None
    high: float | None = None
    words: tuple[str, ...] = ()
