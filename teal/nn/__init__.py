"""The networks.  torch_geometric is imported in this room only."""

from teal.nn.model import ModelConfig, TealModel
from teal.nn.price_gnn import PriceGNN, PriceGnnConfig

__all__ = ["ModelConfig", "PriceGNN", "PriceGnnConfig", "TealModel"]
