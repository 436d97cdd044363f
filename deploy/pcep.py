r"""A path computation element (PCE) that installs the SR policies of a file in routers by PCEP.

    teal segments --one-list ... --out lists.json
    teal export --policies lists.json --topology ... --routers routers.csv \
        --out policies.sr-policy.json
    python -m deploy.pcep policies.sr-policy.json [--listen 10.0.0.100:4189] [--colour 100]

Routers connect to it as stateful clients (RFC 8231) that let a PCE set up paths (RFC 8281), with
segment routing (RFC 8664).  A router is known by the address from which it connects, which is that
of the headend in the file.  It reports the paths that it has; those that it lacks are initiated,
those with other labels are updated in place, and those of this PCE that the file no longer has are
removed.  The file is read again whenever it changes.  The PCE has to run for as long as the
policies are to stay: routers may remove them some time after the session ends.

A policy has one list in PCEP: splits are refused (``--one-list``), and so are transit policies,
which PCEP cannot say. The colour is in Cisco's vendor object, which FRR reads too; tried with FRR
8.4.  There is no authentication: listen on a management network alone.
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

# Types of messages.
OPEN = 1
KEEPALIVE = 2
ERROR = 6
CLOSE = 7
REPORT = 10
UPDATE = 11
INITIATE = 12
# Classes of objects.
_OPEN_OBJECT = 1
_END_POINTS = 4
_ERO = 7
_ERROR_OBJECT = 13
_LSP = 32
_SRP = 33
_VENDOR = 34
# Types of TLVs.
_STATEFUL = 16
_NAME = 17
_SETUP_TYPE = 28
_SETUP_TYPES = 34
_SR_CAPABILITY = 26
_VERSION = 1 << 5  # of PCEP, in the first byte of messages and of the Open object
# Flags of a stateful PCE.
_CAN_UPDATE = 0x1
_CAN_INITIATE = 0x4
_SEGMENT_ROUTING = 1  # type of path setup
# Flags of an LSP object.
_DELEGATED = 0x1
_SYNCHRONISING = 0x2
_REMOVED = 0x4
_ACTIVE = 0x8
_CREATED = 0x80
_REMOVE = 0x1  # flag of an SRP object
# Type and flags of a subobject of an explicit route.
_SR_SUBOBJECT = 36
_NO_ADDRESS = 0x8
_IS_LABEL = 0x1
# Enterprise number of Cisco; type 1 and length 4 of the colour.
_CISCO = 9
_CISCO_COLOUR = 1 << 16 | 4
_BITS_BELOW_LABEL = 12
_BITS_BELOW_PLSP = 12
_MAX_LABEL = (1 << 20) - 1
_MAX_COLOUR = (1 << 32) - 1
_SECOND_SESSION = 9, 1  # type and value of the error
_KEEPALIVE_S = 30
_DEAD_S = 120
_POLL_S = 0.5  # seconds between two looks at the file


class Policy(NamedTuple):
    """One policy of a router: its name, addresses of headend and endpoint, colour, and labels."""

    name: str
    headend: str
    endpoint: str
    colour: int
    labels: tuple[int, ...]


class Reported(NamedTuple):
    """A path that a router has: its PLSP-ID there, its labels, and whether a PCE set it up."""

    plsp_id: int
    labels: tuple[int, ...]
    is_initiated: bool


def policies(document: Any, colour: int) -> list[Policy]:
    """The policies of a file, as ``teal export --policies ... --out FILE.json`` writes it.

    Raises:
        ValueError: another file; a policy of another colour, without an address, of two families,
            with two lists, or of transit.
    """
    try:
        return [_policy(one, colour) for one in document["sr-policies"]]
    except (KeyError, TypeError, AttributeError):
        expected = "what teal export --policies ... --out FILE.json writes"
        raise ValueError(f"expected {expected}") from None


def _policy(one: dict[str, Any], colour: int) -> Policy:
    what = f"{one['headend']} to {one['endpoint']}"
    if "steers" in one:
        raise ValueError(
            f"{what}: a transit policy; configure it (teal export --out FILE.conf, IOS-XR)"
        )
    if not one.get("endpoint-address") or not one.get("headend-address"):
        raise ValueError(f"{what}: no address; give --routers to teal solve")
    ends = [ipaddress.ip_address(one[key]) for key in ("headend-address", "endpoint-address")]
    if ends[0].version != ends[1].version:
        raise ValueError(f"{what}: addresses {ends[0]} and {ends[1]} are of two families")
    if one["colour"] != colour:
        raise ValueError(f"{what}: colour {one['colour']}; --colour {one['colour']}?")
    lists = [each for path in one["candidate-paths"] for each in path["segment-lists"]]
    if len(lists) != 1:
        raise ValueError(
            f"{what}: {len(lists)} lists, of which PCEP has one; give --one-list to teal solve"
        )
    labels = tuple(part["label"] for part in lists[0]["segments"])
    if not labels or not all(type(label) is int and 0 <= label <= _MAX_LABEL for label in labels):
        raise ValueError(f"{what}: expected labels from 0 to {_MAX_LABEL}, found {list(labels)}")
    return Policy(f"teal-{colour}-{ends[1]}", str(ends[0]), str(ends[1]), colour, labels)


def tlv(kind: int, value: bytes) -> bytes:
    """A type, length and value, padded with zeros to a multiple of four bytes."""
    return struct.pack("!HH", kind, len(value)) + value + bytes(-len(value) % 4)


def pcep_object(object_class: int, body: bytes, object_type: int = 1) -> bytes:
    """An object with the flag P, which obliges the receiver to process it."""
    return struct.pack("!BBH", object_class, object_type << 4 | 0x2, 4 + len(body)) + body


def message(kind: int, *contents: bytes) -> bytes:
    """A message of objects."""
    body = b"".join(contents)
    return struct.pack("!BBH", _VERSION, kind, 4 + len(body)) + body


def objects(body: bytes) -> Iterator[tuple[int, bytes]]:
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
    found = dict[int, bytes]()
    at = 0
    while at + 4 <= len(body):
        kind, length = struct.unpack_from("!HH", body, at)
        found[kind] = body[at + 4 : at + 4 + length]
        at += 4 + length + -length % 4
    return found


def _open(session_id: int) -> bytes:
    setup = struct.pack("!IBxxx", 1, _SEGMENT_ROUTING) + tlv(_SR_CAPABILITY, bytes(4))
    body = struct.pack("!BBBB", _VERSION, _KEEPALIVE_S, _DEAD_S, session_id % 256)
    stateful = tlv(_STATEFUL, struct.pack("!I", _CAN_UPDATE | _CAN_INITIATE))
    return message(OPEN, pcep_object(_OPEN_OBJECT, body + stateful + tlv(_SETUP_TYPES, setup)))


def _srp(srp_id: int, flags: int = 0) -> bytes:
    return pcep_object(
        _SRP,
        struct.pack("!II", flags, srp_id) + tlv(_SETUP_TYPE, struct.pack("!I", _SEGMENT_ROUTING)),
    )


def _lsp(plsp_id: int, flags: int, name: str) -> bytes:
    return pcep_object(
        _LSP, struct.pack("!I", plsp_id << _BITS_BELOW_PLSP | flags) + tlv(_NAME, name.encode())
    )


def _route(labels: tuple[int, ...]) -> bytes:
    flags = _NO_ADDRESS | _IS_LABEL
    return pcep_object(
        _ERO,
        b"".join(
            struct.pack("!BBHI", _SR_SUBOBJECT, 8, flags, label << _BITS_BELOW_LABEL)
            for label in labels
        ),
    )


def initiate(srp_id: int, policy: Policy) -> bytes:
    """The message that sets a policy up; ``srp_id`` identifies the request."""
    ends = [ipaddress.ip_address(one) for one in (policy.headend, policy.endpoint)]
    object_type = 1 if ends[0].version == 4 else 2
    return message(
        INITIATE,
        _srp(srp_id),
        _lsp(0, _DELEGATED | _ACTIVE | _CREATED, policy.name),
        pcep_object(_END_POINTS, ends[0].packed + ends[1].packed, object_type),
        _route(policy.labels),
        pcep_object(_VENDOR, struct.pack("!III", _CISCO, _CISCO_COLOUR, policy.colour)),
    )


def update(srp_id: int, policy: Policy, path: Reported) -> bytes:
    """The message that replaces the labels of a path."""
    return message(
        UPDATE,
        _srp(srp_id),
        _lsp(path.plsp_id, _DELEGATED | _ACTIVE | _CREATED, policy.name),
        _route(policy.labels),
    )


def remove(srp_id: int, name: str, path: Reported) -> bytes:
    """The message that removes a path."""
    return message(INITIATE, _srp(srp_id, _REMOVE), _lsp(path.plsp_id, _DELEGATED | _CREATED, name))


class Report(NamedTuple):
    """A state report of one path: SRP-ID of the request that it answers (0 for none), name or "",
    flags, the path.
    """

    srp_id: int
    name: str
    flags: int
    path: Reported


def reports(body: bytes) -> Iterator[Report]:
    """The reports of a PCRpt message.

    Raises:
        ValueError: an object that cannot be read.
    """
    found = list[Report]()
    srp_id = 0
    for kind, content in objects(body):
        if kind == _SRP:
            srp_id = _srp_id(content)
        elif kind == _LSP:
            (word,) = struct.unpack_from("!I", content.ljust(4, b"\0"))
            name = _tlvs(content[4:]).get(_NAME, b"").rstrip(b"\0").decode(errors="replace")
            flags = word & (1 << _BITS_BELOW_PLSP) - 1
            path = Reported(word >> _BITS_BELOW_PLSP, (), bool(flags & _CREATED))
            found.append(Report(srp_id, name, flags, path))
            srp_id = 0
        elif kind == _ERO and found and not found[-1].path.labels:
            path = found[-1].path._replace(labels=tuple(_labels(content)))
            found[-1] = found[-1]._replace(path=path)
    yield from found


def _srp_id(content: bytes) -> int:
    """SRP-ID in an SRP object."""
    return int.from_bytes(content[4:8], "big")


def _labels(route: bytes) -> Iterator[int]:
    """The labels of an explicit route; 0 for a hop that is none."""
    at = 0
    while at + 2 <= len(route):
        kind = route[at] & 0x7F
        length = max(2, route[at + 1])
        word = int.from_bytes(route[at + 4 : at + 8], "big") if length >= 8 else 0
        yield word >> _BITS_BELOW_LABEL if kind == _SR_SUBOBJECT else 0
        at += length


class Session:
    """The connection of one router.

    A request is in flight until the router answers it, by a report or an error with its SRP-ID;
    until then nothing else is asked for the same name.  What is refused, or taken with other
    labels, is not asked for again before the file changes.

    Args:
        reader, writer: the connection.
        session_id: number of the session, for the Open message.
        colour: of the policies; paths of other names than ``teal-COLOUR-...`` are left alone.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        session_id: int,
        colour: int,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._last_srp_id = 0
        self._session_id = session_id
        self.address = str(writer.get_extra_info("peername")[0])
        self._prefix = f"teal-{colour}-"
        self._dead_s: float | None = _DEAD_S  # silence that ends the session; None for no limit
        self._is_open = self._is_synchronised = False
        self._paths: dict[str, Reported] = {}
        self._names: dict[int, str] = {}  # by PLSP-ID; later reports may leave the name out
        self._asked: dict[
            int, tuple[str, tuple[int, ...]]
        ] = {}  # by SRP-ID: name and labels of what is in flight, () for none
        self._refused: dict[str, tuple[int, ...]] = {}
        self._wanted: dict[str, Policy] = {}

    def want(self, wanted: dict[str, Policy]) -> None:
        """Bring the router to these policies, by name."""
        self._wanted = wanted
        self._refused.clear()
        self._send_requests()

    async def run(self) -> None:
        """Talk to the router until the connection ends."""
        self._writer.write(_open(self._session_id))
        beat = asyncio.create_task(self._send_keepalives())
        try:
            while True:
                head = await asyncio.wait_for(self._reader.readexactly(4), self._dead_s)
                version, kind, length = struct.unpack("!BBH", head)
                if version >> 5 != 1 or length < 4:
                    raise ValueError(f"not PCEP: {head.hex()}")
                self._receive(
                    kind, await asyncio.wait_for(self._reader.readexactly(length - 4), self._dead_s)
                )
                if kind == CLOSE:
                    return
        finally:
            beat.cancel()
            self.close()

    def close(self) -> None:
        """End the connection."""
        self._writer.close()

    async def _send_keepalives(self) -> None:
        while True:
            await asyncio.sleep(_KEEPALIVE_S)
            self._writer.write(message(KEEPALIVE))

    def _receive(self, kind: int, body: bytes) -> None:
        if kind == OPEN:
            ((_, content),) = objects(body)
            self._dead_s = content[2] or None
            self._is_open = True
            self._writer.write(message(KEEPALIVE))
        elif not self._is_open:
            raise ValueError(f"a message of type {kind} before Open")
        elif kind == ERROR:
            self._record_error(body)
            self._send_requests()
        elif kind == REPORT:
            for one in reports(body):
                self._record_report(one)
            self._send_requests()

    def _record_report(self, report: Report) -> None:
        """Note what a router says of a path."""
        plsp_id = report.path.plsp_id
        if plsp_id == 0:  # ends the synchronisation of state (RFC 8231, 5.6)
            self._is_synchronised |= not report.flags & _SYNCHRONISING
            return
        name = self._names[plsp_id] = report.name or self._names.get(plsp_id, f"PLSP-ID {plsp_id}")
        stated = name, report.path.labels
        answered = [
            srp_id
            for srp_id, asked in self._asked.items()
            if srp_id == report.srp_id or asked == stated
        ]
        asked = [self._asked.pop(srp_id) for srp_id in answered]
        if report.flags & _REMOVED:
            self._paths.pop(name, None)
            self._names.pop(plsp_id)
            return
        self._paths[name] = report.path
        for _, labels in asked:
            if labels != report.path.labels or not labels:  # or it was to be removed
                self._refused[name] = labels
                say(
                    f"{self.address}: {name} has the labels {list(report.path.labels)}, not "
                    f"{list(labels)}"
                )

    def _record_error(self, body: bytes) -> None:
        """Note what a router refuses: the requests that an error names, or if it names none all
        that are in flight.
        """
        contents = list(objects(body))
        codes = [
            f"{content[2]} value {content[3]}"
            for kind, content in contents
            if kind == _ERROR_OBJECT
        ]
        named = [
            srp_id
            for kind, content in contents
            if kind == _SRP and (srp_id := _srp_id(content)) in self._asked
        ]
        refused = [self._asked.pop(srp_id) for srp_id in named or list(self._asked)]
        self._refused.update(refused)
        names = ", ".join(name for name, _ in refused) or "no request"
        say(
            f"{self.address}: error {', '.join(codes)} (RFC 5440, 8231 and 8281), which refuses "
            f"{names}"
        )

    def _send_requests(self) -> None:
        """Ask the router for what it lacks, has with other labels, or has too much."""
        if not self._is_synchronised:
            return
        busy = {name for name, _ in self._asked.values()}
        counts = [0, 0, 0]
        for name, policy in self._wanted.items():
            path = self._paths.get(name)
            has = None if path is None else path.labels
            if name in busy or policy.labels in (has, self._refused.get(name)):
                continue
            if path is not None and not path.is_initiated:
                self._refused[name] = policy.labels
                say(f"{self.address}: {name} is a path of the router's own, which stays as it is")
                continue
            srp_id = self._next_srp_id(name, policy.labels)
            self._writer.write(
                initiate(srp_id, policy) if path is None else update(srp_id, policy, path)
            )
            counts[path is not None] += 1
        for name, path in self._paths.items():
            is_own = path.is_initiated and name.startswith(self._prefix)
            if (
                is_own
                and name not in self._wanted
                and name not in busy
                and self._refused.get(name) != ()
            ):
                self._writer.write(remove(self._next_srp_id(name, ()), name, path))
                counts[2] += 1
        if any(counts):
            say(f"{self.address}: {counts[0]} added, {counts[1]} replaced, {counts[2]} removed")

    def _next_srp_id(self, name: str, labels: tuple[int, ...]) -> int:
        """SRP-ID of a new request."""
        self._last_srp_id += 1
        self._asked[self._last_srp_id] = name, labels
        return self._last_srp_id


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
        self._file = file
        self._colour = colour
        self._sessions = set[Session]()
        self._seen = 0.0
        self._count = 0
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
        server = await asyncio.start_server(self._accept, host, port)
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

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._count += 1
        session = Session(reader, writer, self._count, self._colour)
        if any(one.address == session.address for one in self._sessions):
            say(f"{session.address}: a second connection, which is refused")
            writer.write(
                message(ERROR, pcep_object(_ERROR_OBJECT, bytes([0, 0, *_SECOND_SESSION])))
            )
            session.close()
            return
        session.want(self._wanted.get(session.address, {}))
        self._sessions.add(session)
        say(
            f"{session.address}: connected; policies of the file for it: "
            f"{len(self._wanted.get(session.address, {}))}"
        )
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
        raise argparse.ArgumentTypeError(
            f"an address and a port such as 10.0.0.100:4189, not {text!r}"
        ) from None


def _colour(text: str) -> int:
    if not text.isdecimal() or int(text) > _MAX_COLOUR:
        raise argparse.ArgumentTypeError(f"a number from 0 to {_MAX_COLOUR}, not {text!r}")
    return int(text)


def main(arguments: list[str] | None = None) -> int:
    """Run the PCE until it is interrupted; 1 for a file or an address that cannot be used, else
    0.
    """
    parser = argparse.ArgumentParser(
        prog="python -m deploy.pcep",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "file", type=Path, help="SR policies: what teal export --policies ... --out FILE.json wrote"
    )
    parser.add_argument(
        "--listen",
        type=_address,
        default=("127.0.0.1", 4189),
        help="address and port (127.0.0.1:4189)",
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
