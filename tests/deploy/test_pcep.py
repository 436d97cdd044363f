"""SR policies by PCEP: messages against bytes laid out by the RFCs, a router played by the test,
and FRRouting's."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploy import pcep
from deploy.pcep import Pce, Policy
from tests.processes import running

DAEMONS, MODULE = Path("/usr/lib/frr"), Path("/usr/lib/x86_64-linux-gnu/frr/modules/pathd_pcep.so")
ROOT = Path(__file__).resolve().parents[2]
NAME = "teal-100-10.0.0.2"
POLICY = Policy(NAME, "127.0.0.1", "10.0.0.2", 100, (16003, 16002))


def _document(
    *labels: tuple[int, ...], headend: str = "127.0.0.1", first: int = 2
) -> dict[str, Any]:
    """A policy of the headend to 10.0.0.2, 10.0.0.3, ... for each stack of labels."""
    return {
        "sr-policies": [
            {
                "headend": "a",
                "endpoint": f"n{number}",
                "colour": 100,
                "headend-address": headend,
                "endpoint-address": f"10.0.0.{number}",
                "candidate-paths": [
                    {
                        "preference": 100,
                        "segment-lists": [
                            {
                                "weight": 1000,
                                "segments": [{"type": "node", "label": label} for label in stack],
                            }
                        ],
                    }
                ],
            }
            for number, stack in enumerate(labels, first)
        ]
    }


def _hops(*labels: int) -> bytes:
    """RFC 8664, section 4.3.1: type 36, 8 bytes, no NAI, flags F and M, label above class, end mark
    and TTL."""
    return b"".join(bytes([36, 8, 0x00, 0x09]) + struct.pack("!I", label << 12) for label in labels)


def _report(number: int, flags: int, name: str = "", *labels: int, request: int = 0) -> bytes:
    """RFC 8231, section 6.1: the request that it answers, an LSP object and, with labels, an
    explicit route."""
    text = name.encode()
    lsp = struct.pack("!IHH", number << 12 | flags, 17, len(text)) + text + bytes(-len(text) % 4)
    body = struct.pack("!BBHII", 33, 0x10, 12, 0, request) if request else b""
    body += struct.pack("!BBH", 32, 0x10, 4 + len(lsp)) + lsp
    body += struct.pack("!BBH", 7, 0x10, 4 + 8 * len(labels)) + _hops(*labels) if labels else b""
    return struct.pack("!BBH", 0x20, 10, 4 + len(body)) + body


def test_messages_are_those_of_the_rfcs() -> None:
    name = (
        bytes.fromhex("0011 0011") + b"teal-100-10.0.0.2" + bytes(3)
    )  # TLV 17 of 17 bytes, filled to 20
    srp = bytes.fromhex(
        "2112 0014 00000000 00000007 001c0004 00000001"
    )  # request 7, path setup type 1
    lsp = bytes.fromhex("2012 0020 00000089") + name  # create, administrative, delegate
    ends = bytes.fromhex("0412 000c 7f000001 0a000002")
    route = bytes.fromhex("0712 0014") + _hops(16003, 16002)
    colour = bytes.fromhex("2212 0010 00000009 00010004 00000064")
    body = srp + lsp + ends + route + colour
    assert (
        pcep.initiate(7, POLICY) == bytes.fromhex("200c") + struct.pack("!H", 4 + len(body)) + body
    )
    path = pcep.Reported(5, (1,), is_initiated=True)
    changed = bytes.fromhex("2012 0020 00005089") + name
    body = srp + changed + route
    assert (
        pcep.update(7, POLICY, path)
        == bytes.fromhex("200b") + struct.pack("!H", 4 + len(body)) + body
    )
    body = (
        srp.replace(bytes(4), bytes.fromhex("00000001"), 1)
        + bytes.fromhex("2012 0020 00005081")
        + name
    )
    assert (
        pcep.remove(7, NAME, path)
        == bytes.fromhex("200c") + struct.pack("!H", 4 + len(body)) + body
    )
    six = pcep.initiate(1, Policy("x", "fd00::1", "fd00::2", 100, (1,)))
    assert bytes.fromhex("0422 0024 fd") in six, "END-POINTS of type 2"
    opened = pcep._open(1)
    assert opened[:8] == bytes.fromhex("2001 0028 0112 0024".replace(" ", ""))[:8]
    assert bytes.fromhex("0010 0004 00000005") in opened, "stateful: update and initiate"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"endpoint-address": ""}, "no address"),
        ({"endpoint-address": "fd00::2"}, "two families"),
        ({"colour": 7}, "colour 7"),
        (
            {"candidate-paths": [{"segment-lists": [{"segments": []}] * 2}]},
            "2 lists, of which PCEP has one",
        ),
        (
            {"candidate-paths": [{"segment-lists": [{"segments": [{"label": "16003"}]}]}]},
            "labels from 0 to 1048575",
        ),
        (
            {"candidate-paths": [{"segment-lists": [{"segments": [{"label": -1}]}]}]},
            "labels from 0 to 1048575",
        ),
        ({"candidate-paths": None}, "what teal export"),
        ({"steers": "all traffic to the endpoint"}, "a transit policy"),
    ],
)
def test_what_pcep_cannot_say_is_refused(
    change: dict[str, Any], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = _document((1,))
    document["sr-policies"][0] |= change
    file = tmp_path / "x.sr-policy.json"
    file.write_text(json.dumps(document))
    assert pcep.main([str(file)]) == 1
    assert expected in capsys.readouterr().err


class _Router:
    """A client of the PCE that says and hears bytes."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int
    ) -> None:
        self._reader, self._writer, self.port = reader, writer, port

    async def hear(self) -> tuple[int, bytes]:
        """Type and objects of the next message."""
        head = await asyncio.wait_for(self._reader.readexactly(4), 5)
        return head[1], await self._reader.readexactly(int.from_bytes(head[2:], "big") - 4)

    def say(self, data: bytes) -> None:
        self._writer.write(data)

    async def greet(self) -> None:
        """Exchange Open and Keepalive."""
        assert (await self.hear())[0] == 1
        self.say(bytes.fromhex("2001 000c 0110 0008 201e7801"))
        self.say(bytes.fromhex("2002 0004"))
        assert (await self.hear())[0] == 2

    async def asked(self) -> tuple[int, int, bytes]:
        """Type, number and objects of the next request."""
        kind, body = await self.hear()
        assert body[0] == 33
        return kind, int.from_bytes(body[8:12], "big"), body

    async def is_silent(self) -> bool:
        """Whether nothing comes."""
        try:
            await asyncio.wait_for(self._reader.readexactly(1), 0.2)
        except TimeoutError:
            return True
        return False

    async def is_closed(self) -> bool:
        """Whether the PCE ends the connection."""
        return await asyncio.wait_for(self._reader.read(), 5) is not None


