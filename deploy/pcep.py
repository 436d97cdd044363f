"""SR policies into routers by PCEP: a path computation element (PCE) that gives each router those of a file.

    teal solve --routing segments --one-list ... --routers routers.csv --out policies.sr-policy.json
    python -m deploy.pcep policies.sr-policy.json [--listen 10.0.0.100:4189] [--colour 100]

Routers connect to it as stateful clients (RFC 8231) that let a PCE set up paths (RFC 8281), with segment routing (RFC
8664).  A router is known by the address from which it connects, which is that of the headend in the file.  It reports
the paths that it has; those that it lacks are initiated, those with other labels are updated in place, and those of
this PCE that the file no longer has are removed.  The file is read again whenever it changes.  The PCE has to run for
as long as the policies are to stay: routers may remove them some time after the session ends.

PCEP has one list for a policy: splits are refused (``--one-list``).  The colour is in Cisco's vendor object, which FRR
reads too; tried with FRR 8.4.  PCEP has no authentication here: listen on a management network alone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ipaddress
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

OPEN, KEEPALIVE, ERROR, CLOSE, REPORT, UPDATE, INITIATE = 1, 2, 6, 7, 10, 11, 12  # types of messages
_OPEN_OBJECT, _END_POINTS, _ERO, _ERROR_OBJECT, _LSP, _SRP, _VENDOR = 1, 4, 7, 13, 32, 33, 34  # classes of objects
_STATEFUL, _NAME, _SETUP_TYPE, _SETUP_TYPES, _SR_CAPABILITY = 16, 17, 28, 34, 26  # types of TLVs
_VERSION = 1 << 5  # of PCEP, in the first byte of messages and of the Open object
_CAN_UPDATE, _CAN_INITIATE = 0x1, 0x4  # flags of a stateful PCE
_SEGMENT_ROUTING = 1  # type of path setup
_DELEGATED, _SYNCHRONISING, _REMOVED, _ACTIVE, _CREATED = 0x1, 0x2, 0x4, 0x8, 0x80  # flags of an LSP object
_REMOVE = 0x1  # flag of an SRP object
_SR_SUBOBJECT, _NO_ADDRESS, _IS_LABEL = 36, 0x8, 0x1  # of an explicit route, and its flags
_CISCO, _CISCO_COLOUR = 9, 65540  # enterprise, and what follows is a colour
_BITS_BELOW_LABEL, _BITS_BELOW_PLSP = 12, 12
_KEEPALIVE_S, _DEAD_S = 30, 120
_POLL_S = 0.5  # seconds between two looks at the file


class Policy(NamedTuple):
    """One policy of a router: its name, addresses of headend and endpoint, colour, and labels."""

    name: str
    headend: str
    endpoint: str
    colour: int
    labels: tuple[int, ...]


class Reported(NamedTuple):
    """A path that a router has: its number there, its labels, and whether a PCE set it up."""

    number: int
    labels: tuple[int, ...]
    is_initiated: bool


def policies(document: dict[str, Any], colour: int) -> list[Policy]:
    """The policies of a file, as ``teal solve --routers ... --out FILE.sr-policy.json`` writes it.

    Raises:
        ValueError: a policy of another colour, without an address, with addresses of two families, or with two lists.
    """
    result = []
    for one in document["sr-policies"]:
        what = f"{one['headend']} to {one['endpoint']}"
        if not one.get("endpoint-address") or not one.get("headend-address"):
            raise ValueError(f"{what}: no address; give --routers to teal solve")
        ends = [ipaddress.ip_address(one[key]) for key in ("headend-address", "endpoint-address")]
        if ends[0].version != ends[1].version:
            raise ValueError(f"{what}: addresses {ends[0]} and {ends[1]} are of two families")
        if one["colour"] != colour:
            raise ValueError(f"{what}: colour {one['colour']}; --colour {one['colour']}?")
        lists = [each for path in one["candidate-paths"] for each in path["segment-lists"]]
        if len(lists) != 1:
            raise ValueError(f"{what}: {len(lists)} lists, of which PCEP has one; give --one-list to teal solve")
        labels = tuple(part["label"] for part in lists[0]["segments"])
        result.append(Policy(f"teal-{colour}-{ends[1]}", str(ends[0]), str(ends[1]), colour, labels))
    return result


def tlv(kind: int, value: bytes) -> bytes:
    """A type, length and value, filled up to four bytes."""
    return struct.pack("!HH", kind, len(value)) + value + bytes(-len(value) % 4)


def part(kind: int, body: bytes, form: int = 1) -> bytes:
    """An object; its flag P says that it must be taken into account."""
    return struct.pack("!BBH", kind, form << 4 | 0x2, 4 + len(body)) + body


def message(kind: int, *objects: bytes) -> bytes:
    """A message of objects."""
    body = b"".join(objects)
    return struct.pack("!BBH", _VERSION, kind, 4 + len(body)) + body


def parts(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Class and content of the objects of a message.

    Raises:
        ValueError: a length that cannot be.
    """
    at = 0
    while at < len(body):
        kind, _, length = struct.unpack_from("!BBH", body.ljust(at + 4, b"\0"), at)
        if length < 4 or at + length > len(body):
            raise ValueError(f"an object of {length} bytes, of which {len(body) - at} are left")
        yield kind, body[at + 4 : at + length]
        at += length


