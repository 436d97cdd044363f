"""Schemes: registry by name, and the schemes that come with Teal."""

from teal.schemes.registry import Follower, Scheme, make_scheme, register_scheme, scheme_names

__all__ = ["Follower", "Scheme", "make_scheme", "register_scheme", "scheme_names"]
