"""One command from a network's files to answers: its page, its steps, an interruption, and commands
that go deeper."""

from __future__ import annotations

import contextlib
import csv
import html
import re
import shlex
import signal
from pathlib import Path
from typing import Any, NoReturn

import pytest

import teal
import teal_ip
from teal.cli import main
from teal.errors import InputError, SolverError
from teal_ip.metrics.command import run_metrics
from teal_ip.metrics.settings import MetricsConfig
from teal_ip.routing.settings import SimulateConfig
from teal_ip.routing.simulate_command import run_simulate
from teal_ip.surveys import analyses
from teal_ip.surveys.settings import SurveyConfig

# A square a - b - d - c - a with a leaf e behind d; all traffic from a goes by b, since c - d has
# the metric 2.
LINKS = "source,target,capacity,delay,metric\na,b,10,1,1\nb,d,10,1,1\na,c,10,1,1\nc,d,10,1,2\nd,e,40,1,1\n"
DEMANDS = "source,target,rate\na,d,5\na,e,3\nb,c,1\n"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.csv").write_text(LINKS, encoding="utf-8")
    (tmp_path / "demands.csv").write_text(DEMANDS, encoding="utf-8")
    return tmp_path


def _survey(words: str) -> int:
    return main(["survey", "--topology", "net.csv", *words.split(), "--deadline", "1s", "--quiet"])


TRAFFIC = "--traffic demands.csv --growth-per-year 0.3 --horizon 1y --max-utilisation 0.9 --out now"


