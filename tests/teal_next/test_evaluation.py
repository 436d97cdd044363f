"""The protocol of the next interval: what hedges may see, and its figures against values computed
by hand."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import teal
from teal.app.instance import Instance
from teal.cli import main
from teal.network.traffic import Split
from teal.schemes.past import Hedge, Past
from teal_next.evaluation import NextInterval, NextRow, realised, summarise
from tests.teal_next.series import make_past

COMMAND = [
    "next-interval",
    "--topology",
    "b4",
    "--traffic",
    "gravity:seed=0,count=60,load=2",
    "--objective",
    "max_link_utilisation",
]


def _instance(demand: np.ndarray, objective: str = "max_link_utilisation") -> Instance:
    past = make_past(demand, objective=objective)
    network, everything = past.network, np.arange(len(demand))
    split = Split(everything, everything, everything)
    device = torch.device("cpu")
    return Instance(
        network.topology, past.traffic, network.paths, network.objective, None, split, device
    )


class _Spy:
    """Direct splits; remembers what it was given."""

    def __init__(self, share: float = 1.0) -> None:
        self.pasts: list[Past] = []
        self._share = share

    def allocate(self, past: Past) -> torch.Tensor:
        self.pasts.append(past)
        return torch.tensor([[self._share, 1 - self._share]] * 3, dtype=torch.float64)


@pytest.mark.parametrize("lead", [1, 3])
@pytest.mark.parametrize("lookback", [0, 4])
def test_hedges_see_the_matrices_until_the_lead_and_no_other(lead: int, lookback: int) -> None:
    demand = np.random.default_rng(0).lognormal(0, 1, (20, 3))
    spy = _Spy()
    protocol = NextInterval(_instance(demand), {"spy": spy}, lead=lead, lookback=lookback)
    rows = [row for rows in protocol.run([10, 11, 12], warm_up=2) for row in rows]
    assert [row.index for row in rows] == [10, 11, 12]
    assert len(spy.pasts) == 5, "two intervals to warm up"
    for target, past in zip(range(8, 13), spy.pasts, strict=True):
        stop = target - lead + 1
        first = max(0, stop - lookback) if lookback else 0
        np.testing.assert_array_equal(past.traffic.read(slice(None)), demand[first:stop])
        assert past.traffic_row == target
        with pytest.raises(IndexError):
            past.traffic.rates.read(np.array([past.num_known]))


def test_figures_of_utilisation_are_those_computed_by_hand() -> None:
    demand = np.array([[1.0, 1.0, 1.0], [8.0, 1.0, 1.0], [0.0, 0.0, 0.0], [2.0, 2.0, 2.0]])
    hedges: dict[str, Hedge] = {"direct": _Spy(1.0), "even": _Spy(0.5)}
    protocol = NextInterval(_instance(demand), hedges)
    intervals = [interval for interval in protocol.run([1, 2, 3], warm_up=0) if interval]
    assert [rows[0].index for rows in intervals] == [1, 3], "a matrix without demand is a gap"
    direct, even = intervals[0]
    assert direct.optimum == pytest.approx(0.45, rel=1e-3)  # 9 Gbit/s leave a by two links of 10
    assert direct.realised == pytest.approx(0.8)
    assert direct.ratio == pytest.approx(0.8 / 0.45, rel=1e-3)
    assert even.realised == pytest.approx(
        (4 + 0.5 + 0.5) / 10
    )  # a -> c: half of a -> b, of a -> c, and of b -> c
    assert math.isnan(direct.churn)
    assert math.isinf(direct.limit)
    assert intervals[1][0].churn == 0


def test_churn_is_the_share_of_the_volume_that_moves() -> None:
    class Turning:
        def __init__(self) -> None:
            self._count = 0

        def allocate(self, past: Past) -> torch.Tensor:
            self._count += 1
            share = [1.0, 0.25][self._count % 2]
            return torch.tensor([[share, 1 - share], [1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)

    demand = np.array([[1.0, 1.0, 1.0], [8.0, 1.0, 1.0], [3.0, 1.0, 2.0]])
    (_, (row,)) = NextInterval(_instance(demand), {"turning": Turning()}).run([1, 2], warm_up=0)
    assert row.churn == pytest.approx(0.75 * 3 / 6)


def test_links_above_capacity_drop_in_proportion() -> None:
    """a -> b sends 16 over a link of 10; what a -> c sends around it, over a-b and b-c, is cut
    alike."""
    past = make_past(np.array([[16.0, 8.0, 4.0]]), objective="total_flow")
    problem = past.network.with_demand(torch.tensor([[16.0, 8.0, 4.0]], dtype=torch.float64))
    splits = torch.tensor([[1.0, 0.0], [0.5, 0.5], [1.0, 0.0]], dtype=torch.float64)
    kept = 10 / (16 + 4)
    assert realised(problem, splits) == pytest.approx((16 * kept + 4 + 4 * kept + 4) / 28)
    assert realised(problem, 0 * splits) == 0


def test_the_flow_that_arrives_is_compared_with_that_of_the_optimum() -> None:
    demand = np.array([[16.0, 8.0, 4.0]] * 3)
    (row,) = next(
        iter(
            NextInterval(_instance(demand, "total_flow"), {"pdhg": teal.make_hedge("pdhg")}).run(
                [1], 0
            )
        )
    )
    assert row.optimum == pytest.approx(24 / 28, rel=1e-3)  # 20 of 24 leave a, and 4 leave b
    assert row.ratio == pytest.approx(1, abs=2e-3)
    assert math.isnan(row.limit)


def test_summaries_are_those_computed_by_hand() -> None:
    def row(ratio: float, limit: float, objective: str = "max_link_utilisation") -> NextRow:
        return NextRow(
            scheme="x",
            topology="t",
            traffic="m",
            index=0,
            timestamp="",
            objective=objective,
            optimum=1.0,
            realised=ratio,
            ratio=ratio,
            limit=limit,
            churn=0.5,
            solve_s=2.0,
        )

    (summary,) = summarise(
        [row(1.0, math.inf), row(1.2, 1.1), row(1.4, 1.5), row(math.nan, math.nan)]
    )
    assert (summary.intervals, summary.p50, summary.worst, summary.coverage) == (3, 1.2, 1.4, 0.5)
    assert (summary.mean, summary.width) == pytest.approx((1.2, 0.0))
    (flow,) = summarise([row(share, math.nan, "total_flow") for share in (0.8, 0.9, 1.0)])
    assert (flow.p50, flow.worst) == (0.9, 0.8), "the worst of what arrives is the least"
    assert math.isnan(flow.coverage)


@pytest.mark.slow
def test_the_command_writes_rows_summary_and_plot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    hedges = [
        "--scheme",
        "mixture:of=last+saa3,warm-up=3",
        "--scheme",
        "last",
        "--scheme",
        "shortest-path",
    ]
    assert main([*COMMAND, *hedges, "--limit", "5", "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert "realised / optimum" in printed.out
    assert "against the best hedge" in " ".join(printed.err.split())
    with (out / "next_interval.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 15
    assert all(float(row["ratio"]) > 0.999 for row in rows)
    assert (out / "next_interval.png").stat().st_size > 20_000
    assert json.loads((out / "manifest.json").read_text())["settings"]["lead"] == 1
    assert main([*COMMAND, *hedges, "--out", str(out)]) == 2
    assert "--overwrite" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--race"], "teal next-interval has no such option"),
        (["--lead", "0"], "--lead"),
        (["--lookback", "-1"], "--lookback"),
        (["--scheme", "saa:window=0"], "window"),
        (["--scheme", "nothing"], "nothing"),
    ],
)
def test_wrong_settings_are_refused(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMMAND, *arguments, "--out", str(tmp_path / "run")]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()


def test_limits_know_only_ratios_of_matrices_that_were_known_when_hedges_allocated() -> None:
    """With a level of 1/2 one ratio gives a limit; with a lead of 3 the first that can be known is
    three rows old."""
    demand = np.random.default_rng(0).lognormal(0, 1, (12, 3))
    for lead in (1, 3):
        protocol = NextInterval(_instance(demand), {"direct": _Spy(1.0)}, lead=lead, level=0.5)
        limits = [rows[0].limit for rows in protocol.run(list(range(4, 10)), warm_up=0)]
        assert [math.isfinite(limit) for limit in limits] == [
            number >= lead for number in range(6)
        ], lead
