"""What schemes are evaluated on."""

from __future__ import annotations

import numpy as np
import pytest

from teal.errors import InputError
from teal.evaluation.cases import Case, Cases, Protocol, parse_levels
from teal.formats import load_topology, load_traffic
from teal.network import Topology, TrafficMatrices


@pytest.fixture(scope="module")
def b4() -> tuple[Topology, TrafficMatrices]:
    topology = load_topology("b4")
    return topology, load_traffic("gravity:seed=0,count=12,load=3", topology)


ALL = {
    Protocol.FAILURES: parse_levels("--failures", "1,2,25%", counted=True),
    Protocol.NOISE: parse_levels("--noise", "2,20"),
    Protocol.SPATIAL: parse_levels("--spatial", "80,20%", shares=True),
    Protocol.SCALE: parse_levels("--scale", "0.5,2"),
}


def test_levels_are_read_as_they_are_written() -> None:
    levels = parse_levels("--failures", "1, 2,5%", counted=True)
    assert [(level.text, level.value, level.relative) for level in levels] == [
        ("1", 1.0, False), ("2", 2.0, False), ("5%", 0.05, True),
    ]  # fmt: skip
    assert [level.value for level in parse_levels("--spatial", "80,60,20%", shares=True)] == [0.8, 0.6, 0.2]
    assert parse_levels("--scale", "") == ()


@pytest.mark.parametrize(
    ("option", "text", "how"),
    [
        ("--failures", "1.5", {"counted": True}),
        ("--failures", "0", {"counted": True}),
        ("--failures", "120%", {"counted": True}),
        ("--failures", "two", {"counted": True}),
        ("--noise", "-1", {}),
        ("--spatial", "101", {"shares": True}),
        ("--scale", "1,2,1", {}),
        ("--scale", "50%", {}),
    ],
)
def test_other_levels_are_refused(option: str, text: str, how: dict[str, bool]) -> None:
    with pytest.raises(InputError, match=option):
        parse_levels(option, text, **how)


def _found(b4: tuple[Topology, TrafficMatrices], **more: object) -> dict[str, Case]:
    cases = Cases(*b4, rows=np.array([3, 5]), **more)  # type: ignore[arg-type]
    listed = list(cases)
    assert len(listed) == len(cases)
    found = {case.key: case for case in listed}
    assert len(found) == len(listed)
    return found


def test_every_case_is_what_its_name_says(b4: tuple[Topology, TrafficMatrices]) -> None:
    topology, traffic = b4
    found = _found(b4, levels=ALL, draws=2)
    assert len(found) == 2 * (1 + 2 * 3 + 2 * 2 + 2 + 2)
    for case in found.values():
        plain = traffic.read([case.index])[0]
        down = np.flatnonzero(case.capacity == 0)
        if case.protocol is Protocol.FAILURES:
            expected = {"1": 1, "2": 2, "25%": 5}[case.level]  # of 19 cables
            ends = {frozenset((int(topology.link_source[e]), int(topology.link_target[e]))) for e in down}
            assert len(ends) == expected
            assert len(down) == 2 * expected
        else:
            assert not len(down)
        if case.protocol in (Protocol.OFFLINE, Protocol.FAILURES):
            np.testing.assert_array_equal(case.demand, plain)
        elif case.protocol is Protocol.SCALE:
            np.testing.assert_allclose(case.demand, float(case.level) * plain)
        else:
            assert not np.allclose(case.demand, plain)


def test_cases_drawn_do_not_depend_on_the_other_protocols(b4: tuple[Topology, TrafficMatrices]) -> None:
    everything, alone = _found(b4, levels=ALL, draws=2), _found(b4, levels={Protocol.FAILURES: ALL[Protocol.FAILURES]})
    for key, case in alone.items():
        np.testing.assert_array_equal(case.capacity, everything[key].capacity)
    other = _found(b4, levels=ALL, seed=1)
    drawn = [key for key in alone if key.startswith("failures/25%")]
    assert any((other[key].capacity != alone[key].capacity).any() for key in drawn)
    first, second = (everything[f"noise/20/{draw}/3"].demand for draw in (0, 1))
    assert not np.allclose(first, second)


def test_noise_is_measured_by_the_changes_of_all_matrices(b4: tuple[Topology, TrafficMatrices]) -> None:
    topology, traffic = b4
    cases = Cases(topology, traffic, np.array([0]), {Protocol.NOISE: ALL[Protocol.NOISE]})
    everything = traffic.read(slice(None))
    np.testing.assert_allclose(cases._variance(), np.diff(everything, axis=0).var(0))


def test_noise_needs_changes(b4: tuple[Topology, TrafficMatrices]) -> None:
    with pytest.raises(InputError, match="at least two matrices"):
        Cases(b4[0], load_traffic("gravity:count=1", b4[0]), np.array([0]), {Protocol.NOISE: ALL[Protocol.NOISE]})


def test_no_more_cables_fail_than_there_are(b4: tuple[Topology, TrafficMatrices]) -> None:
    with pytest.raises(InputError, match="19 cables"):
        Cases(*b4, np.array([0]), {Protocol.FAILURES: parse_levels("--failures", "20", counted=True)})
