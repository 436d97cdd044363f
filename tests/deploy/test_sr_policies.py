"""SR policies through two GoBGP speakers: what the second one receives on the wire, replaced and
withdrawn."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from teal.formats.routers import Router, Routers
from teal.network.segment_lists import SegmentList, SegmentPolicies
from teal.testing import make_topology
from teal_ip.configuration.policies import write_sr_policies

grpc = pytest.importorskip("grpc", reason="pip install '.[serve]'")
from deploy import sr_policies  # noqa: E402 (it needs grpc)
from deploy.sr_policies import SAFI_SR_POLICY, Speaker  # noqa: E402

needs_gobgp = pytest.mark.skipif(
    shutil.which("gobgpd") is None, reason="needs GoBGP: apt-get install gobgpd"
)
TOPOLOGY = make_topology([(0, 1, 10), (1, 3, 10), (0, 2, 10), (2, 3, 10), (1, 2, 10)], both=True)
ROUTERS = Routers(
    [Router(f"n{n}", (), f"10.0.0.{n}", 10 + n, 16_000, "", "") for n in range(4)], "routers.csv"
)
SPLIT = {
    (0, 3): (SegmentList(0.25, (2,)), SegmentList(0.75, ())),
    (1, 3): (SegmentList(1.0, (2,)),),
}


class Received(NamedTuple):
    """A policy as it came over the session: preference, and (weight, labels) of each list."""

    preference: int
    lists: list[tuple[int, list[int]]]


def _tlvs(data: bytes, long_from: int) -> Iterator[tuple[int, bytes]]:
    """Type and content, whose length has two bytes for types of at least ``long_from``."""
    while data:
        size = 2 if data[0] >= long_from else 1
        length = int.from_bytes(data[1 : 1 + size], "big")
        yield data[0], data[1 + size : 1 + size + length]
        data = data[1 + size + length :]


def _on_the_wire(attribute: bytes) -> Received | None:
    """The policy in a path attribute, by RFC 9830, section 2.4; None for any but tunnel
    encapsulation."""
    flags, kind = attribute[0], attribute[1]
    data = attribute[4 if flags & 0x10 else 3 :]
    if kind != 23:
        return None
    assert int.from_bytes(data[:2], "big") == 15, "the tunnel type of SR policies"
    preference, lists = -1, []
    for number, content in _tlvs(data[4:], 128):
        if number == 12:
            preference = int.from_bytes(content[2:6], "big")
        if number == 128:
            weight, labels = -1, []
            for part, value in _tlvs(content[1:], 256):
                weight = int.from_bytes(value[2:6], "big") if part == 9 else weight
                labels += [int.from_bytes(value[2:6], "big") >> 12] if part == 1 else []
            lists.append((weight, labels))
    return Received(preference, lists)


def _received(speaker: Speaker) -> dict[str, Received]:
    """The policies in a speaker's table by their key."""
    request = sr_policies._CLASS["ListPathRequest"](
        family={"afi": 1, "safi": SAFI_SR_POLICY}, enable_attribute_binary=True
    )
    method = speaker._channel.unary_stream(
        "/apipb.GobgpApi/ListPath",
        request_serializer=lambda one: one.SerializeToString(),
        response_deserializer=sr_policies._CLASS["ListPathResponse"].FromString,
    )
    found = {}
    for answer in method(request, timeout=10):
        for path in answer.destination.paths:
            policies = [one for one in map(_on_the_wire, path.pattrs_binary) if one is not None]
            found[answer.destination.prefix] = policies[0]
    return found


