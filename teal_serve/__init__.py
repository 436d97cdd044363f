"""Allocation service for controllers: HTTP API (`http`), allocation engine (`engine`), one process
or Ray Serve; its Python clients (`client`), which need no torch.
"""
