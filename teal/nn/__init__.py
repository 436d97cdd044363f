"""The networks.  torch_geometric is imported in this room only."""

from teal.nn.model import ModelConfig, TealModel

__all__ = ["ModelConfig", "TealModel"]
