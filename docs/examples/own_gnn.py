"""A GNN of your own: teal bench --set runs/bench --scheme own_gnn:make --out runs/own, in this folder."""

import functools
import time

import torch

import teal


class PathGNN(torch.nn.Module):
    """Loads of links are messages to the paths over them, and choices of paths are messages to their links."""

    def __init__(self, rounds: int = 6) -> None:
        super().__init__()
        self.rounds = rounds
        self.update = torch.nn.Sequential(
            torch.nn.Linear(4, 16), torch.nn.SiLU(), torch.nn.Linear(16, 1)
        ).double()

    def forward(self, problem: teal.Problem) -> torch.Tensor:
        hops = problem.ops.path_sum(torch.ones_like(problem.capacity))
        logits = -hops
        for _ in range(self.rounds):
            splits = torch.nan_to_num(
                logits.masked_fill(~problem.path_mask, -torch.inf).softmax(-1)
            )
            crowding = torch.log1p(problem.utilisation(splits))  # (B, E)
            along = problem.ops.path_sum(crowding)
            features = torch.stack([along, along / hops.clamp(min=1), hops / 10, splits], -1)
            logits = logits + self.update(features)[..., 0]
        return torch.nan_to_num(logits.masked_fill(~problem.path_mask, -torch.inf).softmax(-1))


@functools.cache
def trained(steps: int = 150) -> PathGNN:
    """A model that maximises the feasible flow on B4, by the gradient through the projection."""
    torch.manual_seed(0)
    topology = teal.load_topology("b4")
    traffic = teal.load_traffic("gravity:seed=1,count=64,load=6", topology)
    paths, model = teal.compute_paths(topology, traffic.pairs), PathGNN()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(steps):
        problem = teal.Problem.create(
            topology, paths, "total_flow", traffic.read([step % 64, (7 * step) % 64])
        )
        flow = problem.value(teal.project(problem, model(problem))) / problem.demand.sum(1)
        optimiser.zero_grad()
        (-flow.mean()).backward()
        optimiser.step()
    return model.eval()


class OwnGNN:  # the scheme
    @torch.no_grad()
    def solve(self, problem: teal.Problem) -> teal.Allocation:
        begin = time.perf_counter()
        splits = trained()(problem)
        splits = teal.project(problem, splits) if problem.objective.may_shed else splits
        return teal.Allocation.of_batch(splits, None, time.perf_counter() - begin)


def make(spec: object, model: object) -> OwnGNN:
    trained()
    return OwnGNN()
