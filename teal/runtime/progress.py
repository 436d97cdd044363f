"""Progress of long work on standard error: a bar in a terminal; elsewhere, as in a log, a line
every half minute.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from tqdm import tqdm
from typing_extensions import override

LINE_EVERY_S = 30.0


class _ProgressLines(tqdm):
    """Progress bar of tqdm that writes lines instead, one every half minute; none for shorter
    work.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._line_time = time.monotonic()
        self._has_lines = False
        super().__init__(*arguments, **options, mininterval=LINE_EVERY_S / 10, ascii=True)

    @override
    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        """Write a line if the last one is half a minute old; tqdm calls this to draw the bar."""
        if msg is None and time.monotonic() - self._line_time >= LINE_EVERY_S:
            self._write_line()
        # Nothing to clear.
        return False

    @override
    def close(self) -> None:
        """Write the final line, if there was one before."""
        if not self.disable and self._has_lines:
            self._write_line()
        self.leave = False
        super().close()

    def _write_line(self) -> None:
        """Write the present progress as a line."""
        self._line_time = time.monotonic()
        self._has_lines = True
        self.fp.write(f"{self}\n")
        self.fp.flush()


def progress_bar(*arguments: Any, **options: Any) -> Any:
    """Return a tqdm progress bar, or progress lines where standard error is no terminal."""
    return (tqdm if sys.stderr.isatty() else _ProgressLines)(*arguments, **options)