def _tlvs(body: bytes) -> dict[int, bytes]:
    found, at = dict[int, bytes](), 0
    while at + 4 <= len(body):
        kind, length = struct.unpack_from("!HH", body, at)
        found[kind] = body[at + 4 : at + 4 + length]
        at += 4 + length + -length % 4
    return found


def _open(number: int) -> bytes:
    setup = struct.pack("!IBxxx", 1, _SEGMENT_ROUTING) + tlv(_SR_CAPABILITY, bytes(4))
    body = struct.pack("!BBBB", _VERSION, _KEEPALIVE_S, _DEAD_S, number % 256)
    stateful = tlv(_STATEFUL, struct.pack("!I", _CAN_UPDATE | _CAN_INITIATE))
    return message(OPEN, part(_OPEN_OBJECT, body + stateful + tlv(_SETUP_TYPES, setup)))


def _srp(number: int, flags: int = 0) -> bytes:
    return part(_SRP, struct.pack("!II", flags, number) + tlv(_SETUP_TYPE, struct.pack("!I", _SEGMENT_ROUTING)))


def _lsp(number: int, flags: int, name: str) -> bytes:
    return part(_LSP, struct.pack("!I", number << _BITS_BELOW_PLSP | flags) + tlv(_NAME, name.encode()))


def _route(labels: tuple[int, ...]) -> bytes:
    flags = _NO_ADDRESS | _IS_LABEL
    return part(_ERO, b"".join(
        struct.pack("!BBHI", _SR_SUBOBJECT, 8, flags, label << _BITS_BELOW_LABEL) for label in labels
    ))  # fmt: skip


def initiate(number: int, policy: Policy) -> bytes:
    """The message that sets a policy up; ``number`` identifies the request."""
    ends = [ipaddress.ip_address(one) for one in (policy.headend, policy.endpoint)]
    form = 1 if ends[0].version == 4 else 2
    return message(
        INITIATE, _srp(number), _lsp(0, _DELEGATED | _ACTIVE | _CREATED, policy.name),
        part(_END_POINTS, ends[0].packed + ends[1].packed, form), _route(policy.labels),
        part(_VENDOR, struct.pack("!III", _CISCO, _CISCO_COLOUR, policy.colour)),
    )  # fmt: skip


def update(number: int, policy: Policy, path: Reported) -> bytes:
    """The message that replaces the labels of a path."""
    return message(
        UPDATE, _srp(number), _lsp(path.number, _DELEGATED | _ACTIVE | _CREATED, policy.name), _route(policy.labels)
    )


