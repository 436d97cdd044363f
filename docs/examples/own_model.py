"""A model of your own: attention over the paths of a demand, as `teal train --from none:form=attention`.

python docs/examples/own_model.py train --topology b4 --traffic gravity:seed=0,count=40,load=4 \
    --from none:form=attention --max-steps 100 --out runs/attention
python docs/examples/own_model.py solve --topology b4 --traffic gravity:seed=9,load=4 --model runs/attention

Its checkpoint says the form, so that every command that knows the form takes it.
"""

import sys

import torch
from torch import nn

import teal
from teal.command import main
from teal.extend import FlowGnnConfig, FlowModel


class Attention(FlowModel):
    """Loads are messages from links to paths; the paths of a demand attend to each other; choices make new loads."""

    takes_any_paths = True

    def __init__(self, config: FlowGnnConfig) -> None:
        super().__init__()
        self.config, width = config, config.width
        self.encode = nn.Sequential(nn.Linear(4, width), nn.SiLU(), nn.Linear(width, width))
        self.attend = nn.MultiheadAttention(width, 1, batch_first=True)
        self.action = nn.Linear(width, 1)
        self.price = nn.Sequential(nn.Linear(2, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, problem: teal.Problem) -> tuple[torch.Tensor, torch.Tensor]:
        """Means of the actions (B, D, K) and link prices (B, E)."""
        mask = problem.path_mask
        hops = problem.ops.path_sum(torch.ones_like(problem.capacity)).expand(mask.shape)
        unused = ~mask & mask.any(
            -1, keepdim=True
        )  # a demand without any path attends to nothing that matters
        means = -hops
        for _ in range(self.config.layers):
            load = problem.utilisation(self.splits(means, problem))  # (B, E)
            worst, _ = problem.ops.path_max(load)
            crowding = torch.log1p(torch.stack([problem.ops.path_sum(load), worst], -1))
            state = self.encode(
                torch.cat([crowding, hops[..., None] / 10, means[..., None] / 10], -1)
            )
            paths = state.flatten(0, 1)  # (B D, K, width)
            context, _ = self.attend(
                paths, paths, paths, key_padding_mask=unused.flatten(0, 1), need_weights=False
            )
            means = means + self.action(state + context.view_as(state))[..., 0]
        link = torch.stack([torch.log1p(load), (load > 1).to(load)], -1)
        prices = nn.functional.softplus(self.price(link)[..., 0] - 4) * (problem.capacity > 0)
        return torch.where(mask, means, 0), prices


teal.register_model("attention", Attention)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