END_OF_STATE = _report(0, 0)


def _played(tmp_path: Path, document: dict[str, Any], play: Any) -> None:
    """Let ``play(pce, router, write)`` run against a PCE of a file."""
    file = tmp_path / "x.sr-policy.json"

    def write(text: str) -> None:
        file.write_text(text)

    async def run() -> None:
        write(json.dumps(document))
        pce = Pce(file, 100)
        pce.read()
        async with await pce.listen("127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            router = _Router(reader, writer, port)
            await play(pce, router, write)
            writer.close()

    asyncio.run(run())


def test_a_router_gets_what_it_lacks_once_its_state_is_known(tmp_path: Path) -> None:
    """It has paths of this PCE with other labels and without a policy, one of another colour, and
    some of its own."""

    async def play(pce: Pce, router: _Router, write: Any) -> None:
        await router.greet()
        router.say(
            _report(1, 0x82, NAME, 99)
            + _report(2, 0x82, "teal-100-10.9.9.9", 98)
            + _report(3, 0x02, "own", 97)
        )
        router.say(_report(5, 0x82, "teal-200-10.9.9.9", 98) + _report(6, 0x02, "teal-100-own", 96))
        assert await router.is_silent(), "its state is not complete"
        router.say(END_OF_STATE)
        kind, first, update = await router.asked()
        assert kind == 11
        assert _hops(16003) in update
        assert bytes.fromhex("00001089") in update, "path 1"
        kind, second, initiate = await router.asked()
        assert kind == 12
        assert b"teal-100-10.0.0.3" in initiate
        kind, third, remove = await router.asked()
        assert kind == 12
        assert b"teal-100-10.9.9.9" in remove
        assert _hops(98) not in remove
        router.say(_report(1, 0x80, "", 16003, request=first) + _report(2, 0x84, request=third))
        router.say(_report(4, 0x80, "teal-100-10.0.0.3", 16004, request=second))
        assert await router.is_silent(), "all is as wanted; names are said once a session"
        write(json.dumps(_document((16003,), (16009,))))
        pce.read()
        kind, _, update = await router.asked()
        assert (kind, _hops(16009) in update, bytes.fromhex("00004089") in update) == (
            11,
            True,
            True,
        )
        assert await router.is_silent()

    _played(tmp_path, _document((16003,), (16004,)), play)


def test_what_changes_before_the_router_has_answered_is_asked_for_afterwards(
    tmp_path: Path,
) -> None:
    async def play(pce: Pce, router: _Router, write: Any) -> None:
        await router.greet()
        router.say(END_OF_STATE)
        _, number, initiate = await router.asked()
        assert _hops(1) in initiate
        write(json.dumps(_document((2,))))
        pce.read()
        assert await router.is_silent(), "the number of the path is not known yet"
        router.say(_report(7, 0x80, NAME, 1, request=number))
        kind, number, update = await router.asked()
        assert (kind, _hops(2) in update) == (11, True)
        write(json.dumps(_document()))
        pce.read()
        assert await router.is_silent(), "the update is in flight"
        router.say(_report(7, 0x80, "", 2))  # the labels tell what it answers
        kind, number, _ = await router.asked()
        assert kind == 12
        write(json.dumps(_document((2,))))
        pce.read()
        assert await router.is_silent(), "it is being removed"
        router.say(_report(7, 0x84, request=number))
        kind, _, again = await router.asked()
        assert (kind, _hops(2) in again) == (12, True)

    _played(tmp_path, _document((1,)), play)


def _refusal(number: int = 0) -> bytes:
    """RFC 5440, section 6.7, and RFC 8231, section 6.3: error 24, value 1, behind the request that
    it is of."""
    request = struct.pack("!BBHII", 33, 0x10, 12, 0, number) if number else b""
    return (
        struct.pack("!BBH", 0x20, 6, 12 + len(request))
        + request
        + bytes.fromhex("0d10 0008 00001801")
    )


@pytest.mark.parametrize("is_named", [True, False])
def test_what_is_refused_is_asked_for_again_when_the_file_changes_alone(
    tmp_path: Path, is_named: bool
) -> None:
    async def play(pce: Pce, router: _Router, write: Any) -> None:
        await router.greet()
        router.say(END_OF_STATE)
        _, first, _ = await router.asked()
        _, second, _ = await router.asked()
        router.say(_refusal(first if is_named else 0))
        router.say(
            _report(9, 0x80, "own", 7) + _report(8, 0x80, "teal-100-10.0.0.3", 2, request=second)
        )
        assert await router.is_silent(), "neither the refused one nor the other"
        write(json.dumps(_document((1,), (2,))))
        pce.read()
        kind, _, again = await router.asked()
        assert (kind, _hops(1) in again) == (12, True)
        assert await router.is_silent(), "the other one is there"

    _played(tmp_path, _document((1,), (2,)), play)


def test_a_path_of_the_router_itself_keeps_its_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def play(pce: Pce, router: _Router, write: Any) -> None:
        await router.greet()
        router.say(_report(1, 0x02, NAME, 9) + END_OF_STATE)
        assert await router.is_silent()

    _played(tmp_path, _document((1,)), play)
    assert f"{NAME} is a path of the router's own" in capsys.readouterr().out


def test_a_policy_that_goes_while_its_refused_update_was_in_flight_is_removed(
    tmp_path: Path,
) -> None:
    async def play(pce: Pce, router: _Router, write: Any) -> None:
        await router.greet()
        router.say(
            _report(1, 0x80, NAME, 9) + _report(2, 0x80, "teal-100-10.0.0.3", 9) + END_OF_STATE
        )
        _, first, _ = await router.asked()
        _, second, _ = await router.asked()
        write(json.dumps(_document()))
        pce.read()
        assert await router.is_silent()
        router.say(_refusal(first))
        kind, _, remove = await router.asked()
        assert (kind, NAME.encode() in remove) == (12, True)
        router.say(_report(2, 0x80, "", 8, request=second))  # other labels than those asked for
        kind, _, remove = await router.asked()
        assert (kind, b"10.0.0.3" in remove) == (12, True)

    _played(tmp_path, _document((1,), (2,)), play)


def test_a_router_has_one_session_and_its_own_dead_timer(tmp_path: Path) -> None:
    async def play(pce: Pce, router: _Router, write: Any) -> None:
        await router.greet()
        assert {session._dead_s for session in pce._sessions} == {120}
        router.say(
            bytes.fromhex("2001 000c 0110 0008 20000001")
        )  # no keepalives, so that silence says nothing
        assert (await router.hear())[0] == 2
        assert {session._dead_s for session in pce._sessions} == {None}
        reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
        assert (await reader.read())[-4:] == bytes([0, 0, 9, 1]), "RFC 5440, section 4.2.1"
        writer.close()
        assert len(pce._sessions) == 1

    _played(tmp_path, _document((1,)), play)


def test_a_broken_file_leaves_the_policies_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def play(pce: Pce, router: _Router, write: Any) -> None:
        await router.greet()
        router.say(_report(1, 0x80, NAME, 1) + END_OF_STATE)
        for text in ("{", "{}", "[]", '{"sr-policies": null}', json.dumps(_document((1 << 20,)))):
            write(text)
            pce._seen = 0.0
            pce.follow()
            assert "the policies of before stay" in capsys.readouterr().out
        assert await router.is_silent()

    _played(tmp_path, _document((1,)), play)


@pytest.mark.parametrize(
    "listen",
    ["10.0.0.1", ":4189", "4189", "127.0.0.1:99999", "127.0.0.1:", "127.0.0.1:-1", "host:1"],
)
def test_an_address_that_is_none_is_refused(
    listen: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        pcep.main(["x.json", "--listen", listen])
    assert "an address and a port such as" in capsys.readouterr().err


@pytest.mark.parametrize(
    "data",
    [
        "474554202f",
        "2001 0003",
        "200a 0004",
        "2001 0008 2010 0040",
        "2001 000c 0110 0008 201e7801 2006 0008 0d10 0004",
        "2001 000c 0110 0008 201e7801 2007 0004",
    ],
)
def test_what_is_not_pcep_ends_the_connection(data: str, tmp_path: Path) -> None:
    async def play(pce: Pce, router: _Router, write: Any) -> None:
        await router.hear()
        router.say(bytes.fromhex(data))
        assert await router.is_closed()
        while pce._sessions:  # the bytes that are left reach the router first
            await asyncio.sleep(0.01)

    _played(tmp_path, _document((1,)), play)


CONFIGURATION = """segment-routing
 traffic-eng
  pcep
   pce TEAL
    address ip 127.0.0.1
    source-address ip 127.0.0.11
    pce-initiated
   exit
   pcc
    peer TEAL precedence 10
   exit
  exit
 exit
exit
"""
# The PCE, which also prints what it hears.
RECORDER = """
import sys
from deploy import pcep
hear = pcep.Session._receive
def recorded(self, kind, body):
    print("heard", kind, body.hex(), flush=True)
    hear(self, kind, body)
pcep.Session._receive = recorded
sys.exit(pcep.main(sys.argv[1:]))
"""


class _Frr:
    """A router of FRRouting in a network namespace.

    Attributes:
        inside: words that run a command there.
    """

    def __init__(self) -> None:
        self._name = f"teal-pcep-{os.getpid()}"
        self.inside = ["ip", "netns", "exec", self._name]
        self._folder = Path(tempfile.mkdtemp(prefix="teal-pcep-"))  # which the user frr can enter
        self._daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> bool:
        """Make the namespace and start zebra; whether there can be one."""
        (self._folder / "pathd.conf").write_text(CONFIGURATION)
        (self._folder / "zebra.conf").write_text("hostname a\n")
        for one in (self._folder, *self._folder.iterdir()):
            shutil.chown(one, "frr", "frr")
        if subprocess.run(["ip", "netns", "add", self._name], check=False).returncode:
            return False
        subprocess.run([*self.inside, "ip", "link", "set", "lo", "up"], check=True)
        # Without an address of either family FRR waits 20 seconds for one before it connects.
        subprocess.run(
            [*self.inside, "ip", "-6", "addr", "add", "fd00::11/128", "dev", "lo"], check=True
        )
        self.run("zebra")
        return True

    def run(self, daemon: str, *words: str) -> None:
        """Start a daemon."""
        self._daemons.append(
            subprocess.Popen(
                [
                    *self.inside,
                    str(DAEMONS / daemon),
                    *words,
                    "-f",
                    str(self._folder / f"{daemon}.conf"),
                    "-P",
                    "0",
                    "-z",
                    str(self._folder / "zserv.api"),
                    "-i",
                    str(self._folder / f"{daemon}.pid"),
                    "--vty_socket",
                    str(self._folder),
                ],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )

    def stop(self) -> None:
        """Leave nothing behind."""
        for process in self._daemons:
            process.kill()
            process.wait()
        subprocess.run(["ip", "netns", "del", self._name], check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(self._folder)

    def policies(self) -> set[str]:
        """Names of the policies that it shows."""
        show = [
            "vtysh",
            "--vty_socket",
            str(self._folder),
            "-d",
            "pathd",
            "-c",
            "show sr-te policy",
        ]
        out = subprocess.run(show, capture_output=True, text=True, check=False).stdout
        return {
            word for line in out.splitlines() for word in line.split() if word.startswith("teal-")
        }


@pytest.fixture
def frr() -> Iterator[_Frr]:
    if os.geteuid() or not MODULE.exists() or shutil.which("ip") is None:
        pytest.skip("needs root, iproute2 and FRRouting with PCEP")
    router = _Frr()
    try:
        if not router.start():
            pytest.skip("needs network namespaces")
        yield router
    finally:
        router.stop()


@pytest.mark.system
def test_frr_takes_policies_replaces_them_in_place_and_drops_those_that_are_gone(
    frr: _Frr, tmp_path: Path
) -> None:
    file, log = tmp_path / "x.sr-policy.json", tmp_path / "pce.log"
    file.write_text(json.dumps(_document((16003, 16002), (16003,), headend="127.0.0.11")))

    def until(true: Any) -> None:
        end = time.monotonic() + 40
        while not true():
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)

    command = [*frr.inside, sys.executable, "-c", RECORDER, str(file)]
    with log.open("w") as out, running(command, folder=ROOT, output=out) as pce:
        try:
            until(lambda: "listening" in log.read_text())
            frr.run("pathd", "-M", "pathd_pcep")
            until(lambda: frr.policies() == {NAME, "teal-100-10.0.0.3"})
            file.write_text(json.dumps(_document((16004, 16002), headend="127.0.0.11")))
            until(lambda: frr.policies() == {NAME})
            until(lambda: _reported(log) == [16004, 16002])
            assert frr.policies() == {NAME}, "replaced in place"
        finally:
            pce.send_signal(signal.SIGINT)
            pce.wait(10)
    assert "error" not in log.read_text()
    done = re.findall(r"(\d+) added, (\d+) replaced, (\d+) removed", log.read_text())
    assert np.array(done, dtype=int).sum(0).tolist() == [2, 1, 1]
    assert log.read_text().splitlines()[-1].startswith("stopped")


def _reported(log: Path) -> list[int]:
    """Labels of the policy to 10.0.0.2 as the router reported them last: words behind the heads of
    the hops."""
    own = [
        line
        for line in log.read_text().splitlines()
        if line.startswith("heard 10") and NAME.encode().hex() in line
    ]
    heard = bytes.fromhex(own[-1].split()[2])
    at, labels = heard.find(bytes([36, 8])), []
    while at >= 0:
        labels.append(int.from_bytes(heard[at + 4 : at + 8], "big") >> 12)
        at = heard.find(bytes([36, 8]), at + 8)
    return labels


def test_a_name_behind_another_tlv_of_odd_length_is_read() -> None:
    """RFC 5440, section 7.1: a TLV is filled to four bytes, and its length does not count what
    fills it."""
    other = struct.pack("!HH", 65505, 5) + b"other" + bytes(3)
    name = struct.pack("!HH", 17, len(NAME)) + NAME.encode() + bytes(-len(NAME) % 4)
    lsp = struct.pack("!I", 5 << 12 | 0x80) + other + name
    body = struct.pack("!BBH", 32, 0x10, 4 + len(lsp)) + lsp
    assert [(one.name, one.path.plsp_id) for one in pcep.reports(body)] == [(NAME, 5)]


def test_a_report_without_a_request_does_not_take_that_of_the_one_before() -> None:
    """RFC 8231, section 6.1: each report of a message has an SRP object of its own, or none."""
    answer, other = _report(1, 0x80, NAME, 16003, request=7)[4:], _report(2, 0x80, "own", 9)[4:]
    assert [one.srp_id for one in pcep.reports(answer + other)] == [7, 0]
    assert [one.srp_id for one in pcep.reports(other + answer)] == [0, 7]


@pytest.mark.parametrize("is_error", [True, False])
def test_a_removal_that_is_refused_is_asked_for_again_when_the_file_changes_alone(
    tmp_path: Path, is_error: bool
) -> None:
    """By an error, or by a report that still has the path, without labels and without the flag
    R."""

    async def play(pce: Pce, router: _Router, write: Any) -> None:
        await router.greet()
        router.say(_report(1, 0x80, NAME, 9) + END_OF_STATE)
        kind, number, remove = await router.asked()
        assert (kind, NAME.encode() in remove) == (12, True)
        router.say(_refusal(number) if is_error else _report(1, 0x80, "", request=number))
        assert await router.is_silent(), "it was refused"
        write(json.dumps(_document()))
        pce.read()
        kind, _, again = await router.asked()
        assert (kind, NAME.encode() in again) == (12, True)

    _played(tmp_path, _document(), play)
