"""Schemes by name, and Teal's own: whatever turns a problem into an allocation."""

from teal.schemes.registry import Follower, Scheme, make_scheme, register_scheme, scheme_names

__all__ = ["Follower", "Scheme", "make_scheme", "register_scheme", "scheme_names"]
