"""Settings of `teal serve`."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
from pathlib import Path
from typing import Literal

from teal.app.settings import require, seconds
from teal.errors import InputError

# environment variable with the bearer token, for platforms that pass secrets as variables
TOKEN = "TEAL_TOKEN"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Serve allocations over HTTP: register networks, send traffic matrices, receive feasible,
    certified splits.

    The API is described at /docs.  The service listens on this machine only; another --host needs a
    token.  For TLS put a reverse proxy in front (docs/service.md).  It is one process, unless
    --replicas or --ingresses ask for more, which run under Ray Serve.
    """

    topology: str = ""
    """A network to register at the start, under the name default: b4, topohub:GROUP/NAME, or a file
    as in train."""
    num_paths: int | Literal["auto"] = "auto"
    """K, the number of candidate paths of a demand, at most, of that network; auto: chosen for
    generated matrices."""
    objective: str = "total_flow"
    """Objective of that network, unless a request has another one."""
    model: str = "auto"
    """Model whose prediction the engine starts from where it has no earlier state: the PriceGNN
    that comes with Teal, on large networks (auto); no model (none); or the model in this folder: a
    PriceGNN on large networks, a FlowGNN, as teal train writes it, for every network with its
    objective."""
    solver: Literal["", "auto", "model", "model-pdhg", "pdhg"] = ""
    """Solver of requests that name none; by default model-pdhg where --model names a model, else
    auto.  Problems that the model does not know are solved by pdhg."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8000
    """Port to listen on."""
    token_file: Path | None = None
    """File with the bearer tokens of which requests must have one, a line each; only its owner may
    read it.  Each token is a client with its own share of the engine.  Alternative: the environment
    variable TEAL_TOKEN, with one."""
    state: Path | None = None
    """Folder where registered networks are stored, for restarts and for all replicas.  Default: in
    the cache folder."""
    log_file: Path | None = None
    """Append a line of JSON for each request, and for each internal error, to this file."""
    replicas: int = 1
    """Number of processes that compute.  One uses all cores; more keep the service up while one is
    restarted."""
    ingresses: int = 1
    """Number of processes that handle HTTP; more keep the service up while one is restarted.  The
    page at / and /metrics then show the requests of the process that answers."""
    max_waiting: int = 128
    """Requests that may wait for one network, three quarters of them from one client; others are
    refused with 503."""
    max_networks: int = 100
    """Networks that may be registered."""
    max_path_time: str = "10m"
    """Refuse networks whose candidate paths would take longer, by estimate."""
    max_deadline: str = "10m"
    """Refuse requests with a longer deadline."""
    max_connections: int = 256
    """Connections from one address at once; further ones are closed."""
    max_body: int = 64
    """Size of a request's body, at most, in MiB."""

    vary: float = 0.0
    """Share of every demand that allocations for the next interval put on random, nearly optimal
    splits, others in each interval, so that counters tell matrices apart (docs/counters.md); for
    networks of some hundred demands."""

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range, or an open address without a token."""
        require(self, "port", "1 to 65535", 0 < self.port < 65536)
        require(
            self,
            "num_paths",
            "auto, or 1 to 32",
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
            require(self, field, "a whole number of at least 1", getattr(self, field) >= 1)
        require(self, "vary", "a share in [0, 1)", 0 <= self.vary < 1)
        needs_model = self.solver in ("model", "model-pdhg")
        require(
            self,
            "solver",
            "auto or pdhg with --model none",
            not needs_model or self.model != "none",
        )
        seconds(self.max_path_time, "--max-path-time")
        seconds(self.max_deadline, "--max-deadline")
        if not self.loopback and self.token_file is None and not os.environ.get(TOKEN):
            raise InputError(
                "--host", "", f"a loopback address, or a --token-file (or {TOKEN})", self.host
            )

    @property
    def default_solver(self) -> str:
        """Solver of requests that name none."""
        return self.solver or ("auto" if self.model in ("auto", "none") else "model-pdhg")

    @property
    def is_one_process(self) -> bool:
        """Whether HTTP and engine are in one process, without Ray."""
        return self.replicas == self.ingresses == 1

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def tokens(self) -> tuple[str, ...]:
        """The tokens from the file or the environment; none without either.

        Raises:
            InputError: a file that others may read, or a token of less than 16 characters.
        """
        option = "--token-file" if self.token_file else TOKEN
        text = self._token_file() if self.token_file else os.environ.get(TOKEN, "").strip()
        if not text and not self.token_file:
            return ()
        tokens = tuple(line.strip() for line in text.splitlines() if line.strip()) or ("",)
        for number, token in enumerate(tokens, 1):
            if len(token) < 16 or not token.isascii() or any(c.isspace() for c in token):
                expected = "a token of at least 16 characters, without spaces, a line"
                raise InputError(option, f"line {number}", expected, f"{len(token)} characters")
        if len(set(tokens)) < len(tokens):
            raise InputError(option, "", "different tokens", "one twice")
        return tokens

    def _token_file(self) -> str:
        assert self.token_file is not None
        where = str(self.token_file)
        try:
            mode, text = (
                self.token_file.stat().st_mode,
                self.token_file.read_text(encoding="utf-8").strip(),
            )
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                "--token-file", "", "a file with a token", f"{where}: {error}"
            ) from None
        if mode & 0o077:
            raise InputError(
                "--token-file", "", "a file that its owner alone may read (chmod 600)", where
            )
        return text
