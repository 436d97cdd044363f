"""Start-up of the service, for one process and for Ray Serve.

Converts the settings of `teal serve` to arguments of application and engine, prepares the state
folder, and registers the network of ``--topology``.
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
from teal_serve.engine.requests import NetworkSpec
from teal_serve.engine.store import Store
from teal_serve.settings import ServeConfig

# Name of the network of --topology.
DEFAULT_NETWORK = "default"


def app_settings(config: ServeConfig) -> dict[str, Any]:
    """Return the arguments of :func:`teal_serve.http.app.make_app`, without its backend."""
    tokens = config.tokens()
    return {
        "tokens": tokens,
        "max_bytes": config.max_body << 20,
        # Without tokens, only the names of this machine are accepted, as a protection against pages
        # of other sites (DNS rebinding); with tokens, a proxy may use any name.
        "hosts": (config.host, "127.0.0.1", "localhost", "[::1]")
        if config.loopback and not tokens
        else (),
    }


def engine_settings(config: ServeConfig) -> dict[str, Any]:
    """Return the arguments of AllocationEngine, without state folder and kernels."""
    return {
        "max_queued": config.max_waiting,
        "model": resolve_model(config),
        "default_solver": config.default_solver,
        "max_networks": config.max_networks,
        "max_path_s": seconds(config.max_path_time),
        "max_deadline_s": seconds(config.max_deadline),
        # Share of every demand on randomised splits.
        "vary": config.vary,
    }


def resolve_model(config: ServeConfig) -> str:
    """Return the model of the settings, with a folder as absolute path.

    Relative paths would fail, since other processes of the service have other working folders.
    """
    folder = Path(config.model)
    return str(folder.resolve()) if folder.is_dir() else config.model


def service_url(config: ServeConfig) -> str:
    """Return the URL on which the service listens."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"http://{host}:{config.port}"


def start_message(config: ServeConfig, folder: Path) -> str:
    """Return the message that the service has started: URL, state folder, default solver."""
    address = service_url(config)
    model_text = "" if config.model in ("auto", "none") else f" from {config.model}"
    return (
        f"{address} answers; its API is described at {address}/docs, networks are stored in "
        f"{folder}; the default solver is {config.default_solver}{model_text}"
    )


def prepare_folder(config: ServeConfig) -> Path:
    """Validate the settings, register the network of ``--topology``; return the state folder.

    Raises:
        InputError: invalid tokens, model or topology.
    """
    config.tokens()
    folder = config.state or cache_dir("networks")
    named_model(config.model)
    if config.topology:
        _store_network(config, folder)
    return folder


def _store_network(config: ServeConfig, folder: Path) -> None:
    """Store the network of ``--topology`` in the state folder, under the name ``default``.

    Args:
        config: settings of `teal serve`.
        folder: state folder.

    Raises:
        InputError: unknown topology, or invalid settings of the network.
    """
    # A file is stored as node-link data, since other processes may not have it.
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
        raise InputError.invalid(
            "teal serve",
            "--topology",
            f"invalid settings of the network: {' '.join(str(error).split())}",
        ) from None
    store = Store(folder)
    settings = spec.to_json()
    store.put(DEFAULT_NETWORK, settings)
