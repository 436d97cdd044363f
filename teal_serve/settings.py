"""Settings of `teal serve`: :class:`ServeConfig`, one field per option."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
from pathlib import Path
from typing import Literal

from teal.app.settings import require, seconds
from teal.errors import InputError

# Environment variable of the bearer token, for platforms that pass secrets as variables.
TOKEN_VARIABLE = "TEAL_TOKEN"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Serve allocations over HTTP: register networks, send traffic matrices, receive feasible,
    certified splits.

    The API is described at /docs. The service listens on the loopback address; another --host needs
    a token. For TLS put a reverse proxy in front (docs/service.md). The service is one process;
    --replicas or --ingresses above 1 start several with Ray Serve.
    """

    topology: str = ""
    """Network to register at the start, with the name default: b4, topohub:GROUP/NAME, or a
    topology file."""
    num_paths: int | Literal["auto"] = "auto"
    """K, maximum number of candidate paths of a demand in the network of --topology; auto: paths
    are selected for generated matrices."""
    objective: str = "total_flow"
    """Default objective of the network of --topology."""
    model: str = "auto"
    """Model for warm starts without an earlier state.  auto: the built-in PriceGNN, on large
    networks.  none: no model.  Or the folder of a model: a PriceGNN is used on large networks, a
    FlowGNN of teal train on every network with its objective."""
    solver: Literal["", "auto", "model", "model-pdhg", "pdhg"] = ""
    """Default solver of requests; if empty, model-pdhg if --model names a folder, else auto.
    Problems that the model does not support are solved by pdhg."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8000
    """Port to listen on."""
    token_file: Path | None = None
    """File with the accepted bearer tokens, one per line; only its owner may read it.  Each token
    is a client with a fair share of the solver.  Alternative: the environment variable TEAL_TOKEN,
    with one token."""
    state: Path | None = None
    """State folder of the registered networks, for restarts and for all replicas.  Default: a
    folder in the cache folder."""
    log_file: Path | None = None
    """Append a JSON line for each request and each internal error to this file."""
    replicas: int = 1
    """Number of solver processes.  One process uses all cores; several keep the service up while
    one restarts."""
    ingresses: int = 1
    """Number of HTTP processes; several keep the service up while one restarts.  The page at / and
    /metrics then show the requests of the process that answers."""
    max_waiting: int = 128
    """Maximum number of queued requests of a network, at most three quarters of them from one
    client; further requests are refused with 503."""
    max_networks: int = 100
    """Maximum number of registered networks."""
    max_path_time: str = "10m"
    """Maximum estimated time of a path search; networks that need longer are refused."""
    max_deadline: str = "10m"
    """Maximum deadline of a request; longer ones are refused."""
    max_connections: int = 256
    """Maximum number of connections from one address; further connections are closed."""
    max_body: int = 64
    """Maximum size of a request body, MiB."""

    vary: float = 0.0
    """In allocations for the next interval, share of every demand on random, nearly optimal splits
    that change in each interval.  Interface counters then identify the matrix better
    (docs/counters.md); for networks of some hundred demands."""

    def __post_init__(self) -> None:
        """Raise InputError for a value out of range, or an open address without a token."""
        # Ranges of single values.
        require(self, "port", "an integer from 1 to 65535", 0 < self.port < 65536)
        require(
            self,
            "num_paths",
            "auto, or an integer from 1 to 32",
            self.num_paths == "auto" or 1 <= self.num_paths <= 32,
        )
        for field in (
            "replicas",
            "ingresses",
            "max_waiting",
            "max_networks",
            "max_connections",
            "max_body",
        ):
            require(self, field, "an integer >= 1", getattr(self, field) >= 1)
        require(self, "vary", "a share in [0, 1)", 0 <= self.vary < 1)
        # Combinations: a solver that needs a model, and an open address without a token.
        needs_model = self.solver in ("model", "model-pdhg")
        require(
            self,
            "solver",
            "auto or pdhg with --model none",
            not needs_model or self.model != "none",
        )
        seconds(self.max_path_time, "--max-path-time")
        seconds(self.max_deadline, "--max-deadline")
        if not self.loopback and self.token_file is None and not os.environ.get(TOKEN_VARIABLE):
            raise InputError.invalid(
                "--host",
                "",
                f"{self.host} is not a loopback address, and there is no token",
                f"use a loopback address, or give a --token-file (or {TOKEN_VARIABLE})",
            )

    @property
    def default_solver(self) -> str:
        """Default solver of requests: that of --solver, else by the kind of model in --model."""
        return self.solver or ("auto" if self.model in ("auto", "none") else "model-pdhg")

    @property
    def is_one_process(self) -> bool:
        """Whether HTTP and engine share one process, without Ray."""
        return self.replicas == self.ingresses == 1

    @property
    def loopback(self) -> bool:
        """Whether the service listens on a loopback address, which only this machine can reach."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def tokens(self) -> tuple[str, ...]:
        """Return the bearer tokens of the file or the environment variable; empty without both.

        Raises:
            InputError: a file that others may read, a repeated token, or one of less than 16
                characters.
        """
        # Read the tokens; the option or variable is named in messages.
        token_source = "--token-file" if self.token_file else TOKEN_VARIABLE
        text = (
            self._read_token_file()
            if self.token_file
            else os.environ.get(TOKEN_VARIABLE, "").strip()
        )
        if not text and not self.token_file:
            return ()
        # Check each token; an empty file counts as one token of no characters.
        tokens = tuple(line.strip() for line in text.splitlines() if line.strip()) or ("",)
        for line_number, token in enumerate(tokens, 1):
            if len(token) < 16 or not token.isascii() or any(c.isspace() for c in token):
                raise InputError.invalid(
                    token_source,
                    f"line {line_number}",
                    f"the token of {len(token)} characters is too short, or has spaces or "
                    "characters outside of ASCII",
                    "use tokens of at least 16 characters (ASCII, without spaces), one per line",
                )
        if len(set(tokens)) < len(tokens):
            raise InputError.invalid(
                token_source, "", "a token is repeated", "use a different token for each client"
            )
        return tokens

    def _read_token_file(self) -> str:
        """Return the content of the token file.

        Raises:
            InputError: the file cannot be read, or others may read it.
        """
        assert self.token_file is not None
        path = str(self.token_file)
        try:
            mode = self.token_file.stat().st_mode
            text = self.token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError.invalid(
                "--token-file", "", f"{path} cannot be read: {error}", "name a file with tokens"
            ) from None
        # Permission bits of the group and of all other users.
        if mode & 0o077:
            raise InputError.invalid(
                "--token-file",
                "",
                f"{path} can be read by other users",
                f"restrict it to its owner: chmod 600 {path}",
            )
        return text
