"""The HTML report against the record that it shows, in a real browser, offline, at desktop and
telephone width."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from teal.app.web.layout import positions
from teal_study.evaluation.record import NetworkRecord, Record, ResultKey
from teal_study.evaluation.report import Charts, figures_of, findings, network_map, write_report
from teal_study.evaluation.rows import Row

WIDTHS = {"desktop": 1280, "telephone": 400}  # of the viewport, CSS pixels
# A name that would change the title if the page ran it as markup.
HOSTILE = "</script><script>document.title='taken'</script><b>"
PLAIN = Row(
    scheme="lp-all",
    topology="b4",
    traffic="t",
    protocol="offline",
    level="",
    draw=0,
    index=0,
    timestamp="2024-01-01T00:00:00",
    objective="total_flow",
    value=1.0,
    satisfied_demand=0.9,
    bound=1.0,
    gap=0.0,
    gap_known=0.0,
    max_link_utilisation=1.0,
    max_violation=0.0,
    build_s=0.001,
    solve_s=0.01,
    parallel_s=math.nan,
    status="optimal",
    note="",
)
NETWORK = NetworkRecord(
    "b4",
    "t",
    ("a", "b", HOSTILE),
    np.array([[0.0, 50.0], [10.0, 50.0], [5.0, 55.0]]),
    np.array([0, 1, 1, 2, 0, 2]),
    np.array([1, 0, 2, 1, 2, 0]),
    np.full(6, 10.0),
)


@pytest.fixture(scope="module")
def record() -> Record:
    rows, utilisation = [], {}
    kinds = [
        ("offline", ""),
        ("online", "300s"),
        ("failures", "1"),
        ("failures", "2"),
        ("noise", "2"),
    ]
    kinds += [("spatial", "60%"), ("scale", "0.5"), ("scale", "2")]
    for number, scheme in enumerate(["lp-all", "ecmp", "pop:replicas=4", HOSTILE]):
        for protocol, level in kinds:
            for index in range(3):
                row = dataclasses.replace(
                    PLAIN,
                    scheme=scheme,
                    protocol=protocol,
                    level=level,
                    index=index,
                    solve_s=0.001 * (number + 1),
                    timestamp=f"2024-01-01T00:0{index}:00",
                    satisfied_demand=0.9 - 0.1 * number - 0.01 * index,
                    gap_known=0.01 * number,
                    status="feasible" if number else "optimal",
                )
                if scheme == HOSTILE:
                    row = dataclasses.replace(
                        row, status="failed", value=math.nan, note=f"out of order {HOSTILE}"
                    )
                elif protocol != "online":
                    shares = np.array([0.05, 0.3, 0.5, 0.8, 0.95, 1.0]) / (number + 1)
                    shares = (
                        np.where(np.arange(6) < 2, math.nan, shares)
                        if protocol == "failures"
                        else shares
                    )
                    utilisation[ResultKey.of(row)] = shares.astype(np.float32)
                rows.append(row)
    return Record(rows, [NETWORK], utilisation)


@pytest.fixture(scope="module")
def page(record: Record, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(path, record)
    return path


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.system
def test_the_report_shows_all_charts_offline(browser: Any, page: Path, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, offline=True)
    tab = context.new_page()
    errors: list[str] = []
    tab.on("console", lambda message: errors.append(message.text))
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.on(
        "request",
        lambda request: None if request.url.startswith("file:") else errors.append(request.url),
    )
    tab.goto(page.as_uri())
    assert tab.title().endswith(" on b4 - Teal"), "names are shown as text, never run as markup"
    charts = tab.locator("figure .chart")
    count = charts.count()
    assert count == 10  # against and over time, two distributions, online, four protocols, the map
    for number in range(count):
        charts.nth(number).scroll_into_view_if_needed()
        charts.nth(number).locator(".main-svg").first.wait_for(timeout=10_000)
        lines = charts.nth(number).locator(".scatterlayer .trace").count()
        assert lines >= 3, f"chart {number} is empty"
    assert tab.evaluate("document.documentElement.scrollWidth") <= width, (
        "no element is wider than the page"
    )
    for number in range(count):
        box = charts.nth(number).bounding_box()
        assert box["width"] <= width
        assert box["height"] >= 300
    assert errors == []
    context.close()


@pytest.mark.system
def test_the_table_of_the_report_sorts_and_its_map_changes(browser: Any, page: Path) -> None:
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    tab.goto(page.as_uri())
    heads = tab.locator("tbody th")
    assert heads.all_text_contents() == ["lp-all", "ecmp", "pop:replicas=4", HOSTILE]
    satisfied = tab.locator("thead button").nth(1)
    satisfied.focus()
    tab.keyboard.press("Enter")
    assert heads.all_text_contents() == ["lp-all", "ecmp", "pop:replicas=4", HOSTILE], (
        "the best first"
    )
    assert tab.locator("th[aria-sort=descending]").count() == 1
    tab.keyboard.press("Enter")
    assert heads.all_text_contents() == ["pop:replicas=4", "ecmp", "lp-all", HOSTILE], (
        "failed schemes stay last"
    )
    assert tab.locator("th[aria-sort=ascending]").count() == 1
    assert "out of order" in tab.locator("details").text_content()

    figure = tab.locator("[data-map]")
    figure.scroll_into_view_if_needed()
    figure.locator(".main-svg").first.wait_for()
    output = figure.locator("output")
    assert output.text_content() == "fullest link: 100.0%"
    case, scheme = figure.locator("select").nth(0), figure.locator("select").nth(1)
    assert "0: 2024-01-01 00:00:00" in case.text_content()
    scheme.select_option(label="ecmp")
    assert output.text_content() == "fullest link: 50.0%"
    case.select_option(label="1: 2024-01-01 00:01:00, failures 1")
    names = figure.locator(".legendtext").all_text_contents()
    assert "failed" in names
    colours = "Array.from(document.querySelectorAll('[data-map] .scatterlayer path.js-line')).map(p => p.style.stroke)"
    assert len(set(tab.evaluate(colours))) >= 2
    tab.close()


def test_a_saved_record_is_loaded_unchanged(record: Record, tmp_path: Path) -> None:
    tmp_path.joinpath("r").mkdir()
    record.save_rows(tmp_path / "r")
    loaded = Record.load([tmp_path / "r"])
    assert [repr(row) for row in loaded.rows] == [repr(row) for row in record.rows]
    assert loaded.networks[0].nodes == NETWORK.nodes
    np.testing.assert_array_equal(loaded.networks[0].coordinates, NETWORK.coordinates)
    assert loaded.utilisation.keys() == record.utilisation.keys()
    for key, shares in loaded.utilisation.items():
        np.testing.assert_allclose(shares, record.utilisation[key], rtol=1e-6)


def test_nodes_without_coordinates_get_distinct_positions(record: Record) -> None:
    without_coordinates = dataclasses.replace(NETWORK, coordinates=np.full((3, 2), np.nan))
    with_some_coordinates = dataclasses.replace(
        NETWORK, coordinates=np.array([[0.0, 50.0], [10.0, 50.0], [np.nan, np.nan]])
    )
    for network in (without_coordinates, with_some_coordinates, NETWORK):
        coordinates = positions(network.coordinates, network.source, network.target)
        assert coordinates.shape == (3, 2)
        assert np.isfinite(coordinates).all()
        assert len(np.unique(coordinates.round(6), axis=0)) == 3
    np.testing.assert_allclose(
        positions(
            with_some_coordinates.coordinates,
            with_some_coordinates.source,
            with_some_coordinates.target,
        )[:2, 1],
        50.0,
    )
    assert network_map(NETWORK, {}, {}) is None


def test_of_rows_in_two_folders_those_of_the_last_count(tmp_path: Path) -> None:
    for name, value, share in (("old", 1.0, 0.25), ("new", 2.0, 0.5)):
        row = dataclasses.replace(PLAIN, value=value)
        tmp_path.joinpath(name).mkdir()
        Record([row], [NETWORK], {ResultKey.of(row): np.full(6, share, np.float32)}).save_rows(
            tmp_path / name
        )
    for folders, value, share in ((("old", "new"), 2.0, 0.5), (("new", "old"), 1.0, 0.25)):
        loaded = Record.load([tmp_path / name for name in folders])
        assert [row.value for row in loaded.rows] == [value]
        np.testing.assert_array_equal(
            loaded.utilisation[ResultKey.of(PLAIN)], np.full(6, share, np.float32)
        )


def test_two_traffics_of_one_network_have_a_section_each(tmp_path: Path) -> None:
    rows = [dataclasses.replace(PLAIN, traffic=traffic) for traffic in ("weekdays", "weekends")]
    record = Record(rows, [dataclasses.replace(NETWORK, traffic=row.traffic) for row in rows], {})
    assert list(figures_of(record)) == ["b4, weekdays", "b4, weekends"]
    assert list(figures_of(Record(rows[:1], record.networks[:1], {}))) == ["b4"]
    write_report(tmp_path / "report.html", record)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert [text.count(title) > 0 for title in ("b4, weekdays", "b4, weekends")] == [True, True]


def test_the_fullest_links_are_named_with_their_mean_share(tmp_path: Path) -> None:
    """Means 10% on all links but b to a (30%), b to c (70%) and c to a (50%)."""
    rows = [dataclasses.replace(PLAIN, index=index) for index in range(2)]
    network = dataclasses.replace(NETWORK, nodes=("a", "b", "c"))
    mean, apart = np.array([0.1, 0.3, 0.7, 0.1, 0.1, 0.5]), 0.05
    record = Record(
        rows,
        [network],
        {
            ResultKey.of(row): (mean + sign * apart).astype(np.float32)
            for row, sign in zip(rows, (-1, 1), strict=True)
        },
    )
    write_report(tmp_path / "report.html", record)
    expected = "Fullest links under lp-all, on average: b to c 70.0%, c to a 50.0%, b to a 30.0%."
    assert expected in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_findings_call_the_best_what_has_the_lowest_utilisation_or_the_most_flow() -> None:
    for objective, best in (("max_link_utilisation", "ecmp"), ("total_flow", "pop")):
        rows = [
            dataclasses.replace(
                PLAIN,
                scheme=scheme,
                objective=objective,
                value=value,
                satisfied_demand=value,
                protocol=protocol,
                level=level,
            )
            for scheme, value in (("ecmp", 0.5), ("pop", 0.8))
            for protocol, level in (("offline", ""), ("failures", "1"))
        ]
        said = findings(rows)
        assert said[0].startswith(f"Best: {best}, ")
        (under_failures,) = [
            sentence for sentence in said if sentence.startswith("Under failures 1:")
        ]
        assert f"best {best} (" in under_failures


def test_a_scheme_that_failed_a_case_of_a_level_has_no_mark_there() -> None:
    """Of the two cases of a failed cable ecmp has none for the second, which is the hard one."""
    rows = []
    for scheme in ("lp-all", "ecmp"):
        for level, protocol in (("", "offline"), ("1", "failures")):
            for index, share in enumerate((0.9, 0.5)):
                row = dataclasses.replace(
                    PLAIN,
                    scheme=scheme,
                    protocol=protocol,
                    level=level,
                    index=index,
                    satisfied_demand=share,
                )
                if (scheme, protocol, index) == ("ecmp", "failures", 1):
                    row = dataclasses.replace(row, status="failed", value=math.nan)
                rows.append(row)
    (chart,) = [chart for chart in Charts(rows).all() if chart.name == "failures"]
    assert {series.scheme: series.y for series in chart.series} == {
        "lp-all": [pytest.approx(70), pytest.approx(70)],
        "ecmp": [pytest.approx(70), None],
    }
