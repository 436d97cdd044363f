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
_MAX_LABEL, _MAX_COLOUR = (1 << 20) - 1, (1 << 32) - 1
_SECOND_SESSION = 9, 1  # type and value of the error
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


def policies(document: Any, colour: int) -> list[Policy]:
    """The policies of a file, as ``teal solve --routers ... --out FILE.sr-policy.json`` writes it.

    Raises:
        ValueError: another file; a policy of another colour, without an address, of two families, or with two lists.
    """
    try:
        return [_policy(one, colour) for one in document["sr-policies"]]
    except (KeyError, TypeError, AttributeError):
        raise ValueError("expected what teal solve --routing segments --out FILE.sr-policy.json writes") from None


def _policy(one: dict[str, Any], colour: int) -> Policy:
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
    if not labels or not all(type(label) is int and 0 <= label <= _MAX_LABEL for label in labels):
        raise ValueError(f"{what}: expected labels from 0 to {_MAX_LABEL}, found {list(labels)}")
    return Policy(f"teal-{colour}-{ends[1]}", str(ends[0]), str(ends[1]), colour, labels)


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


class Report(NamedTuple):
    """A router's word on one path: the request that it answers (0 for none), a name or "", flags, and the path."""

    request: int
    name: str
    flags: int
    path: Reported


def reports(body: bytes) -> Iterator[Report]:
    """The paths of a message.

    Raises:
        ValueError: an object that cannot be read.
    """
    found, request = list[Report](), 0
    for kind, content in parts(body):
        if kind == _SRP:
            request = _request(content)
        elif kind == _LSP:
            (word,) = struct.unpack_from("!I", content.ljust(4, b"\0"))
            name = _tlvs(content[4:]).get(_NAME, b"").rstrip(b"\0").decode(errors="replace")
            flags = word & (1 << _BITS_BELOW_PLSP) - 1
            path = Reported(word >> _BITS_BELOW_PLSP, (), bool(flags & _CREATED))
            found.append(Report(request, name, flags, path))
            request = 0
        elif kind == _ERO and found and not found[-1].path.labels:
            path = found[-1].path._replace(labels=tuple(_labels(content)))
            found[-1] = found[-1]._replace(path=path)
    yield from found


