"""Tables of counters: wraps, resets, missing readings, units, parallel links, and what is named in
errors."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from teal.errors import InputError
from teal.testing import make_topology
from teal_ip.readings.files import counters_from_frame, load_counters, save_counters
from teal_ip.readings.rates import _interval_means
from teal_ip.readings.readings import Counters

TOPOLOGY = make_topology([(0, 1, 10), (1, 2, 10)], both=True)  # n0 - n1 - n2
STEP = 300
START = 1_704_067_200  # 2024-01-01
RATE = 2.0  # Gbit/s


def _readings(start: float, rates: list[float], *, width: float = 2.0**64) -> list[float]:
    """Bytes read every five minutes at these rates, Gbit/s, modulo the width of the counter."""
    return [
        (start + one) % width for one in np.concatenate([[0.0], np.cumsum(rates)]) * STEP * 1e9 / 8
    ]


def _table(readings: dict[tuple[str, str, str], list[float]]) -> pd.DataFrame:
    rows = [
        {
            "time": START + STEP * i,
            "router": router,
            "interface": name,
            "direction": way,
            "bytes": value,
        }
        for (router, name, way), values in readings.items()
        for i, value in enumerate(values)
    ]
    return pd.DataFrame(rows)


def _plain() -> dict[tuple[str, str, str], list[float]]:
    rates = [RATE] * 4
    return {
        ("n0", "n1", "out"): _readings(100, rates),
        ("n1", "n0", "in"): _readings(5, rates),
        ("n0", "customers", "in"): _readings(0, rates),
        ("n0", "peers", "in"): _readings(7, rates),
        ("n1", "lan", "out"): _readings(0, rates),
    }


def test_rates_of_links_and_sums_of_external_interfaces() -> None:
    counters = counters_from_frame(_table(_plain()), TOPOLOGY, "t")
    link = int(TOPOLOGY.find_links("n0", "n1")[0])
    link = next(e for e in TOPOLOGY.find_links("n0", "n1") if TOPOLOGY.link_source[e] == 0)
    assert counters.interval_s == STEP
    assert counters.num_intervals == 4
    np.testing.assert_allclose(counters.sent[:, link], RATE)
    np.testing.assert_allclose(counters.received[:, link], RATE)
    np.testing.assert_allclose(counters.ingress[:, 0], 2 * RATE)
    np.testing.assert_allclose(counters.egress[:, 1], RATE)
    assert np.isnan(counters.ingress[:, 1]).all()
    assert any("no counter" in note for note in counters.notes)


@pytest.mark.parametrize("width", [2.0**32, 2.0**64])
def test_a_wrap_is_followed_and_a_reset_is_a_missing_interval(width: float) -> None:
    slow = 0.02 if width == 2.0**32 else RATE  # 32 bits wrap every half hour at 20 Mbit/s
    table = _plain()
    per_step = slow * STEP * 1e9 / 8
    table["n0", "n1", "out"] = _readings(width - 2.5 * per_step, [slow] * 4, width=width)
    table["n1", "n0", "in"] = [
        0.0,
        1e9,
        5.0,
        5.0 + per_step,
        5.0 + 2 * per_step,
    ]  # set to 0 at the second reading
    counters = counters_from_frame(_table(table), TOPOLOGY, "t")
    link = next(e for e in TOPOLOGY.find_links("n0", "n1") if TOPOLOGY.link_source[e] == 0)
    np.testing.assert_allclose(counters.sent[:, link], slow, rtol=1e-3)
    assert np.isnan(counters.received[1, link])
    np.testing.assert_allclose(counters.received[2:, link], slow, rtol=1e-6)
    assert any("1 counter wraps, 1 resets" in note for note in counters.notes)


def test_polls_at_unequal_times_and_empty_readings_give_the_same_rate() -> None:
    table = _table(_plain())
    rng = np.random.default_rng(0)
    shift = rng.uniform(-40, 40, len(table))
    table["bytes"] += np.where(table["time"] > START, shift, 0) * RATE * 1e9 / 8
    table["time"] = table["time"] + np.where(table["time"] > START, shift, 0)
    table.loc[3, "bytes"] = np.nan
    counters = counters_from_frame(table, TOPOLOGY, "t", interval_s=STEP)
    link = next(e for e in TOPOLOGY.find_links("n0", "n1") if TOPOLOGY.link_source[e] == 0)
    inner = counters.sent[1:3, link]
    np.testing.assert_allclose(inner[np.isfinite(inner)], RATE, rtol=1e-6)
    assert any("excluded" in note for note in counters.notes)


def test_interfaces_by_a_table_tell_parallel_links_apart() -> None:
    topology = make_topology([(0, 1, 10), (0, 1, 10), (1, 0, 10), (1, 0, 10)])
    forth = [e for e in range(4) if topology.link_source[e] == 0]
    frame = pd.DataFrame(
        [
            {
                "time": START + 300 * i,
                "router": "n0",
                "interface": name,
                "direction": way,
                "rate": rate,
            }
            for i in range(2)
            for name, way, rate in (("a", "out", 1000.0), ("b", "out", 3000.0), ("c", "in", 4000.0))
        ]
    )
    interfaces = pd.DataFrame(
        {
            "router": ["n0"] * 3,
            "interface": ["a", "b", "c"],
            "neighbour": ["n1", "n1", None],
            "number": [1, 2, None],
        }
    )
    counters = counters_from_frame(frame, topology, "t", interfaces, "Mbit/s")
    np.testing.assert_allclose(counters.sent[:, forth], [[1.0, 3.0], [1.0, 3.0]])
    np.testing.assert_allclose(counters.ingress[:, 0], 4.0)
    wrong = interfaces.assign(number=[1, 7, None])
    with pytest.raises(InputError, match="n1#7"):
        counters_from_frame(frame, topology, "t", wrong)
    with pytest.raises(InputError, match="--interfaces"):
        counters_from_frame(frame, topology, "t", interfaces.iloc[:2])


def test_interfaces_to_one_neighbour_are_told_apart_summed_or_refused() -> None:
    parallel = make_topology([(0, 1, 10), (0, 1, 10), (1, 0, 10), (1, 0, 10)])
    rates = {"a": 1.0, "b": 3.0, "c": 4.0}
    frame = pd.DataFrame(
        [
            {
                "time": START + 300 * i,
                "router": "n0",
                "interface": name,
                "direction": "in" if name == "c" else "out",
                "rate": rate,
            }
            for i in range(2)
            for name, rate in rates.items()
        ]
    )
    table = pd.DataFrame(
        {"router": ["n0"] * 3, "interface": ["a", "b", "c"], "neighbour": ["n1", "n1", None]}
    )
    with pytest.raises(InputError, match="for parallel links"):
        counters_from_frame(frame, parallel, "t", table)
    names = dict(zip(parallel.link_names(), range(4), strict=True))  # n0->n1#1 is the first
    for counters in (
        counters_from_frame(frame, parallel, "t", table.assign(number=[1, 2, None])),
        counters_from_frame(frame, parallel, "t", table.assign(neighbour=["n1#1", "n1#2", None])),
        counters_from_frame(frame.replace({"a": "n1#1", "b": "n1#2"}), parallel, "t"),
    ):
        np.testing.assert_array_equal(
            counters.sent[:, [names["n0->n1#1"], names["n0->n1#2"]]], [[1.0, 3.0]] * 2
        )
    for wrong in (frame.replace({"a": "n1"}), frame.replace({"a": "n1#3"})):
        with pytest.raises(InputError, match="for parallel links"):
            counters_from_frame(wrong, parallel, "t")
    bundle = make_topology([(0, 1, 20)], both=True)
    counters = counters_from_frame(frame, bundle, "t", table)
    np.testing.assert_array_equal(counters.sent[:, bundle.link_names().index("n0->n1")], [4.0, 4.0])
    assert any("the sum of the interfaces a, b" in note for note in counters.notes)
    by_neighbour = frame.rename(columns={"interface": "neighbour"}).replace(
        {"a": "n1", "b": "n1", "c": None}
    )
    with pytest.raises(InputError, match="several readings of"):
        counters_from_frame(by_neighbour, bundle, "t")


def test_rates_are_labelled_by_the_end_of_their_interval_or_by_its_start_where_the_column_says_so() -> (
    None
):
    frame = _table(_plain()).rename(columns={"bytes": "rate"}).assign(rate=1.0)
    ends = counters_from_frame(frame, TOPOLOGY, "t").timestamps.astype(int)
    assert ends.tolist() == [START + 300 * i for i in range(5)]
    starts = frame.rename(columns={"time": "start"})
    assert (
        counters_from_frame(starts, TOPOLOGY, "t").timestamps.astype(int).tolist()
        == (ends + 300).tolist()
    )
    with pytest.raises(InputError, match="use a column time"):
        counters_from_frame(starts.rename(columns={"rate": "bytes"}), TOPOLOGY, "t")


def test_nodes_that_are_numbers_keep_their_names_beside_empty_cells(tmp_path: Path) -> None:
    topology = dataclasses.replace(make_topology([(0, 1, 10)], both=True), node_names=("1", "2"))
    cells = ["1,2,out,3", "2,1,in,3", "1,,in,4"]
    rows = [f"{START + 300 * i},{cell}" for i in range(2) for cell in cells]
    (tmp_path / "c.csv").write_text("\n".join(["time,router,neighbour,direction,rate", *rows]))
    (tmp_path / "named.csv").write_text(
        "\n".join(["time,router,interface,direction,rate", *rows]).replace(",,", ",x,")
    )
    (tmp_path / "i.csv").write_text("router,interface,neighbour\n1,2,2\n2,1,1\n1,x,\n")
    for counters in (
        load_counters(tmp_path / "c.csv", topology),
        load_counters(tmp_path / "named.csv", topology, interfaces=tmp_path / "i.csv"),
    ):
        np.testing.assert_array_equal(
            counters.sent[:, topology.link_names().index("1->2")], [3.0, 3.0]
        )
        np.testing.assert_array_equal(counters.ingress[:, 0], [4.0, 4.0])


def test_what_a_one_way_link_does_not_have_is_no_external_traffic() -> None:
    """n0 reads both directions of its interface to n1, but the network has no link from n1 to
    n0."""
    topology = make_topology([(0, 1, 10)])
    cells = [("n0", "n1", "out", 2.0), ("n0", "n1", "in", 1.0), ("n0", "lan", "in", 2.0)]
    frame = pd.DataFrame(
        [(START + 300 * i, *cell) for i in range(2) for cell in cells],
        columns=["time", "router", "interface", "direction", "rate"],
    )
    np.testing.assert_array_equal(
        counters_from_frame(frame, topology, "t").ingress[:, 0], [2.0, 2.0]
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"direction": "left"}, "in or out"),
        ({"router": "nowhere"}, "a node of"),
        ({"time": "yesterday"}, "ISO 8601"),
    ],
)
def test_wrong_cells_are_named(change: dict[str, str], message: str) -> None:
    table = _table(_plain()).astype(object)
    for column, value in change.items():
        table.loc[2, column] = value
    with pytest.raises(InputError, match=message):
        counters_from_frame(table, TOPOLOGY, "t")


def test_files_come_back_and_what_they_lack_is_named(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    table = _table(_plain())
    table["time"] = pd.to_datetime(table["time"], unit="s", utc=True).dt.strftime(
        "%Y-%m-%dT%H:%M:%SZ"
    )
    table.to_csv(path, index=False)
    counters = load_counters(path, TOPOLOGY)
    save_counters(tmp_path / "c.npz", counters)
    again = load_counters(tmp_path / "c.npz", TOPOLOGY)
    np.testing.assert_array_equal(again.sent, counters.sent)
    np.testing.assert_array_equal(again.timestamps, counters.timestamps)
    with pytest.raises(InputError, match="links and"):
        load_counters(tmp_path / "c.npz", make_topology([(0, 1, 1)]))
    table.drop(columns="direction").to_csv(path, index=False)
    with pytest.raises(InputError, match="missing direction"):
        load_counters(path, TOPOLOGY)
    inner = table[table["interface"].isin(["n0", "n1"])]
    inner.to_csv(path, index=False)
    with pytest.raises(InputError, match="external interfaces"):
        load_counters(path, TOPOLOGY)
    with pytest.raises(InputError, match="csv"):
        load_counters(tmp_path / "c.txt", TOPOLOGY)


@pytest.mark.parametrize(
    ("known_s", "expected"), [(120, np.nan), (149, np.nan), (150, 2.0), (300, 2.0)]
)
def test_an_interval_of_which_less_than_half_is_known_has_no_rate(
    known_s: float, expected: float
) -> None:
    one = np.array
    found = _interval_means(one([0.0]), one([known_s]), one([2.0]), one([300.0]), 300.0)
    np.testing.assert_allclose(found, [expected])


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ([], 0.0),  # all interfaces of n1 are read, none is external
        ([("n1", "lan", "out", None)], np.nan),  # external, without a reading
        # Half of what enters does not leave, as both ends say: there is more than what is read.
        ([("n1", "n2", "out", 1.0), ("n2", "n1", "in", 1.0)], np.nan),
        (
            [("n1", "n2", "out", 1.0)],
            np.nan,
        ),  # a counter is wrong, of n1 or of n2, which receives 2 or nothing
        (
            [("n1", "n2", "out", 9.0), ("n1", "n0", "in", 0.0)],
            0.0,
        ),  # two of n1 are: its neighbours' balance it
    ],
)
def test_a_router_without_an_external_interface_has_no_traffic_of_its_own(
    more: list[tuple[str, str, str, float | None]], expected: float
) -> None:
    cells: dict[tuple[str, str, str], float | None] = {
        ("n0", "n1", "out"): 2.0,
        ("n1", "n0", "in"): 2.0,
        ("n1", "n2", "out"): 2.0,
        ("n2", "n1", "in"): 2.0,
        ("n2", "n1", "out"): 1.0,
        ("n1", "n2", "in"): 1.0,
        ("n1", "n0", "out"): 1.0,
        ("n0", "n1", "in"): 1.0,
        ("n0", "lan", "in"): 2.0,
    }
    cells |= {(router, name, way): rate for router, name, way, rate in more}
    frame = pd.DataFrame(
        [(START + 300 * i, *key, rate) for i in range(2) for key, rate in cells.items()],
        columns=["time", "router", "interface", "direction", "rate"],
    )
    counters = counters_from_frame(frame, TOPOLOGY, "t")
    np.testing.assert_array_equal(counters.ingress[:, 1], [expected] * 2)
    np.testing.assert_array_equal(counters.egress[:, 1], [expected] * 2)
    # n2 receives twice what it sends, but for the link of which both ends say that it carries 1.
    assert np.isnan(counters.ingress[:, 2]).all() == (("n2", "n1", "in", 1.0) not in more)
    assert any("no traffic of their own" in note and "n1" in note for note in counters.notes) == (
        expected == 0.0
    )


def test_a_wrong_counter_beside_a_stub_does_not_hide_what_the_stub_sends() -> None:
    """The stub n2 sends 5 and receives 1, of which n1 counts 1 and 1: a wrong counter, as n1's
    balance shows."""
    cells = {
        ("n2", "n1", "out"): 5.0,
        ("n1", "n2", "in"): 1.0,
        ("n1", "n2", "out"): 1.0,
        ("n2", "n1", "in"): 1.0,
        ("n1", "n0", "out"): 6.0,
        ("n0", "n1", "in"): 6.0,
        ("n0", "n1", "out"): 2.0,
        ("n1", "n0", "in"): 2.0,
        ("n0", "lan", "in"): 2.0,
    }
    frame = pd.DataFrame(
        [(START + 300 * i, *key, rate) for i in range(2) for key, rate in cells.items()],
        columns=["time", "router", "interface", "direction", "rate"],
    )
    assert np.isnan(counters_from_frame(frame, TOPOLOGY, "t").ingress[:, 2]).all()


def test_a_router_of_which_a_link_is_not_read_may_have_traffic_of_its_own() -> None:
    """Of n1 only the link to n2 is read, where as much enters as leaves."""
    cells = [(a, b, way, 1.0) for a, b in (("n1", "n2"), ("n2", "n1")) for way in ("in", "out")]
    frame = pd.DataFrame(
        [(START + 300 * i, *cell) for i in range(2) for cell in [*cells, ("n0", "lan", "in", 2.0)]],
        columns=["time", "router", "interface", "direction", "rate"],
    )
    counters = counters_from_frame(frame, TOPOLOGY, "t")
    assert np.isnan(counters.ingress[:, 1]).all()
    np.testing.assert_array_equal(counters.ingress[:, 2], [0.0, 0.0])


def test_a_counter_that_may_be_of_32_bits_is_named() -> None:
    """Two readings every 300 s of a link of 10 Gbit/s, on which 32 bits wrap in 3.4 s: a fall below
    2^32, or a single high reading, may be a counter of 32 bits; a counter above 2^32 is not."""
    for readings, may_be_narrow in (
        ([3.0e9, 1.4e9, 2.2e9, 2.9e9, 3.3e9], True),
        ([1.0e9, 2.0e9, 3.0e9, 3.5e9, 4.0e9], False),
        ([3.0e9, 8.0e9, 2.0e10, 3.0e10, 4.0e10], False),
    ):
        table = _plain()
        table["n0", "n1", "out"] = readings
        counters = counters_from_frame(_table(table), TOPOLOGY, "t")
        named = [note for note in counters.notes if "may have 32 bits" in note]
        assert bool(named) == may_be_narrow
        assert all("n1 of n0, out" in note for note in named)


@pytest.mark.parametrize(
    ("rates", "named"),
    [([0.0, np.inf], "inf"), ([np.nan, -1.0], "-1"), ([-np.inf, np.nan], "-inf")],
)
def test_the_error_names_the_rate_that_is_invalid(rates: list[float], named: str) -> None:
    """A missing rate (NaN) before it, or no negative rate beside it, makes no difference."""
    missing = np.full((1, 2), np.nan)
    times = np.array(["2026-01-01"], "datetime64[s]")
    with pytest.raises(InputError, match=rf"rates of at least 0, found {named}\b"):
        Counters(times, 300.0, np.array([rates]), missing, missing, missing)