def _page(folder: Path) -> str:
    return html.unescape((folder / "survey.html").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_page_begins_with_the_answers_and_the_commands_on_it_run(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _survey(TRAFFIC) == 0
    printed, page = capsys.readouterr().out, _page(files / "now")
    # 8 Gbit/s from a pass a -> b and b -> d, of 10 each; b to c goes by a, and by d where a - b or
    # a - c is down.
    assert "The most utilised link without failure is a->b, at 80.00%" in printed
    assert "The worst of 5 failures is that of" in printed
    assert re.search(r"With growth of 30% a year, \d+ links exceed 90.00% by", printed)
    # 1.3 times the demands put 1.3 x 8 = 10.4 on a->b, b->d (and under their failures on a->c,
    # c->d, with b to c 11.7).
    assert "buy" in printed
    introduction = re.findall(r"<h1>.*?</h1>\s*<p>(.*?)</p>", page, re.S)[0]
    assert introduction.startswith("The most utilised link without failure is a->b")
    assert all(line in introduction for line in printed.splitlines()[:-1])
    commands = re.findall(r"<code>(teal .*?)</code>", page)
    assert [shlex.split(command)[1] for command in commands] == [
        "simulate",
        "metrics",
        "segments",
        "upgrade",
    ]
    for command in commands:
        assert main([*shlex.split(command)[1:], "--quiet"]) == 0, command


@pytest.mark.slow
def test_metrics_that_mend_and_purchases_are_those_of_their_commands(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What growth needs under the failure of b - d, when all that leaves a crosses the other side
    of the square."""
    assert _survey(TRAFFIC) == 0
    printed = capsys.readouterr().out
    assert re.search(
        r"takes the largest utilisation over the failure of each|No change of at most 5 metrics",
        printed,
    )
    rows = _rows(files / "now/upgrade/purchases.csv")
    bought = {tuple(sorted((row["source"], row["target"]))): float(row["bought"]) for row in rows}
    # Under the failure of b - d all that leaves a, and b to c over a, crosses a - c: 1.3 x 9 / 0.9
    # = 13 Gbit/s.
    assert bought[("a", "c")] == pytest.approx(13 - 10, rel=0.02)
    assert bought[("c", "d")] == pytest.approx(1.3 * 8 / 0.9 - 10, rel=0.02)


def _rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


@pytest.mark.slow
def test_a_survey_over_objects_gives_and_saves_what_the_command_does(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is found by a search here: a single link is down alone, and no metric helps."""
    _given(files, "a,b,10\nb,c,10\n", "a,c,15\nc,a,5\n")
    assert _survey("--traffic demands.csv --growth 1.2 --out now") == 0
    printed = capsys.readouterr().out
    topology = teal.load_topology("net.csv")
    traffic = teal.load_traffic("demands.csv", topology)
    report = teal_ip.survey(topology, traffic, growth=1.2, deadline="1s")
    assert repr(report).splitlines() == printed.splitlines()[:-1]
    assert report.to_frame()["step"].tolist() == ["loads", "metrics", "policies", "purchases"]
    assert report.loads.worst_matrix.utilisation == pytest.approx(1.2 * 15 / 10)

    report.save("objects")
    with pytest.raises(InputError, match="overwrite"):
        report.save("objects")
    names = [
        {str(path.relative_to(out)) for path in Path(out).rglob("*")} for out in ("now", "objects")
    ]
    assert names[0] - names[1] == {"manifest.json"}
    assert names[1] <= names[0]
    commands = re.findall(r"<code>(teal .*?)</code>", _page(Path("objects")))
    assert len(commands) == 4
    for command in commands:
        assert main([*shlex.split(command)[1:], "--quiet"]) == 0, command


@pytest.mark.slow
def test_counters_become_a_matrix_whose_loads_are_those_of_simulate(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counted = "simulate --topology net.csv --traffic demands.csv --counters counters.npz --counter-error 0.001 --quiet"
    assert main(counted.split()) == 0
    capsys.readouterr()
    assert _survey("--counters counters.npz --out now") == 0
    page = _page(files / "now")
    assert "The traffic matrix from the counters" in page
    assert "No alarm in 1 intervals" in page
    share = float(
        re.findall(
            r"The most utilised link without failure is \S+, at ([\d.]+)%", capsys.readouterr().out
        )[0]
    )
    assert share == pytest.approx(80, abs=2)
    config = SimulateConfig(topology="now/network.json", traffic="now/estimate/matrices.npz")
    assert 100 * run_simulate(config, lambda _: None).worst_matrix.utilisation == pytest.approx(
        share, abs=0.01
    )


@pytest.mark.slow
def test_an_interruption_leaves_a_page_and_resume_does_the_rest_alone(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(analyses, "improve", interrupted)
        assert _survey(TRAFFIC) == 130
    assert "The most utilised link without failure is a->b" in _page(files / "now")
    assert "What to buy" not in _page(files / "now")
    assert _survey(TRAFFIC) == 2, "results in OUT are kept"
    assert "--resume or --overwrite" in capsys.readouterr().err
    assert _survey(f"{TRAFFIC} --resume --changes 2") == 2, "other settings"
    with monkeypatch.context() as patch:
        patch.setattr(analyses, "simulate", interrupted)  # it would be called again
        assert _survey(f"{TRAFFIC} --resume") == 0
    resumed = _page(files / "now")
    assert "What to buy" in resumed
    assert not (files / "now/journal.jsonl").exists()
    assert _survey(f"{TRAFFIC} --overwrite") == 0
    titles = [re.findall(r"<h2[^>]*>(.*?)</h2>", page) for page in (resumed, _page(files / "now"))]
    assert titles[0] == titles[1]


def test_a_step_that_fails_is_named_and_the_others_are_done(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*_: Any) -> NoReturn:
        raise SolverError("HiGHS gave up")

    monkeypatch.setattr(analyses, "improve", failing)
    assert _survey(TRAFFIC) == 0
    page = _page(files / "now")
    assert "This step failed: HiGHS gave up" in page
    assert "What to buy" in page


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--out now", "exactly one of --traffic and --counters"),
        (
            "--traffic demands.csv --counters c.npz --out now",
            "exactly one of --traffic and --counters",
        ),
        ("--traffic demands.csv --interfaces i.csv --out now", "works only with --counters"),
        ("--traffic nowhere.csv --out now", "nowhere.csv"),
        ("--counters nowhere.npz --out now", "nowhere.npz"),
        ("--traffic demands.csv --changes 0 --out now", "changes"),
        ("--traffic demands.csv --horizon 1y --out now", "add --growth-per-year"),
        ("--traffic demands.csv --fail a,z --out now", "z"),
    ],
)
def test_wrong_input_is_one_line(
    words: str, expected: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _survey(words) == 2
    errors = capsys.readouterr().err
    assert expected in errors
    assert "Traceback" not in errors
    assert not list((files / "now").glob("*")), "OUT is as it was"


def test_a_command_line_has_what_differs_from_the_defaults() -> None:
    config = SurveyConfig(
        topology="a b.csv", traffic="t.csv", out=Path("o"), fail=("a,b", "c,d"), bidirectional=True
    )
    words = analyses.command_line("survey", config)
    assert (
        words
        == "teal survey --bidirectional --fail a,b --fail c,d --topology 'a b.csv' --traffic t.csv"
    )


def _given(files: Path, links: str, demands: str) -> None:
    (files / "net.csv").write_text(f"source,target,capacity\n{links}", encoding="utf-8")
    (files / "demands.csv").write_text(f"source,target,rate\n{demands}", encoding="utf-8")


@pytest.mark.slow
def test_where_no_policy_helps_and_failures_cut_demand_off_the_page_says_so(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _given(files, "a,b,10\nb,c,10\n", "a,c,15\nc,a,5\n")
    assert _survey("--traffic demands.csv --out now") == 0
    printed = capsys.readouterr().out
    below = re.findall(r"over the failure of each single cable below ([\d.]+)%", printed)
    assert 149 < float(below[0]) <= 150
    assert "no link passes" not in printed
    assert "2 of the failures disconnect demand" in printed
    assert "20 Gbit/s" in printed
    assert (
        "in every failure, for all demand that they leave connected, buy 10 Gbit/s on 2 cables"
        in printed
    )


@pytest.mark.slow
def test_growth_multiplies_the_demands_of_every_step_once(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _survey("--traffic demands.csv --growth 2 --max-utilisation 0.9 --out now") == 0
    twice = capsys.readouterr().out.splitlines()[:-1]
    (files / "demands.csv").write_text(
        DEMANDS.replace(",5", ",10").replace(",3", ",6").replace("c,1", "c,2")
    )
    assert _survey("--traffic demands.csv --max-utilisation 0.9 --out then") == 0
    assert capsys.readouterr().out.splitlines()[:-1] == twice
    assert "at 160.00%" in twice[0]


@pytest.mark.slow
def test_growth_multiplies_the_matrix_of_counters_too(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """a -> b carries 8 of 10 Gbit/s today."""
    counted = "simulate --topology net.csv --traffic demands.csv --counters counters.npz --counter-error 0.001 --quiet"
    assert main(counted.split()) == 0
    capsys.readouterr()
    assert _survey("--counters counters.npz --growth 2 --out now") == 0
    share = float(
        re.findall(
            r"The most utilised link without failure is \S+, at ([\d.]+)%", capsys.readouterr().out
        )[0]
    )
    assert share == pytest.approx(160, abs=4)


@pytest.mark.slow
def test_shrinking_traffic_is_bought_for_as_it_is_today(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _given(files, "a,b,10\n", "a,b,12\n")
    assert _survey("--traffic demands.csv --growth-per-year=-0.5 --horizon 1y --out now") == 0
    assert "buy 2 Gbit/s on 1 cable." in capsys.readouterr().out


@pytest.mark.slow
def test_a_unit_and_a_history_are_converted_once(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counted = "simulate --topology net.csv --traffic demands.csv --counters counters.npz --counter-error 0.001 --quiet"
    assert main(counted.split()) == 0
    (files / "mega.csv").write_text(
        "source,target,rate,timestamp\n"
        + "".join(
            f"{pair},{rate * (1000 + step)},2024-01-01T00:{step:02d}:00\n"
            for step in range(30)
            for pair, rate in (("a,d", 5), ("a,e", 3), ("b,c", 1))
        )
    )
    assert (
        _survey("--counters counters.npz --history mega.csv --traffic-unit Mbit/s --out now") == 0
    )
    page = _page(files / "now")
    assert "No alarm in 1 intervals" in page
    assert "at 80." in capsys.readouterr().out or "at 79." in page


def test_files_in_the_folder_are_kept_and_inputs_must_lie_elsewhere(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "now").mkdir()
    for name in ("metrics.json", "policies.json", "traffic.npz"):
        (files / "now" / name).write_text("mine")
        assert _survey("--traffic demands.csv --out now") == 2
        assert (files / "now" / name).read_text() == "mine"
        (files / "now" / name).unlink()
    (files / "now" / "network.csv").write_text(LINKS)
    words = [
        "survey",
        "--topology",
        "now/network.csv",
        "--traffic",
        "demands.csv",
        "--out",
        "now",
        "--overwrite",
    ]
    assert main([*words, "--quiet"]) == 2
    assert "contains the file of --topology" in capsys.readouterr().err
    assert (files / "now" / "network.csv").read_text() == LINKS


@pytest.mark.slow
def test_a_resumed_survey_refuses_files_that_have_changed(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pressed(*_: Any) -> Any:  # a search that ends on Ctrl-C with the best so far
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return run_metrics(
            MetricsConfig(topology="net.csv", traffic="demands.csv", deadline="1s"), lambda _: None
        )

    with monkeypatch.context() as patch:
        patch.setattr(analyses, "improve", pressed)
        assert _survey(TRAFFIC) == 130
    (files / "demands.csv").write_text(DEMANDS.replace("12", "50").replace("a,d,5", "a,d,6"))
    assert _survey(f"{TRAFFIC} --resume") == 2
    assert "interrupted run" in capsys.readouterr().err
    (files / "demands.csv").write_text(DEMANDS)
    assert _survey(f"{TRAFFIC} --resume") == 0
    assert "Metric changes against overload" in _page(files / "now")


@pytest.mark.slow
def test_a_link_exactly_at_its_limit_does_not_pass_it(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """1.1 + 2.2 Gbit/s on 3.3, which neither float32 nor a sum of two rates has exactly."""
    _given(files, "a,b,3.3\nb,c,9\n", "a,b,1.1\na,c,2.2\n")
    assert _survey("--traffic demands.csv --growth-per-year 0 --out now") == 0
    printed = capsys.readouterr().out
    assert "no link passes 100.00%" in printed
    assert "None of the failures overload a link" in printed
    assert "Nothing must be bought" in printed


# A square a - b - d - c - a. Without failure the first matrix is the fuller one (8 of 10 on a - b
# and b - d); when b - d fails, the 12 Gbit/s of the second one towards d cross c - d, which has 10.
TWO_MATRICES_LINKS = (
    "source,target,capacity,delay,metric\na,b,10,1,1\nb,d,10,1,1\na,c,10,1,1\nc,d,10,1,2\n"
)
TWO_MATRICES = (
    "source,target,rate,timestamp\na,d,8,2026-01-01T00:00:00\nc,d,0,2026-01-01T00:00:00\n"
    "a,d,6,2026-01-01T01:00:00\nc,d,6,2026-01-01T01:00:00\n"
)


@pytest.mark.slow
def test_policies_are_announced_for_the_matrix_that_a_failure_fills_most(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net.csv").write_text(TWO_MATRICES_LINKS)
    (tmp_path / "demands.csv").write_text(TWO_MATRICES)
    words = [
        "survey",
        "--topology",
        str(tmp_path / "net.csv"),
        "--traffic",
        str(tmp_path / "demands.csv"),
    ]
    assert (
        main(
            [
                *words,
                "--max-utilisation",
                "0.9",
                "--deadline",
                "1s",
                "--quiet",
                "--out",
                str(tmp_path / "o"),
            ]
        )
        == 0
    )
    printed = capsys.readouterr().out
    assert "fills c->d to 120.00%" in printed
    assert "without any policy" not in printed
    below = re.findall(r"No segment lists .* below ([\d.]+)%", printed)
    assert [float(one) for one in below] == [pytest.approx(120, abs=0.02)]