def _until(true: Any) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture(scope="module")
def speakers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Speaker, Speaker, str]]:
    """Two speakers with a session, and the address of the first one's interface."""
    folder, free = tmp_path_factory.mktemp("gobgp"), []
    for _ in range(4):
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            free.append(bound.getsockname()[1])
    running, found = [], []
    for own, other in ((0, 1), (1, 0)):
        (folder / f"{own}.toml").write_text(f"""
[global.config]
as = 64512
router-id = "10.255.0.{own + 1}"
port = {free[own]}
local-address-list = ["127.0.0.{own + 1}"]
[[neighbors]]
[neighbors.config]
neighbor-address = "127.0.0.{other + 1}"
peer-as = 64512
[neighbors.transport.config]
passive-mode = {"true" if own else "false"}
local-address = "127.0.0.{own + 1}"
remote-port = {free[other]}
[neighbors.timers.config]
connect-retry = 1
[[neighbors.afi-safis]]
[neighbors.afi-safis.config]
afi-safi-name = "ipv4-srpolicy"
""")
        command = [
            "gobgpd",
            "-f",
            f"{folder}/{own}.toml",
            "--api-hosts",
            f"127.0.0.1:{free[2 + own]}",
            "--pprof-disable",
        ]
        with (folder / f"{own}.log").open("w") as log:
            running.append(subprocess.Popen(command, stdout=log, stderr=log))
        found.append(Speaker(f"127.0.0.1:{free[2 + own]}"))
    try:
        yield found[0], found[1], f"127.0.0.1:{free[2]}"
    finally:
        for speaker in found:
            speaker.close()
        for one in running:
            one.terminate()
            one.wait(10)


def _push(path: Path, lists: dict[tuple[int, int], tuple[SegmentList, ...]], address: str) -> int:
    write_sr_policies(path, TOPOLOGY, SegmentPolicies(lists), ROUTERS)
    return sr_policies.main([str(path), "--speaker", address])


@needs_gobgp
@pytest.mark.system
def test_policies_arrive_with_weights_and_are_replaced_and_withdrawn(
    speakers: tuple[Speaker, Speaker, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, address = speakers

    def answers() -> bool:
        try:
            return list(first.routes()) == []
        except grpc.RpcError:
            return False

    _until(answers)
    file = tmp_path / "p.sr-policy.json"
    assert _push(file, SPLIT, address) == 0
    assert capsys.readouterr().out == "2 added, 0 replaced, 0 withdrawn\n"
    _until(lambda: len(_received(second)) == 2)
    by_size = sorted(_received(second).values(), key=lambda one: len(one.lists))
    assert by_size == [
        Received(100, [(1000, [16012, 16013])]),
        Received(100, [(250, [16012, 16013]), (750, [16013])]),
    ]
    assert _push(file, SPLIT, address) == 0
    assert capsys.readouterr().out == "0 added, 0 replaced, 0 withdrawn\n"

    # Replaced in one step: the neighbour never lacks a policy.
    for part in range(1, 20):
        changed = {**SPLIT, (0, 3): (SegmentList(part / 20, (2,)), SegmentList(1 - part / 20, ()))}
        assert _push(file, changed, address) == 0
        assert len(_received(second)) == 2
    _until(
        lambda: (
            (950, [16012, 16013])
            in [one for policy in _received(second).values() for one in policy.lists]
        )
    )
    capsys.readouterr()
    assert _push(file, {(1, 3): SPLIT[1, 3]}, address) == 0
    assert capsys.readouterr().out == "0 added, 0 replaced, 1 withdrawn\n"
    _until(lambda: [one.lists for one in _received(second).values()] == [[(1000, [16012, 16013])]])
    assert _push(file, {}, address) == 0
    _until(lambda: not _received(second))


def test_files_without_addresses_and_speakers_that_do_not_answer_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.sr-policy.json"
    write_sr_policies(file, TOPOLOGY, SegmentPolicies(SPLIT))
    assert sr_policies.main([str(file)]) == 1
    assert "n0 to n3: no address; give --routers to teal solve" in capsys.readouterr().err
    assert _push(file, SPLIT, "127.0.0.1:1") == 1
    assert capsys.readouterr().err.startswith("sr_policies: 127.0.0.1:1: ")
    document = json.loads(file.read_text())
    document["sr-policies"][0]["colour"] = 7
    file.write_text(json.dumps(document))
    assert sr_policies.main([str(file)]) == 1
    assert "--colour 7?" in capsys.readouterr().err
    file.write_text("[]")
    assert sr_policies.main([str(file)]) == 1
    assert str(file) in capsys.readouterr().err