def remove(number: int, name: str, path: Reported) -> bytes:
    """The message that removes a path."""
    return message(INITIATE, _srp(number, _REMOVE), _lsp(path.number, _DELEGATED | _CREATED, name))


def reports(body: bytes) -> Iterator[tuple[str, int, Reported]]:
    """Name, flags of the LSP object, and content of each path that a message reports.

    Raises:
        ValueError: an object that cannot be read.
    """
    found: list[tuple[str, int, Reported]] = []
    for kind, content in parts(body):
        if kind == _LSP:
            (word,) = struct.unpack_from("!I", content.ljust(4, b"\0"))
            name = _tlvs(content[4:]).get(_NAME, b"").rstrip(b"\0").decode(errors="replace")
            flags = word & (1 << _BITS_BELOW_PLSP) - 1
            found.append((name, flags, Reported(word >> _BITS_BELOW_PLSP, (), bool(flags & _CREATED))))
        elif kind == _ERO and found and not found[-1][2].labels:
            name, flags, path = found[-1]
            found[-1] = name, flags, path._replace(labels=tuple(_labels(content)))
    yield from found


def _labels(route: bytes) -> Iterator[int]:
    """The labels of an explicit route; 0 for a hop that is none."""
    at = 0
    while at + 2 <= len(route):
        kind, length = route[at] & 0x7F, max(2, route[at + 1])
        word = int.from_bytes(route[at + 4 : at + 8], "big") if length >= 8 else 0
        yield word >> _BITS_BELOW_LABEL if kind == _SR_SUBOBJECT else 0
        at += length


