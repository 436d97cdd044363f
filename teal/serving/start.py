"""From the settings of `teal serve` to what both ways of serving need: one process, and Ray
Serve.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from teal.app.settings import seconds
from teal.errors import InputError
from teal.formats import is_named, load_topology
from teal.formats.node_link import topology_to_node_link
from teal.runtime.storage import cache_dir
from teal.schemes.models import named_model
from teal.serving.engine.requests import NetworkSpec
from teal.serving.engine.store import Store
from teal.serving.settings import ServeConfig

DEFAULT = "default"  # name of the network that the command registers


def app_settings(config: ServeConfig) -> dict[str, Any]:
    """Arguments of :func:`teal.serving.http.app.make_app`."""
    tokens = config.tokens()
    return {
        "tokens": tokens,
        "most_bytes": config.max_body << 20,
        # A page of another site has no token: with one, a proxy may name the service as it likes.
        "hosts": (config.host, "127.0.0.1", "localhost", "[::1]")
        if config.loopback and not tokens
        else (),
    }


def solver_settings(config: ServeConfig) -> dict[str, Any]:
    """Arguments of :class:`teal.serving.engine.solver.Solver`, without its folder."""
    return {
        "most_waiting": config.max_waiting,
        "model": model_of(config),
        "default_solver": config.default_solver,
        "most_networks": config.max_networks,
        "most_path_s": seconds(config.max_path_time),
        "most_deadline_s": seconds(config.max_deadline),
        "vary": config.vary,
    }


def model_of(config: ServeConfig) -> str:
    """The model as a name or as an absolute path: other processes have other working folders."""
    folder = Path(config.model)
    return str(folder.resolve()) if folder.is_dir() else config.model


def address_of(config: ServeConfig) -> str:
    """Where the service answers."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"http://{host}:{config.port}"


def answers(config: ServeConfig, folder: Path) -> str:
    """The message that the service has started."""
    address = address_of(config)
    by = "" if config.model in ("auto", "none") else f" from {config.model}"
    return (
        f"{address} answers; its API is described at {address}/docs, networks are kept in "
        f"{folder}; requests are solved by {config.default_solver}{by} unless they name another"
    )


def prepared(config: ServeConfig) -> Path:
    """The folder of the networks, after everything that may be wrong with the settings has been
    looked at.
    """
    config.tokens()
    folder = config.state or cache_dir("networks")
    named_model(config.model)
    if config.topology:
        _register(config, folder)
    return folder


def _register(config: ServeConfig, folder: Path) -> None:
    """Put the network of ``--topology`` into the store, as it is."""
    topology = load_topology(config.topology)
    try:
        spec = NetworkSpec(
            topology=config.topology
            if is_named(config.topology)
            else topology_to_node_link(topology),  # type: ignore[arg-type]
            num_paths=config.num_paths,
            objective=config.objective,
        )
    except ValueError as error:
        raise InputError(
            "teal serve", "", "settings of a network", " ".join(str(error).split())
        ) from None
    store, wanted = Store(folder), spec.stored()
    store.put(DEFAULT, wanted)