def _request(content: bytes) -> int:
    """Number of the request in an SRP object."""
    return int.from_bytes(content[4:8], "big")


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

    A request is in flight until the router answers it, by a report or an error with its number; until then nothing else
    is asked for the same name.  What is refused, or taken with other labels, is not asked for again before the file
    changes.

    Args:
        reader, writer: the connection.
        number: of the session, for the Open message.
        colour: of the policies; paths of other names than ``teal-COLOUR-...`` are left alone.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int, colour: int) -> None:
        self._reader, self._writer, self._requests = reader, writer, 0
        self.address, self._number, self._prefix = str(writer.get_extra_info("peername")[0]), number, f"teal-{colour}-"
        self._dead_s: float | None = _DEAD_S  # silence that ends the session; None for any
        self._is_open = self._is_synchronised = False
        self._paths: dict[str, Reported] = {}
        self._names: dict[int, str] = {}  # of the router's numbers, which later reports need not repeat
        self._asked: dict[int, tuple[str, tuple[int, ...]]] = {}  # name and labels of requests in flight, () for none
        self._refused: dict[str, tuple[int, ...]] = {}
        self._wanted: dict[str, Policy] = {}

    def want(self, wanted: dict[str, Policy]) -> None:
        """Bring the router to these policies, by name."""
        self._wanted = wanted
        self._refused.clear()
        self._bring()

    async def run(self) -> None:
        """Talk to the router until the connection ends."""
        self._writer.write(_open(self._number))
        beat = asyncio.create_task(self._beat())
        try:
            while True:
                head = await asyncio.wait_for(self._reader.readexactly(4), self._dead_s)
                version, kind, length = struct.unpack("!BBH", head)
                if version >> 5 != 1 or length < 4:
                    raise ValueError(f"not PCEP: {head.hex()}")
                self._hear(kind, await asyncio.wait_for(self._reader.readexactly(length - 4), self._dead_s))
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
            ((_, content),) = parts(body)
            self._dead_s, self._is_open = content[2] or None, True
            self._writer.write(message(KEEPALIVE))
        elif not self._is_open:
            raise ValueError(f"a message of type {kind} before Open")
        elif kind == ERROR:
            self._take_error(body)
            self._bring()
        elif kind == REPORT:
            for one in reports(body):
                self._take(one)
            self._bring()

    def _take(self, report: Report) -> None:
        """Note what a router says of a path."""
        number = report.path.number
        if number == 0:  # the end of the state that it had
            self._is_synchronised |= not report.flags & _SYNCHRONISING
            return
        name = self._names[number] = report.name or self._names.get(number, f"number {number}")
        answers = [n for n, asked in self._asked.items() if n == report.request or asked == (name, report.path.labels)]
        asked = [self._asked.pop(number) for number in answers]
        if report.flags & _REMOVED:
            self._paths.pop(name, None)
            self._names.pop(number)
            return
        self._paths[name] = report.path
        for _, labels in asked:
            if labels != report.path.labels or not labels:  # or it was to be removed
                self._refused[name] = labels
                say(f"{self.address}: {name} has the labels {list(report.path.labels)}, not {list(labels)}")

    def _take_error(self, body: bytes) -> None:
        """Note what a router refuses: the requests that an error names, or if it names none all that are in flight."""
        objects = list(parts(body))
        codes = [f"{content[2]} value {content[3]}" for kind, content in objects if kind == _ERROR_OBJECT]
        numbers = [number for kind, content in objects if kind == _SRP and (number := _request(content)) in self._asked]
        refused = [self._asked.pop(number) for number in numbers or list(self._asked)]
        self._refused.update(refused)
        names = ", ".join(name for name, _ in refused) or "no request"
        say(f"{self.address}: error {', '.join(codes)} (RFC 5440, 8231 and 8281), which refuses {names}")

    def _bring(self) -> None:
        """Ask the router for what it lacks, has with other labels, or has too much."""
        if not self._is_synchronised:
            return
        busy, counts = {name for name, _ in self._asked.values()}, [0, 0, 0]
        for name, policy in self._wanted.items():
            path = self._paths.get(name)
            has = None if path is None else path.labels
            if name in busy or policy.labels in (has, self._refused.get(name)):
                continue
            if path is not None and not path.is_initiated:
                self._refused[name] = policy.labels
                say(f"{self.address}: {name} is a path of the router's own, which stays as it is")
                continue
            number = self._next(name, policy.labels)
            self._writer.write(initiate(number, policy) if path is None else update(number, policy, path))
            counts[path is not None] += 1
        for name, path in self._paths.items():
            is_own = path.is_initiated and name.startswith(self._prefix)
            if is_own and name not in self._wanted and name not in busy and self._refused.get(name) != ():
                self._writer.write(remove(self._next(name, ()), name, path))
                counts[2] += 1
        if any(counts):
            say(f"{self.address}: {counts[0]} added, {counts[1]} replaced, {counts[2]} removed")

    def _next(self, name: str, labels: tuple[int, ...]) -> int:
        """Number of a new request."""
        self._requests += 1
        self._asked[self._requests] = name, labels
        return self._requests


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
            session.want(self._wanted.get(session.address, {}))

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
                self.follow()
        finally:
            server.close()
            for session in self._sessions:
                session.close()

    def follow(self) -> None:
        """Read the file again if it has changed; what cannot be read changes nothing."""
        try:
            if self._file.stat().st_mtime != self._seen:
                self.read()
        except FileNotFoundError:
            return  # it is being replaced
        except (OSError, ValueError) as error:
            say(f"{self._file}: {error}; the policies of before stay")

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._count += 1
        session = Session(reader, writer, self._count, self._colour)
        if any(one.address == session.address for one in self._sessions):
            say(f"{session.address}: a second connection, which is refused")
            writer.write(message(ERROR, part(_ERROR_OBJECT, bytes([0, 0, *_SECOND_SESSION]))))
            session.close()
            return
        session.want(self._wanted.get(session.address, {}))
        self._sessions.add(session)
        say(f"{session.address}: connected; policies of the file for it: {len(self._wanted.get(session.address, {}))}")
        try:
            await session.run()
        except asyncio.CancelledError:
            return  # the server ends
        except EOFError:
            pass  # the router ends the connection
        except TimeoutError:
            say(f"{session.address}: silent for longer than it said")
        except (OSError, ValueError, IndexError, struct.error) as error:
            say(f"{session.address}: {error}")
        finally:
            self._sessions.discard(session)
            say(f"{session.address}: disconnected")


def _address(text: str) -> tuple[str, int]:
    """Address and port of ``--listen``."""
    host, _, port = text.rpartition(":")
    try:
        if not port.isdecimal() or int(port) >= 1 << 16:
            raise ValueError
        return str(ipaddress.ip_address(host.strip("[]"))), int(port)
    except ValueError:
        raise argparse.ArgumentTypeError(f"an address and a port such as 10.0.0.100:4189, not {text!r}") from None


def _colour(text: str) -> int:
    if not text.isdecimal() or int(text) > _MAX_COLOUR:
        raise argparse.ArgumentTypeError(f"a number from 0 to {_MAX_COLOUR}, not {text!r}")
    return int(text)


def main(arguments: list[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m deploy.pcep", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("file", type=Path, help="SR policies: what teal solve --out FILE.sr-policy.json wrote")
    parser.add_argument(
        "--listen", type=_address, default=("127.0.0.1", 4189), help="address and port (127.0.0.1:4189)"
    )
    parser.add_argument("--colour", type=_colour, default=100, help="colour of the policies (100)")
    options = parser.parse_args(arguments)
    pce = Pce(options.file, options.colour)
    try:
        pce.read()
    except (OSError, ValueError) as error:
        sys.stderr.write(f"pcep: {options.file}: {error}\n")
        return 1
    try:
        asyncio.run(pce.serve(*options.listen))
    except OSError as error:
        sys.stderr.write(f"pcep: {error}\n")
        return 1
    except KeyboardInterrupt:
        say("stopped; routers may remove the policies some time after this")
    return 0


if __name__ == "__main__":
    sys.exit(main())
