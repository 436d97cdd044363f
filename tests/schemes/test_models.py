"""Every kind of model wherever a command takes one: by its folder alone, and refused where it does
not serve."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import teal
from teal.cli import main
from teal.errors import InputError
from teal.network import all_pairs, compute_paths
from teal.nn.checkpoint import MODEL_CARD, kind_of
from teal.runtime.storage import model_folder
from teal.schemes.flow_gnn import FlowGnnScheme
from teal.schemes.models import model_of_each, serves
from teal.schemes.price_gnn import PriceGnnScheme
from teal.solvers.pdhg.model_start import ModelStart
from teal_serve.engine.allocation_task import single_program_task
from teal_serve.engine.network_state import Job, NetworkState, check_model
from tests.solvers.engine_times import prefer

B4 = ["--topology", "b4", "--traffic", "gravity:seed=3,count=2,load=8"]


def _problem(objective: str = "total_flow") -> teal.Problem:
    topology = teal.load_topology("b4")
    traffic = teal.load_traffic("gravity:seed=3,count=2,load=8", topology)
    paths = compute_paths(topology, traffic.pairs, cache=False)
    return teal.Problem.create(topology, paths, teal.Objective(objective), traffic.read([0, 1]))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("b4", FlowGnnScheme), ("flow", FlowGnnScheme), ("universal", PriceGnnScheme)],
)
def test_a_folder_says_which_model_it_is_and_pdhg_starts_from_it(name: str, kind: type) -> None:
    model, problem = teal.load_model(name), _problem()
    assert isinstance(model, kind)
    cold, warm = teal.solve(problem, gap=1e-3), teal.solve(problem, gap=1e-3, model=model)
    assert (warm.gap <= 1e-3).all()
    assert bool((warm.value <= cold.bound * (1 + 1e-9)).all()), (
        "another start does not change what is certified"
    )
    splits, prices = model.start(problem)
    assert splits.shape == problem.path_mask.shape
    by_hand = teal.solve(problem, gap=1e-3, warm_start=(splits, prices))
    assert bool((by_hand.value <= warm.bound * (1 + 1e-9)).all())
    assert bool((warm.value <= by_hand.bound * (1 + 1e-9)).all())


def test_models_of_other_kinds_and_objectives_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected flow-gnn or price-gnn.*found hedge-gate"):
        teal.load_model("hedge")
    with pytest.raises(InputError, match=r"trained for total_flow, not for max_link_utilisation"):
        teal.load_model("b4", "max_link_utilisation")
    assert isinstance(teal.load_model("flow", "max_link_utilisation"), FlowGnnScheme)
    with pytest.raises(InputError, match=r"a model of the kind price-gnn .*found flow-gnn"):
        teal.make_scheme("price-gnn", "b4")
    with pytest.raises(InputError, match=r"a model of the kind flow-gnn .*found price-gnn"):
        teal.make_scheme("teal:model=universal")
    assert isinstance(teal.make_scheme("price-gnn:model=universal", "b4"), PriceGnnScheme)
    fields = json.loads((model_folder(Path("b4")) / MODEL_CARD).read_text())
    (tmp_path / MODEL_CARD).write_text(json.dumps(fields | {"kind": "other"}))
    with pytest.raises(InputError, match="flow-gnn or price-gnn or hedge-gate, found 'other'"):
        kind_of(tmp_path)


def test_one_model_goes_to_the_schemes_of_its_kind() -> None:
    told: list[str] = []
    own, schemes = Path("b4"), ("teal", "teal:repair=none", "price-gnn", "lp-all")
    assert model_of_each(schemes, own, told.append) == {
        "teal": own,
        "teal:repair=none": own,
        "price-gnn": None,
        "lp-all": own,
    }
    assert told == ["price-gnn: uses the model that comes with Teal, since b4 is a flow-gnn"]
    assert model_of_each(("price-gnn", "lp-all"), own) == {"price-gnn": own, "lp-all": own}, (
        "which refuses it"
    )
    told.clear()
    assert model_of_each(schemes, None, told.append) == dict.fromkeys(schemes)
    assert not told


def test_solve_and_allocate_take_a_trained_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ["--model", "b4", "--num-paths", "4"]
    assert main(["solve", *B4, *model, "--json"]) == 0
    of_model = json.loads(capsys.readouterr().out)
    assert main(["solve", *B4, "--model", "none", "--num-paths", "4", "--json"]) == 0
    assert of_model["value"] <= json.loads(capsys.readouterr().out)["bound"] * (1 + 1e-9)
    assert of_model["gap"] <= 0.01
    assert (
        main(
            ["allocate", *B4, *model, "--out", str(tmp_path / "year"), "--workers", "0", "--quiet"]
        )
        == 0
    )
    for command in (["solve"], ["allocate", "--workers", "0", "--out", str(tmp_path / "other")]):
        assert main([*command, *B4, *model, "--objective", "max_link_utilisation"]) == 2
        said = capsys.readouterr().err
        assert "trained for total_flow, not for max_link_utilisation" in said
        assert "12 nodes" not in said, "refused before the network is looked at"


def test_the_service_starts_from_a_model_where_it_serves_the_objective(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ModelStart, "saves_time", lambda *_: True)
    prefer(monkeypatch, "pdhg")
    topology, model = teal.load_topology("b4"), teal.load_model("b4")
    check_model(model)
    calls: list[str] = []
    start = model.start

    def counted(problem: teal.Problem) -> tuple[torch.Tensor, torch.Tensor]:
        calls.append(str(problem.objective.name))
        return start(problem)

    model.start = counted  # type: ignore[method-assign]
    rates = np.random.default_rng(0).uniform(0, 3000, (1, 132))
    for name in teal.ObjectiveName.TOTAL_FLOW, teal.ObjectiveName.MAX_LINK_UTILISATION:
        network_state = NetworkState(
            topology, compute_paths(topology, all_pairs(topology), cache=False)
        )
        job = Job(rates, single_program_task(name), 1e-2, 1e18)
        assert (
            float(
                network_state.answer(
                    network_state.solve(job, model), slice(0, 1), 1e-2, 0, 0.0
                ).gap[0]
            )
            <= 1e-2
        )
        assert serves(model, teal.Objective(name)) == (name == "total_flow")
    assert calls == ["total_flow"]
