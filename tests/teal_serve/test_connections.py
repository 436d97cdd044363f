"""Connections over real sockets: as many as allowed for each address, and none whose head
stalls."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")

import uvicorn
from uvicorn.server import ServerState

from teal_serve import process as connections
from teal_serve.process import limited_protocol
from tests.gate import PATIENCE_S
from tests.teal_serve.service import free_port, run

MAX_CONNECTIONS = 5


async def _app(scope: Any, receive: Any, send: Any) -> None:
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    )
    await send({"type": "http.response.body", "body": b"ok"})


class _Service:
    """The protocol in front of an application that always answers."""

    async def __aenter__(self) -> int:
        self.port = free_port()
        config = uvicorn.Config(
            _app,
            port=self.port,
            http=limited_protocol(MAX_CONNECTIONS),
            log_level="critical",
            lifespan="off",
            ws="none",
            timeout_keep_alive=3600,
        )
        self.server = uvicorn.Server(config)
        self.task = asyncio.create_task(self.server.serve())
        while not self.server.started:
            await asyncio.sleep(0.01)
        return self.port

    async def __aexit__(self, *_: object) -> None:
        self.server.should_exit = True
        await self.task


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """The first bytes of an answer; none if the connection was closed."""
    try:
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\nok")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""
    return head[:12]


@contextlib.asynccontextmanager
async def _connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def test_an_address_has_so_many_connections_and_gets_a_new_one_for_each_it_closes() -> None:
    async def work() -> None:
        async with _Service() as port, contextlib.AsyncExitStack() as stack:
            kept = [
                await stack.enter_async_context(_connected(port))
                for _ in range(MAX_CONNECTIONS - 1)
            ]
            async with _connected(port) as last:
                assert [await _ask(*one) for one in [*kept, last]] == [
                    b"HTTP/1.1 200"
                ] * MAX_CONNECTIONS
                async with _connected(port) as extra:
                    assert await _ask(*extra) == b""
                assert [await _ask(*one) for one in [*kept, last]] == [
                    b"HTTP/1.1 200"
                ] * MAX_CONNECTIONS
            answer = b""
            while not answer:  # until the service has seen that one was closed
                async with _connected(port) as again:
                    answer = await _ask(*again)

    run(work)


@pytest.mark.slow
@pytest.mark.parametrize("asks_before", [False, True])
@pytest.mark.parametrize("sent", [b"G", b"GET / HT"])
def test_a_head_that_stalls_is_given_up(
    sent: bytes, asks_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_TIMEOUT_S", 0.5)

    async def work() -> None:
        async with _Service() as port, _connected(port) as (reader, writer):
            if asks_before:
                assert await _ask(reader, writer) == b"HTTP/1.1 200"
            writer.write(sent)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b"", "until the service closes the connection"

    run(work)


class _Transport(asyncio.Transport):
    """Notes whether the connection was broken off."""

    is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("part", [1 << 10, 10_000, connections.MAX_HEAD_BYTES // 2 + 1])
def test_a_head_in_small_parts_has_no_more_bytes_than_one_in_a_single_part(part: int) -> None:
    """Parts of a head reach the protocol one by one, without a socket that could join them."""

    async def work() -> None:
        config = uvicorn.Config(_app, log_level="critical", lifespan="off", ws="none")
        config.load()
        protocol: Any = limited_protocol(MAX_CONNECTIONS)(
            config=config, server_state=ServerState(), app_state={}
        )  # type: ignore[call-arg]
        transport = _Transport()
        protocol.connection_made(transport)
        begin = b"GET / HTTP/1.1\r\nHost: x\r\n"
        protocol.data_received(begin)
        sent = len(begin)
        while not transport.is_aborted:
            assert sent <= connections.MAX_HEAD_BYTES
            line = b"X-Long: " + b"x" * (part - 10) + b"\r\n"
            protocol.data_received(line)
            sent += len(line)
        assert connections.MAX_HEAD_BYTES < sent <= connections.MAX_HEAD_BYTES + part
        protocol.connection_lost(None)

    run(work)


def test_a_connection_that_sends_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_TIMEOUT_S", 0.5)

    async def work() -> None:
        async with _Service() as port, _connected(port) as (reader, _):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""

    run(work)


def test_websockets_are_refused_and_leave_no_connection_behind() -> None:
    head = (
        b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )

    async def work() -> None:
        async with _Service() as port:
            for _ in range(3 * MAX_CONNECTIONS):
                answer = b""
                while not answer:  # until the service has seen that the one before was closed
                    async with _connected(port) as (reader, writer):
                        with contextlib.suppress(ConnectionError):
                            writer.write(head)
                            answer = await reader.readline()
                assert b"101" not in answer

    run(work)


def test_a_connection_that_rests_between_requests_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_TIMEOUT_S", 0.5)

    async def work() -> None:
        async with _Service() as port, _connected(port) as one:
            assert await _ask(*one) == b"HTTP/1.1 200"
            await asyncio.sleep(0.8)  # longer than a head may take
            assert await _ask(*one) == b"HTTP/1.1 200"

    run(work)


@pytest.mark.slow
@pytest.mark.parametrize("reads", [False, True])
def test_an_answer_that_nobody_reads_is_given_up(
    reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is read, if slowly, is not."""
    size = 24 << 20
    monkeypatch.setattr(connections, "SLOW_READER_TIMEOUT_S", 0.5)

    async def large(scope: Any, receive: Any, send: Any) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-length", b"%d" % size)],
            }
        )
        await send({"type": "http.response.body", "body": bytes(size)})

    monkeypatch.setattr(f"{__name__}._app", large)

    async def work() -> None:
        got, loop = 0, asyncio.get_running_loop()
        async with _Service() as port:
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.setblocking(False)
                await loop.sock_sendall(
                    client, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
                )
                for _ in range(12):
                    await asyncio.sleep(0.25)
                    if reads:
                        got += len(await loop.sock_recv(client, 1 << 20))
                with contextlib.suppress(ConnectionError):
                    while part := await asyncio.wait_for(
                        loop.sock_recv(client, 1 << 20), PATIENCE_S
                    ):
                        got += len(part)
        assert (got > size) == reads

    run(work)
