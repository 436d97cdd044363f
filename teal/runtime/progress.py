"""Progress of long work on the standard error: a bar in a terminal; elsewhere, as in a log, a line
every half minute.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from tqdm import tqdm
from typing_extensions import override

LINE_EVERY_S = 30.0


class _Lines(tqdm):
    """Progress as lines; none for work that ends within the time between two lines."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._line_time, self._has_lines = time.monotonic(), False
        super().__init__(*arguments, **options, mininterval=LINE_EVERY_S / 10, ascii=True)

    @override
    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        if msg is None and time.monotonic() - self._line_time >= LINE_EVERY_S:
            self._write_line()
        return False  # nothing that would have to be cleared

    @override
    def close(self) -> None:
        if not self.disable and self._has_lines:
            self._write_line()
        self.leave = False
        super().close()

    def _write_line(self) -> None:
        self._line_time, self._has_lines = time.monotonic(), True
        self.fp.write(f"{self}\n")
        self.fp.flush()


def progress_bar(*arguments: Any, **options: Any) -> Any:
    """Progress of tqdm, with its arguments, in the form that suits the standard error."""
    return (tqdm if sys.stderr.isatty() else _Lines)(*arguments, **options)
