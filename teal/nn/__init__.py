"""The neural networks and their checkpoints.  torch_geometric is imported in this room only."""

from teal.nn.price_gnn import PriceGNN, PriceGnnConfig
from teal.nn.teal_model import FlowGnnConfig, TealModel

__all__ = ["FlowGnnConfig", "PriceGNN", "PriceGnnConfig", "TealModel"]