class Session:
    """The connection of one router.

    Args:
        reader, writer: the connection.
        number: of the session, for the Open message.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        self._reader, self._writer, self._requests = reader, writer, 0
        self.address, self._number = str(writer.get_extra_info("peername")[0]), number
        self._paths: dict[str, Reported] = {}
        self._waiting: dict[str, tuple[int, ...]] = {}  # labels of what was asked for and is not reported yet
        self._is_synchronised = False
        self.wanted: dict[str, Policy] = {}

    async def run(self) -> None:
        """Talk to the router until the connection ends."""
        self._writer.write(_open(self._number))
        beat = asyncio.create_task(self._beat())
        try:
            while True:
                head = await asyncio.wait_for(self._reader.readexactly(4), _DEAD_S)
                version, kind, length = struct.unpack("!BBH", head)
                if version >> 5 != 1 or length < 4:
                    raise ValueError(f"not PCEP: {head.hex()}")
                self._hear(kind, await asyncio.wait_for(self._reader.readexactly(length - 4), _DEAD_S))
                if kind == CLOSE:
                    return
        finally:
            beat.cancel()
            self.close()

    def close(self) -> None:
        """End the connection."""
        self._writer.close()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_KEEPALIVE_S)
            self._writer.write(message(KEEPALIVE))

    def _hear(self, kind: int, body: bytes) -> None:
        if kind == OPEN:
            self._writer.write(message(KEEPALIVE))
        elif kind == ERROR:
            codes = [(content[2], content[3]) for name, content in parts(body) if name == _ERROR_OBJECT]
            say(f"{self.address}: error {', '.join(f'{a} value {b}' for a, b in codes)} (RFC 5440, 8231 and 8281)")
            self._waiting.clear()  # what was refused is asked for again when the file changes
        elif kind == REPORT:
            for name, flags, path in reports(body):
                if path.number == 0 and not flags & _SYNCHRONISING:
                    self._is_synchronised = True
                elif flags & _REMOVED:
                    self._paths.pop(name, None)
                    self._waiting.pop(name, None)
                else:
                    self._paths[name] = path
                    if self._waiting.get(name) == path.labels:
                        self._waiting.pop(name)
            self.bring()

    def bring(self) -> None:
        """Ask the router for what it lacks, has with other labels, or has too much; nothing twice."""
        if not self._is_synchronised:
            return
        counts = [0, 0, 0]
        for name, policy in self.wanted.items():
            path = self._paths.get(name)
            if self._waiting.get(name, None if path is None else path.labels) == policy.labels:
                continue
            if name in self._waiting and (path is None or not self._waiting[name]):
                continue  # its number is not known yet, or it is being removed: the router's report brings it back here
            self._waiting[name] = policy.labels
            self._send(initiate(self._next(), policy) if path is None else update(self._next(), policy, path))
            counts[path is not None] += 1
        for name, path in self._paths.items():
            if name not in self.wanted and path.is_initiated and name.startswith("teal-") and name not in self._waiting:
                self._waiting[name] = ()
                self._send(remove(self._next(), name, path))
                counts[2] += 1
        if any(counts):
            say(f"{self.address}: {counts[0]} added, {counts[1]} replaced, {counts[2]} removed")

    def _next(self) -> int:
        self._requests += 1
        return self._requests

    def _send(self, data: bytes) -> None:
        self._writer.write(data)


def say(text: str) -> None:
    """A line of what happens."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Pce:
    """The server.

    Args:
        file: SR policies.
        colour: of all of them.
    """

    def __init__(self, file: Path, colour: int) -> None:
        self._file, self._colour, self._sessions, self._seen, self._count = file, colour, set[Session](), 0.0, 0
        self._wanted: dict[str, dict[str, Policy]] = {}

    def read(self) -> None:
        """Read the file; see :func:`policies` for errors."""
        self._seen = self._file.stat().st_mtime
        found = policies(json.loads(self._file.read_text(encoding="utf-8")), self._colour)
        self._wanted = {}
        for one in found:
            self._wanted.setdefault(one.headend, {})[one.name] = one
        for session in self._sessions:
            session.wanted = self._wanted.get(session.address, {})
            session.bring()

    async def listen(self, host: str, port: int) -> asyncio.Server:
        """Take connections of routers."""
        server = await asyncio.start_server(self._meet, host, port)
        say(f"listening on {host}:{server.sockets[0].getsockname()[1]}")
        return server

    async def serve(self, host: str, port: int) -> None:
        """Listen, and follow the file, until the task is cancelled."""
        server = await self.listen(host, port)
        try:
            while True:
                await asyncio.sleep(_POLL_S)
                with contextlib.suppress(FileNotFoundError):
                    if self._file.stat().st_mtime != self._seen:
                        self._follow()
        finally:
            server.close()
            for session in self._sessions:
                session.close()

    def _follow(self) -> None:
        try:
            self.read()
        except (OSError, ValueError, KeyError, TypeError) as error:
            say(f"{self._file}: {error}; the policies of before stay")

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._count += 1
        session = Session(reader, writer, self._count)
        session.wanted = self._wanted.get(session.address, {})
        self._sessions.add(session)
        count = len(session.wanted)
        say(
            f"{session.address}: connected; {count} policies" if count else f"{session.address}: no headend of the file"
        )
        try:
            await session.run()
        except asyncio.CancelledError:
            return  # the server ends
        except (OSError, ValueError, EOFError, TimeoutError, IndexError, struct.error) as error:
            say(f"{session.address}: {error or 'no message for two minutes'}")
        finally:
            self._sessions.discard(session)
            say(f"{session.address}: disconnected")


def main(arguments: list[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m deploy.pcep", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("file", type=Path, help="SR policies: what teal solve --out FILE.sr-policy.json wrote")
    parser.add_argument("--listen", default="127.0.0.1:4189", help="address and port (127.0.0.1:4189)")
    parser.add_argument("--colour", type=int, default=100, help="colour of the policies (100)")
    options = parser.parse_args(arguments)
    host, _, port = options.listen.rpartition(":")
    pce = Pce(options.file, options.colour)
    try:
        pce.read()
        asyncio.run(pce.serve(host.strip("[]"), int(port)))
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.stderr.write(f"pcep: {options.file}: {error}\n")
        return 1
    except KeyboardInterrupt:
        say("stopped; routers remove the policies some time after this")
    return 0


if __name__ == "__main__":
    sys.exit(main())
