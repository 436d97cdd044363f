"""The neural networks and their checkpoints.

torch_geometric is imported in this room only, and only by :mod:`teal.nn.flow_gnn`: it takes a
second and a half.
"""
