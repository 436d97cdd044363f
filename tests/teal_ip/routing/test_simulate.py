"""The commands about shortest-path routing, from files to files."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from teal.cli import main
from teal.formats import load_topology
from teal.formats.segment_lists import read_policies
from teal.network import TrafficMatrices, all_pairs
from teal.network.ecmp import EcmpDag
from teal.network.failures import cable_failures, failures_of
from teal.network.rates import ArrayRates
from teal.network.segment_lists import SegmentList, SegmentPolicies
from teal.testing import make_topology, random_topology
from teal_ip.routing import simulate as simulate_module
from teal_ip.routing.igp_failures import IgpFailures
from teal_ip.routing.installed import IgpRouting
from teal_ip.routing.simulate import Simulation, largest_loads, simulate_in_blocks, utilisations

# A square a - b - d - c - a with a diagonal a - d of metric 5, and a leaf e behind d.
LINKS = "source,target,capacity,delay,metric\na,b,10,1,1\nb,d,10,1,1\na,c,10,1,1\nc,d,10,1,2\na,d,10,1,5\nd,e,40,1,1\n"
DEMANDS = "source,target,rate\na,d,12\na,e,6\nb,c,1\n"


# Where the middle of the cable a - b is on the screen: an invisible point that is pointed at.
MIDDLE_OF_A_B = """(chart) => {
  const points = chart.data.find((trace) => trace.customdata), {_fullLayout: {xaxis, yaxis}} = chart;
  const at = points.text.findIndex((text) => text.startsWith("a \\u2192 b"));
  const box = chart.getBoundingClientRect();
  return [box.x + xaxis._offset + xaxis.d2p(points.x[at]), box.y + yaxis._offset + yaxis.d2p(points.y[at])];
}"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.csv").write_text(LINKS, encoding="utf-8")
    (tmp_path / "demands.csv").write_text(DEMANDS, encoding="utf-8")
    return tmp_path


def _run(command: str, expected: int = 0) -> None:
    assert main([*command.split(), "--topology", "net.csv", "--traffic", "demands.csv"]) == expected


def _rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def _json(command: str, capsys: pytest.CaptureFixture[str], expected: int = 0) -> dict:  # type: ignore[type-arg]
    capsys.readouterr()
    _run(f"{command} --json", expected)
    return json.loads(capsys.readouterr().out)


