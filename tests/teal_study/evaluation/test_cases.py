"""The cases on which schemes are evaluated, against the definition of each protocol."""

from __future__ import annotations

import numpy as np
import pytest

from teal.errors import InputError
from teal.formats import load_topology, load_traffic
from teal.network import Topology, TrafficMatrices
from teal_study.evaluation.cases import Case, Cases, Protocol, parse_levels


@pytest.fixture(scope="module")
def b4() -> tuple[Topology, TrafficMatrices]:
    topology = load_topology("b4")
    return topology, load_traffic("gravity:seed=0,count=12,load=3", topology)


ALL_LEVELS = {
    Protocol.FAILURES: parse_levels("--failures", "1,2,25%", counted=True),
    Protocol.NOISE: parse_levels("--noise", "2,20"),
    Protocol.SPATIAL: parse_levels("--spatial", "80,20%", shares=True),
    Protocol.SCALE: parse_levels("--scale", "0.5,2"),
}


def test_levels_of_protocols_are_parsed() -> None:
    levels = parse_levels("--failures", "1, 2,5%", counted=True)
    assert [(level.text, level.value, level.relative) for level in levels] == [
        ("1", 1.0, False),
        ("2", 2.0, False),
        ("5%", 0.05, True),
    ]
    assert [level.value for level in parse_levels("--spatial", "80,60,20%", shares=True)] == [
        0.8,
        0.6,
        0.2,
    ]
    assert parse_levels("--scale", "") == ()


@pytest.mark.parametrize(
    ("option", "text", "settings"),
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
def test_wrong_levels_of_protocols_are_refused(
    option: str, text: str, settings: dict[str, bool]
) -> None:
    with pytest.raises(InputError, match=option):
        parse_levels(option, text, **settings)


def _cases_by_key(b4: tuple[Topology, TrafficMatrices], **settings: object) -> dict[str, Case]:
    cases = Cases(*b4, rows=np.array([3, 5]), **settings)  # type: ignore[arg-type]
    listed = list(cases)
    assert len(listed) == len(cases)
    by_key = {case.key: case for case in listed}
    assert len(by_key) == len(listed)
    return by_key


def test_every_case_matches_its_protocol_and_level(b4: tuple[Topology, TrafficMatrices]) -> None:
    topology, traffic = b4
    cases = _cases_by_key(b4, levels=ALL_LEVELS, draws=2)
    assert len(cases) == 2 * (1 + 2 * 3 + 2 * 2 + 2 + 2)
    for case in cases.values():
        unchanged = traffic.read([case.index])[0]
        failed_links = np.flatnonzero(case.capacity == 0)
        if case.protocol is Protocol.FAILURES:
            expected = {"1": 1, "2": 2, "25%": 5}[case.level]  # of 19 cables
            ends = {
                frozenset((int(topology.link_source[e]), int(topology.link_target[e])))
                for e in failed_links
            }
            assert len(ends) == expected
            assert len(failed_links) == 2 * expected
        else:
            assert not len(failed_links)
        if case.protocol in (Protocol.OFFLINE, Protocol.FAILURES):
            np.testing.assert_array_equal(case.demand, unchanged)
        elif case.protocol is Protocol.SCALE:
            np.testing.assert_allclose(case.demand, float(case.level) * unchanged)
        else:
            assert not np.allclose(case.demand, unchanged)


def test_random_cases_do_not_depend_on_the_other_protocols(
    b4: tuple[Topology, TrafficMatrices],
) -> None:
    all_cases, failure_cases = (
        _cases_by_key(b4, levels=ALL_LEVELS, draws=2),
        _cases_by_key(b4, levels={Protocol.FAILURES: ALL_LEVELS[Protocol.FAILURES]}),
    )
    for key, case in failure_cases.items():
        np.testing.assert_array_equal(case.capacity, all_cases[key].capacity)
    other_seed = _cases_by_key(b4, levels=ALL_LEVELS, seed=1)
    drawn = [key for key in failure_cases if key.startswith("failures/25%")]
    assert any((other_seed[key].capacity != failure_cases[key].capacity).any() for key in drawn)
    first, second = (all_cases[f"noise/20/{draw}/3"].demand for draw in (0, 1))
    assert not np.allclose(first, second)


def test_noise_variance_is_that_of_changes_between_consecutive_matrices(
    b4: tuple[Topology, TrafficMatrices],
) -> None:
    topology, traffic = b4
    cases = Cases(topology, traffic, np.array([0]), {Protocol.NOISE: ALL_LEVELS[Protocol.NOISE]})
    rates = traffic.read(slice(None))
    np.testing.assert_allclose(cases._variance(), np.diff(rates, axis=0).var(0))


def test_noise_on_a_single_matrix_is_refused(b4: tuple[Topology, TrafficMatrices]) -> None:
    with pytest.raises(InputError, match="needs two or more"):
        Cases(
            b4[0],
            load_traffic("gravity:count=1", b4[0]),
            np.array([0]),
            {Protocol.NOISE: ALL_LEVELS[Protocol.NOISE]},
        )


def test_more_failures_than_cables_are_refused(b4: tuple[Topology, TrafficMatrices]) -> None:
    with pytest.raises(InputError, match="19 cables"):
        Cases(
            *b4, np.array([0]), {Protocol.FAILURES: parse_levels("--failures", "20", counted=True)}
        )
