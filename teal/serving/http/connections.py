"""Connections: how many one address may have, and how long the head of a request may take."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections import Counter
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

MOST_HEAD_BYTES = 64 << 10  # of the request line and headers of a request
HEAD_S = 10.0  # seconds in which a connection must send the whole head of its next request, from its first byte on


def limited(most: int) -> type[asyncio.Protocol]:
    """Uvicorn's protocol, which closes a connection where its address has more than ``most``, or its head is not right.

    A head is the request line and headers; it must arrive within HEAD_S seconds and MOST_HEAD_BYTES bytes.
    """
    counts: Counter[str] = Counter()
    base: Any = AutoHTTPProtocol

    class Limited(base):
        """See :func:`limited`."""

        def connection_made(self, transport: asyncio.Transport) -> None:
            self._address = str((transport.get_extra_info("peername") or ("",))[0])
            self._waiting: asyncio.TimerHandle | None = None
            self._head_bytes = 0
            counts[self._address] += 1
            super().connection_made(transport)
            if counts[self._address] > most:
                transport.abort()
            else:
                self._wait_for_head(transport)

        def data_received(self, data: bytes) -> None:
            if self._waiting is not None or self.cycle is None or self.cycle.response_complete:
                # A part may hold the end of a head and much of a body: what counts is how long the head goes on.
                end = data.find(b"\r\n\r\n")
                self._head_bytes += len(data) if end < 0 else end
                if self._head_bytes > MOST_HEAD_BYTES:
                    self.transport.abort()
                    return
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop_waiting()
                self._head_bytes = 0
            elif self._waiting is None:
                self._wait_for_head(self.transport)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            counts[self._address] -= 1
            if not counts[self._address]:
                del counts[self._address]
            super().connection_lost(exc)

        def _wait_for_head(self, transport: asyncio.Transport) -> None:
            self._waiting = asyncio.get_running_loop().call_later(HEAD_S, transport.abort)

        def _stop_waiting(self) -> None:
            if self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None

    return Limited


def allow_many_files() -> None:
    """Let this process have as many files and connections open as the system permits."""
    with contextlib.suppress(ValueError, OSError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
