"""The service for a controller: networks, batched allocation before a deadline, HTTP in front, Ray
Serve around it.
"""
