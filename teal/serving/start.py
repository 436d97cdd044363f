"""Start-up shared by both forms of the service, one process and Ray Serve: settings to arguments,
state folder, first network.
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

# Name of the network that the command registers.
DEFAULT_NETWORK = "default"


def app_settings(config: ServeConfig) -> dict[str, Any]:
    """Arguments of :func:`teal.serving.http.app.make_app`."""
    tokens = config.tokens()
    return {
        "tokens": tokens,
        "most_bytes": config.max_body << 20,
        # Without tokens, the host name protects against pages of other sites; with tokens, a proxy
        # may use any name.
        "hosts": (config.host, "127.0.0.1", "localhost", "[::1]")
        if config.loopback and not tokens
        else (),
    }


def engine_settings(config: ServeConfig) -> dict[str, Any]:
    """Arguments of :class:`teal.serving.engine.engine.AllocationEngine`, without its folder."""
    return {
        "most_waiting": config.max_waiting,
        "model": resolve_model(config),
        "default_solver": config.default_solver,
        "most_networks": config.max_networks,
        "most_path_s": seconds(config.max_path_time),
        "most_deadline_s": seconds(config.max_deadline),
        "vary": config.vary,
    }


def resolve_model(config: ServeConfig) -> str:
    """Model name, or absolute path of a model folder, since other processes have other working
    folders.
    """
    folder = Path(config.model)
    return str(folder.resolve()) if folder.is_dir() else config.model


def service_url(config: ServeConfig) -> str:
    """URL of the service."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"http://{host}:{config.port}"


def start_message(config: ServeConfig, folder: Path) -> str:
    """Message that the service has started."""
    address = service_url(config)
    model_text = "" if config.model in ("auto", "none") else f" from {config.model}"
    return (
        f"{address} answers; its API is described at {address}/docs, networks are kept in "
        f"{folder}; requests are solved by {config.default_solver}{model_text} unless they name "
        "another"
    )


def prepare_folder(config: ServeConfig) -> Path:
    """State folder, after validation of all settings."""
    config.tokens()
    folder = config.state or cache_dir("networks")
    named_model(config.model)
    if config.topology:
        _register(config, folder)
    return folder


def _register(config: ServeConfig, folder: Path) -> None:
    """Store the network of ``--topology``."""
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
    store = Store(folder)
    settings = spec.to_json()
    store.put(DEFAULT_NETWORK, settings)
