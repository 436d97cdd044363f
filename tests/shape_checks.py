"""The run-time checker of array shapes: beartype, which takes an integer where a float is expected,
as mypy does."""

from __future__ import annotations

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
