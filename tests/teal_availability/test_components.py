"""Components and their availabilities, from options and files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from teal.errors import InputError, InputWarning
from teal.testing import make_topology
from teal_availability.components import components_of

# Two parallel links each way between 0 and 1 are one cable.
_NETWORK = make_topology(
    [(0, 1, 1.0), (1, 0, 1.0), (0, 1, 1.0), (1, 0, 1.0), (1, 2, 1.0), (2, 1, 1.0)]
)


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "availability.csv"
    path.write_text(text)
    return path


def test_cables_nodes_and_groups_fail_with_their_links() -> None:
    found = components_of(
        _NETWORK,
        groups={"conduit": [0, 4]},
        cable_availability=0.99,
        node_availability=0.999,
        group_availability=0.9999,
    )
    assert found.kinds == ("cable",) * 2 + ("node",) * 3 + ("group",)
    assert [row.nonzero()[0].tolist() for row in found.links] == [
        [0, 1, 2, 3],
        [4, 5],
        [0, 1, 2, 3],
        [0, 1, 2, 3, 4, 5],
        [4, 5],
        [0, 4],
    ]
    assert found.unavailability == pytest.approx([0.01] * 2 + [0.001] * 3 + [0.0001])
    assert len(components_of(_NETWORK, cable_availability=1.0)) == 0


def test_a_cable_out_of_service_is_no_component() -> None:
    """It carries nothing when it is up, and must not make the network less often whole."""
    capacity = _NETWORK.capacity.copy()
    capacity[[4, 5]] = 0.0
    found = components_of(_NETWORK.with_capacity(capacity), cable_availability=0.99)
    assert found.kinds == ("cable",)
    assert found.links[0].nonzero()[0].tolist() == [0, 1, 2, 3]


def test_times_between_failures_and_to_repair_give_the_availability(tmp_path: Path) -> None:
    """1,980 h up and 20 h down are 0.99; 99 d and 1 d too."""
    text = "source,target,node,availability,mtbf,mttr\nn0,n1,,,1980,20h\nn2,n1,,0.995,,\n,,n2,,99d,1d\n"
    found = components_of(_NETWORK, file=_file(tmp_path, text))
    assert found.names == ("n0 - n1", "n1 - n2", "n2")
    assert found.unavailability == pytest.approx([0.01, 0.005, 0.01])


def test_other_separators_are_read_and_nodes_may_be_called_by_aliases(tmp_path: Path) -> None:
    topology = dataclasses.replace(_NETWORK, aliases={"10.0.0.2": "n2"})
    found = components_of(topology, file=_file(tmp_path, "Node;Availability\n10.0.0.2;0.99\n"))
    assert found.names[-1] == "n2"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("n0,n1,,1.2,,", r"line 2: expected an availability in \[0.5, 1\]"),
        ("n0,n1,,99.9,,", "99.9% is 0.999"),
        ("n0,n1,,,,4h", "the row has mttr; fill in availability, or both"),
        ("n0,n1,,0.9,5h,4h", "the row has availability and mtbf and mttr"),
        ("n0,n1,,,5x,4h", "a time such as 2000h"),
        ("n0,n2,,0.9,,", "a cable of"),
        (",,9,0.9,,", "a node of"),
        ("n0,,,0.9,,", "source and target"),
        ("n0,n1,,often,,", "a share such as 0.9995"),
        ("n1,*,,0.9,,", "a cable, by the names"),
        ("n0,n1#1,,0.9,,", "a cable, by the names"),
    ],
)
def test_faults_of_a_file_are_one_line(tmp_path: Path, row: str, words: str) -> None:
    file = _file(tmp_path, f"source,target,node,availability,mtbf,mttr\n{row}\n")
    with pytest.raises(InputError, match=words) as caught:
        components_of(_NETWORK, file=file)
    assert "\n" not in str(caught.value)


def test_a_component_twice_or_a_column_that_there_is_not_is_refused(tmp_path: Path) -> None:
    twice = "source,target,availability\nn0,n1,0.9\nn1,n0,0.9\n"
    with pytest.raises(InputError, match="each component may have one row only"):
        components_of(_NETWORK, file=_file(tmp_path, twice))
    unused = _file(tmp_path, "node,uptime\nn0,0.9\n")
    with (
        pytest.warns(InputWarning, match="uptime"),
        pytest.raises(InputError, match="the row has no availability"),
    ):
        components_of(_NETWORK, file=unused)


def test_components_that_hardly_ever_all_work_are_refused() -> None:
    many = make_topology([(n, n + 1, 1.0) for n in range(10)])
    with pytest.raises(InputError, match="all components work at once in only"):
        components_of(many, cable_availability=0.6)