def test_loads_latency_and_failures_by_hand(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = _json("simulate --failures cables --failures nodes --repair", capsys)
    one = result["matrices"][0]
    # All 18 Gbit/s from a go by b, with 1 Gbit/s from b to c on a's links in the other direction.
    assert one["utilisation"] == pytest.approx(1.8)
    assert one["busiest"] in ("a->b", "b->d")
    assert one["latency_mean"] == pytest.approx((12 * 2 + 6 * 3 + 1 * 2) / 19)
    failures = {f["failure"]: f for f in result["failures"]}
    assert failures["d - e"]["lost"] == 6
    assert (failures["d"]["lost"], failures["d"]["own"]) == (6, 12), (
        "a to e is lost, a to d was for d itself"
    )
    assert (failures["a"]["lost"], failures["a"]["own"]) == (0, 18)
    assert failures["d - e"]["own"] == 0
    utilisation = [f["utilisation"] for f in result["failures"]]
    assert utilisation == sorted(utilisation, reverse=True), "however much a failed router sends"
    assert failures["a - b"]["utilisation"] == pytest.approx(1.8)  # by c; b to c goes by d
    assert failures["a - b"]["lost"] == 0


def test_without_traffic_no_link_is_named(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "demands.csv").write_text("source,target,rate\na,d,0\n", encoding="utf-8")
    matrix = _json("simulate", capsys)["matrices"][0]
    assert (matrix["busiest"], matrix["utilisation"]) == ("", 0)
    _run("simulate --out run")
    assert "0.00% on no link" in capsys.readouterr().out
    page = (files / "run" / "simulate.html").read_text(encoding="utf-8")
    assert "No link is used without failure." in page


def test_a_lower_metric_ties_and_ucmp_shares_by_capacity(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tied = _json("simulate --set-metric c,d=1", capsys)
    assert tied["matrices"][0]["utilisation"] == pytest.approx(
        0.95
    )  # 9 each way, and half of b to c on b->d or b->a
    out = _json("simulate --fail a,b --set-metric a>d=3", capsys)
    assert out["matrices"][0]["utilisation"] == pytest.approx(0.9)  # 9 each way


def test_the_page_and_tables_are_written_and_kept(files: Path) -> None:
    _run("simulate --failures cables --out now")
    rows = _rows(files / "now/links.csv")
    assert len(rows) == 12
    assert {row["metric"] for row in rows} == {"1", "2", "5"}
    assert len(_rows(files / "now/failures.csv")) == 6
    page, _, links = (
        (files / "now/simulate.html")
        .read_text(encoding="utf-8")
        .partition('<section id="network-1"')
    )
    assert "a - b down" in page + links
    assert re.search(r'<th scope="row">a-&gt;b</th>\s*<td[^>]*>180.00%</td>', links), (
        "a table of the links"
    )
    assert page.index('class="map"') < page.index("<table>")
    assert "The worst of 6 failures is that of" in page
    # Of 18 Gbit/s from a by b 8 are too much for each of two links; without d - e 6 are lost, and 2
    # too much for each.
    columns = re.findall(r'<th scope="col".*?<button type="button">(.*?)</button>', page)
    found = {
        failure: dict(
            zip(columns, [failure, *re.findall(r"<td[^>]*>(.*?)</td>", cells)], strict=True)
        )
        for failure, cells in re.findall(r'<th scope="row">(.*?)</th>(.*?)</tr>', page, re.S)
    }
    lost = {
        name: (line["above capacity, Gbit/s"], line["lost, Gbit/s"]) for name, line in found.items()
    }
    assert (lost["no failure"], lost["d - e"]) == (("16", "0"), ("4", "6"))
    _run("simulate --failures cables --out now", expected=2)


def test_the_loads_kept_of_each_failure_are_those_of_a_network_without_the_links() -> None:
    topology = random_topology(4, nodes=8)
    pairs = all_pairs(topology)
    rates = np.random.default_rng(4).exponential(size=(3, len(pairs)))
    stamps = np.datetime64("2024-01-01", "s") + np.arange(3)
    traffic = TrafficMatrices(
        name="t", pairs=pairs, timestamps=stamps, rates=ArrayRates(rates), interval_s=1
    )
    failures = cable_failures(topology)

    def found(kept: int) -> Simulation:
        dag = EcmpDag.of(topology, np.ones(topology.num_links))
        return simulate_in_blocks(
            IgpRouting(dag, traffic.pairs), traffic, np.arange(3), failures, kept
        )

    result = found(len(failures))
    assert [one.failure for one in result.failures] == list(result.failure_loads), (
        "all of them, the worst first"
    )
    for one, failure in (
        (one, f) for one in result.failures for f in failures if f.name == one.failure
    ):
        links = list(failure.links)
        capacity = topology.capacity.copy()
        capacity[links] = 0.0
        dag = EcmpDag.of(topology.with_capacity(capacity), np.ones(topology.num_links))
        lone = IgpFailures.of_demands(dag, pairs, rates[[one.index]], SegmentPolicies.none()).load[
            0
        ]
        lone[links] = np.nan
        np.testing.assert_allclose(result.failure_loads[one.failure], lone, atol=1e-12)
    assert list(found(2).failure_loads) == list(result.failure_loads)[:2]


def _opened(browser: Any, page: Path) -> tuple[Any, Any]:
    """A tab with a page, and its map once that is drawn."""
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    tab.goto(page.as_uri())
    figure = tab.locator("[data-map]")
    figure.scroll_into_view_if_needed()
    figure.locator(".main-svg").first.wait_for()
    return tab, figure


@pytest.mark.system
def test_a_click_on_a_cable_of_the_map_shows_the_loads_without_it(
    browser: Any, files: Path
) -> None:
    _run("simulate --failures cables --out now")
    tab, figure = _opened(browser, files / "now/simulate.html")
    said, case = figure.locator("output"), figure.locator("select").nth(0)
    assert said.text_content().startswith("fullest link: 180.0%")
    for down in (True, False):
        tab.mouse.move(5, 5)
        tab.mouse.click(*figure.locator(".chart").evaluate(MIDDLE_OF_A_B))
        shown = case.evaluate("(select) => select.selectedOptions[0].text")
        assert shown == ("a - b down" if down else "no failure, maximum over all matrices")
    case.select_option(label="d - e down")
    assert "fullest link" in said.text_content()
    tab.close()


@pytest.mark.system
def test_a_click_on_the_map_of_another_routing_returns_to_the_one_whose_failures_are_known(
    browser: Any, files: Path
) -> None:
    _run("segments --objective max_link_utilisation --out p.json")
    _run("simulate --failures cables --policies p.json --out now")
    tab, figure = _opened(browser, files / "now/simulate.html")
    case, routing = figure.locator("select").nth(0), figure.locator("select").nth(1)
    routing.select_option(label="shortest paths alone")
    case.select_option(label="a - b down")
    assert "no allocation" in figure.locator("output").text_content()
    case.select_option(index=0)
    for shown in ("a - b down", "no failure, maximum over all matrices"):
        tab.mouse.move(5, 5)
        tab.mouse.click(*figure.locator(".chart").evaluate(MIDDLE_OF_A_B))
        assert case.evaluate("(select) => select.selectedOptions[0].text") == shown
        assert "fullest link" in figure.locator("output").text_content()
        assert routing.evaluate("(select) => select.selectedOptions[0].text") == "as installed"
    tab.close()


def test_few_policies_are_what_simulate_then_finds(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = _json(
        "segments --objective max_link_utilisation --gap 0.001 --fewest-policies 1% --out p.json",
        capsys,
    )
    # Of the three ways out of a for 18 Gbit/s the diagonal is on no shortest path, so that two are
    # left.
    assert found["bound"] <= found["value"] <= 1.01 * 0.951
    assert found["policies"] >= found["policies_bound"] >= 1
    assert found["ecmp"] == pytest.approx(1.8)
    after = _json("simulate --policies p.json", capsys)
    assert after["matrices"][0]["utilisation"] == pytest.approx(found["value"], rel=1e-6)
    assert len(read_policies(files / "p.json", load_topology("net.csv")).lists) == found["policies"]


def test_the_fewest_policies_within_a_target_are_what_simulate_then_finds(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "segments --objective max_link_utilisation --gap 0.001 --out p.json --overwrite"
    # Shortest paths put 18 Gbit/s of two demands on a link of 10: none, or one of them has to take
    # another way.
    for target, policies in ((1.9, 0), (1.3, 1), (0.96, 1)):
        found = _json(f"{words} --target-utilisation {target}", capsys)
        assert found["policies"] == found["policies_bound"] == policies
        after = _json("simulate --policies p.json", capsys)
        assert after["matrices"][0]["utilisation"] <= target * (1 + 1e-6)
    _run(f"{words} --target-utilisation 0.9", 2)
    assert "with lists with one midpoint the largest link utilisation is" in capsys.readouterr().err
    _run(f"{words} --target-utilisation 1 --one-list", 2)
    assert "but one list per demand reaches" in capsys.readouterr().err
    assert _json(f"{words} --target-utilisation 1.3 --one-list", capsys)["value"] <= 1.3
    _run(f"{words} --target-utilisation 1 --fewest-policies 1%", 2)
    one = _json(f"{words} --at-most 1", capsys)
    assert one["policies"] == one["at_most"] == 1
    assert (
        one["bound"] * (1 - 1e-9) <= one["value"] <= 1.01 * 0.951
    )  # one of the two demands is split over the three ways
    after = _json("simulate --policies p.json", capsys)
    assert after["matrices"][0]["utilisation"] == pytest.approx(one["value"], rel=1e-6)
    for more in ("--fewest-policies 1%", "--target-utilisation 1", "--one-list"):
        _run(f"{words} --at-most 1 {more}", 2)
    _run(f"{words} --target-utilisation -1", 2)


def test_a_transit_policy_is_what_simulate_then_finds_without_failure_and_under_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four sources of 4 Gbit/s each send over m to t, which has a link of 10 to m and two detours
    of two links."""
    monkeypatch.chdir(tmp_path)
    ends = [
        *((f"s{n}", "m") for n in range(4)),
        ("m", "t"),
        ("m", "v"),
        ("v", "t"),
        ("m", "w"),
        ("w", "t"),
    ]
    (tmp_path / "star.csv").write_text(
        "source,target,capacity\n" + "".join(f"{a},{b},10\n" for a, b in ends)
    )
    (tmp_path / "d.csv").write_text(
        "source,target,rate\n" + "".join(f"s{n},t,4\n" for n in range(4))
    )
    given = "--topology star.csv --traffic d.csv"
    words = (
        f"segments {given} --objective max_link_utilisation --gap 0.001 --out p.json --overwrite"
    )
    assert main(f"{words} --transit".split()) == 2
    assert "--target-utilisation or --at-most" in capsys.readouterr().err

    def found(command: str) -> Any:
        assert main([*command.split(), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    one_demand, alone = (
        found(f"{words} --at-most 1{more}")["value"] for more in ("", " --transit")
    )
    assert (one_demand, alone) == (pytest.approx(1.2), pytest.approx(16 / 30, rel=1e-3))
    simulate_in_blocks = found(f"simulate {given} --policies p.json")
    assert simulate_in_blocks["matrices"][0]["utilisation"] == pytest.approx(alone)
    always = found(f"{words} --transit --at-most 1 --survive cables")["value"]
    after = found(f"simulate {given} --policies p.json --failures cables")
    assert max(
        one["utilisation"] for one in (*after["failures"], *after["matrices"])
    ) == pytest.approx(always)
    assert main(f"simulate {given} --policies p.json --failures cables --repair".split()) == 2


def test_one_list_flow_and_ecmp(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{name},10.0.0.{number},{number}" for number, name in enumerate("abcde")]
    (files / "routers.csv").write_text("\n".join(["name,loopback,sid", *rows]), encoding="utf-8")
    words = "segments --objective max_link_utilisation --one-list --out one.json"
    one = _json(words, capsys)
    assert one["value"] >= one["fractional"] * (1 - 1e-9)
    export = "export --policies one.json --topology net.csv --routers routers.csv --out one.conf"
    assert main(export.split()) == 0
    assert "segment-list" in (files / "one.conf").read_text(encoding="utf-8")
    flow = _json("segments", capsys)
    assert flow["value"] == pytest.approx(19, rel=0.01)
    ecmp = _json("segments --igp-alone --objective max_link_utilisation", capsys)
    assert ecmp["value"] == pytest.approx(1.8)


def test_nothing_is_without_a_path_by_rounding(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = np.random.default_rng(0).choice([0.0, 0.1, 0.3, 1e4 / 3], 20)
    pairs = [f"{a},{b}" for a in "abcde" for b in "abcde" if a != b]
    rows = [f"{pair},{rate}" for pair, rate in zip(pairs, rates.tolist(), strict=True)]
    (files / "demands.csv").write_text("\n".join(["source,target,rate", *rows]), encoding="utf-8")
    assert _json("segments --igp-alone --objective max_link_utilisation", capsys)["lost"] == 0
    _run("segments --igp-alone --objective max_link_utilisation")
    assert "without a path" not in capsys.readouterr().out


def test_a_missed_gap_ends_otherwise_than_a_reached_one(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missed = _json(
        "segments --objective max_link_utilisation --gap 0 --max-iterations 1", capsys, 3
    )
    assert missed["gap"] > 0
    assert _json("segments --igp-alone --objective max_link_utilisation", capsys)["gap"] > 0.01, (
        "has no target"
    )


def test_metrics_are_found_and_their_changes_written_in_order(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = _json("metrics --deadline 4s --with-policies --out changes.csv", capsys)
    assert found["before"] == pytest.approx(1.8)
    assert found["utilisation"] <= 0.951
    rows = _rows(files / "changes.csv")
    assert float(rows[-1]["utilisation"]) == pytest.approx(found["utilisation"])
    assert max(float(row["utilisation"]) for row in rows) <= found["on_the_way"] + 1e-9
    few = _json("metrics --deadline 300ms --at-most 1 --failures cables", capsys)
    assert len(few["changes"]) <= 1


def test_a_search_of_metrics_goes_on_from_an_earlier_one(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = _json("metrics --deadline 2s --out changes.json", capsys)
    kept = _json("metrics --deadline 1ms --seed 7 --start changes.json", capsys)
    assert kept["before"] == found["before"]
    assert kept["utilisation"] <= found["utilisation"] + 1e-9
    assert {one["link"] for one in kept["changes"]}


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("simulate --set-metric a,b", "--set-metric"),
        ("simulate --set-metric a,e=3", "no link between"),
        ("simulate --set-metric a,b=0", "metric"),
        ("simulate --fail a", "two node names"),
        ("simulate --repair", "--repair"),
        ("simulate --index 1", "--index"),
        ("simulate --policies nowhere.json", "nowhere.json"),
        ("solve --one-list", "the option has moved from teal solve to teal segments"),
        ("segments --survive cables", "--objective max_link_utilisation"),
        ("segments --objective priority", "an objective without classes"),
        ("segments --fewest-policies 1%", "max_link_utilisation"),
        (
            "segments --objective max_link_utilisation --fewest-policies few",
            "a share such as 1%",
        ),
        ("metrics --most 3", "at least 5"),
        ("metrics --ucmp", "--ucmp"),
        ("metrics --start nowhere.csv", "nowhere.csv"),
    ],
)
def test_wrong_input_is_one_line(
    files: Path, capsys: pytest.CaptureFixture[str], command: str, message: str
) -> None:
    capsys.readouterr()
    _run(command, expected=2)
    lines = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert len(lines) == 1
    assert message in lines[0]


@pytest.mark.parametrize("block", [1, 2, 16])
def test_the_worst_matrix_of_a_failure_is_found_in_every_block(block: int) -> None:
    topology = make_topology([(0, 1, 10.0), (1, 2, 10.0), (2, 0, 10.0)], both=True)
    times = np.datetime64("2024-01-01", "s") + 300 * np.arange(5)
    rates = np.array([1.0, 2.0, 1.5, 3.0, 0.5])[:, None] * np.ones(6)
    traffic = TrafficMatrices("test", all_pairs(topology), times, ArrayRates(rates), 300)
    result = simulate_in_blocks(
        IgpRouting(EcmpDag.of(topology, np.ones(6)), traffic.pairs),
        traffic,
        np.arange(5),
        cable_failures(topology),
        1,
        block=block,
    )
    assert [failure.index for failure in result.failures] == [3] * 3
    assert [failure.utilisation for failure in result.failures] == pytest.approx([0.6] * 3)


def test_months_in_which_links_are_full_by_hand(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A quarter of the demands loads a -> b by 0.45, which doubles after log 2 / log 1.3 years."""
    words = "simulate --failures cables --growth 0.25 --growth-per-year 0.3 --max-utilisation 0.9"
    links = {one["link"]: one for one in _json(words, capsys)["forecasts"]}
    today = np.datetime64(_json(words, capsys)["matrices"][0]["timestamp"], "s")
    doubled = today + np.timedelta64(round(np.log(2) / np.log(1.3) * 365.25 * 86_400), "s")
    assert links["a->b"]["utilisation"] == pytest.approx(0.45)
    assert links["a->b"]["full"] == str(doubled.astype("datetime64[M]"))
    # a -> c has b to c alone, 0.25 Gbit/s of 10; without a - b all of a, and without b - d (or d's
    # other cables) too.
    assert links["a->c"]["utilisation"] == pytest.approx(0.025)
    assert links["a->c"]["failed_utilisation"] == pytest.approx(0.475)
    assert links["a->c"]["worst_failure"] == "b - d"
    assert links["a->c"]["full"] > links["a->c"]["full_under_failure"]
    assert links["e->d"]["full"] == links["e->d"]["full_under_failure"] == "", "which nobody uses"


def test_a_horizon_counts_links_and_the_page_and_csv_have_all(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "simulate --failures cables --growth 0.25 --growth-per-year 0.3 --max-utilisation 0.9"
    _run(f"{words} --horizon 2y --out short")
    assert "no link exceeds 90.00% by" in capsys.readouterr().out
    _run(f"{words} --horizon 3y --out long")
    printed = capsys.readouterr().out
    full = [row for row in _rows(files / "long/forecast.csv") if row["full_under_failure"]]
    assert re.search(r"(\d+) links exceed 90.00% by", printed)
    assert len(_rows(files / "long/forecast.csv")) == 12
    assert full[0]["worst_failure"] in printed
    assert "When links are full" in (files / "long/simulate.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--growth-per-year much", "--growth-per-year"),
        ("--growth-per-year fit", "at least 56 days"),
        ("--horizon 6m", "add --growth-per-year"),
        ("--growth-per-year 0.3 --horizon 6w", "--horizon"),
        ("--growth 0", "growth"),
        ("--max-utilisation 0", "max-utilisation"),
        ("--max-utilisation inf", "max-utilisation"),
        ("--growth 1e308", "growth"),
    ],
)
def test_growth_that_cannot_be_is_refused(
    words: str, expected: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(f"simulate {words}", 2)
    assert expected in capsys.readouterr().err


def test_largest_loads_are_those_of_every_matrix_and_failure_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In blocks of two matrices and three failures, against one matrix and one failure at a
    time."""
    topology = load_topology("b4")
    pairs, random = all_pairs(topology), np.random.default_rng(0)
    rates = random.lognormal(0, 1, (5, len(pairs)))
    times = np.datetime64("2024-01-01", "s") + np.arange(5) * np.timedelta64(300, "s")
    traffic = TrafficMatrices("t", pairs, times, ArrayRates(rates), 300)
    metric = np.ones(topology.num_links)
    dag, failures = EcmpDag.of(topology, metric), cable_failures(topology)
    monkeypatch.setattr(simulate_module, "_MAX_BLOCK_ENTRIES", 2 * topology.num_links * 3)
    found = largest_loads(IgpRouting(dag, traffic.pairs), traffic, np.arange(5), failures, block=2)
    for row, failure in enumerate([None, *failures]):
        down = [] if failure is None else list(failure.links)
        after = EcmpDag.of(topology.with_failed_links(down), metric)
        expected = np.max(
            [
                IgpFailures.of_demands(after, pairs, one[None], SegmentPolicies.none()).load[0]
                for one in rates
            ],
            axis=0,
        )
        np.testing.assert_allclose(found[row], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("is_transit", [False, True])
def test_traffic_of_a_failed_router_takes_no_link_whatever_policy_steers_it(
    is_transit: bool,
) -> None:
    """0 - 1 - 2 and 0 - 2: the list of 0 for 2 goes over 1, which is still there when 2 has
    failed."""
    topology = make_topology([(0, 1, 10.0), (1, 2, 10.0), (0, 2, 10.0)], both=True)
    pairs = np.array([(0, 1), (0, 2)], dtype=np.int32)
    stamps = np.array(["2026-01-01T00:00:00"], dtype="datetime64[s]")
    rates = ArrayRates(np.array([[1.0, 8.0]]))
    traffic = TrafficMatrices(name="t", pairs=pairs, timestamps=stamps, rates=rates, interval_s=300)
    policies = SegmentPolicies({(0, 2): (SegmentList(1.0, (1,)),)}, is_transit)
    routing = IgpRouting(EcmpDag.of(topology, np.ones(6)), pairs, policies)
    failures = list(failures_of(("nodes",), topology, {}))
    found = simulate_in_blocks(routing, traffic, np.array([0]), failures, 3)
    by_name = {one.failure: (one.utilisation, one.lost, one.own) for one in found.failures}
    assert by_name == {"n2": (0.1, 0.0, 8.0), "n1": (0.0, 8.0, 1.0), "n0": (0.0, 0.0, 9.0)}
    np.testing.assert_array_equal(utilisations(routing, traffic, failures), [[0.9, 0.0, 0.0, 0.1]])
    load = largest_loads(routing, traffic, np.array([0]), failures)
    assert load[3].tolist() == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    np.testing.assert_array_equal(np.nan_to_num(found.failure_loads["n2"]), load[3])
