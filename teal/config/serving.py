"""Of serve."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
from pathlib import Path

from teal.config.base import require
from teal.errors import InputError

TOKEN = "TEAL_TOKEN"  # in the environment; where secrets come as variables


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Serve allocations over HTTP: register networks, send traffic matrices, get back feasible, certified splits.

    Ray Serve behind a FastAPI ingress; the API is described at /docs. On this machine alone unless --host says
    otherwise, which needs a token. TLS is a reverse proxy's matter (docs/service.md).
    """

    topology: str = ""
    """Register this at once, as default: b4, or topohub:GROUP/NAME, or a topology file as in train."""
    num_paths: int = 4
    """K, candidate paths a demand at most, of that network."""
    objective: str = "total_flow"
    """Of that network, unless a request says otherwise."""
    model: str = "auto"
    """Where the engine starts on a large network without an earlier state: the universal PriceGNN (auto), nothing
    (none), or the PriceGNN in this folder."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8000
    """Port to listen on."""
    token_file: Path | None = None
    """File with the bearer token that requests must carry; readable by its owner only.  Or the environment variable
    TEAL_TOKEN."""
    state: Path | None = None
    """Folder where registered networks are kept over restarts, for all replicas; by default in the cache folder."""
    log_file: Path | None = None
    """Append a line of JSON for each request, and for each error of ours, to this file."""
    replicas: int = 1
    """Processes that compute.  One uses all cores; more keep the service up while one is restarted."""
    ingresses: int = 1
    """Processes that speak HTTP; more keep the service up while one is restarted.  The page at / and /metrics then show
    what went through the one that answers."""
    max_waiting: int = 64
    """Requests that may wait for one network; more are told to come back (503)."""
    max_body: int = 64
    """MiB of a request's body at most."""

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range, or an open address without a token."""
        require(self, "port", "1 to 65535", 0 < self.port < 65536)
        require(self, "num_paths", "1 to 32", 1 <= self.num_paths <= 32)
        for field in ("replicas", "ingresses", "max_waiting", "max_body"):
            require(self, field, "a whole number of at least 1", getattr(self, field) >= 1)
        if not self.loopback and self.token_file is None and not os.environ.get(TOKEN):
            raise InputError("--host", "", f"a loopback address, or a --token-file (or {TOKEN})", self.host)

    @property
    def loopback(self) -> bool:
        """Whether nobody else can reach the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def token(self) -> str:
        """What the token file holds, or else the environment; "" without one.

        Raises:
            InputError: a file that others may read, or a token of less than 16 characters.
        """
        option = "--token-file" if self.token_file else TOKEN
        text = self._token_file() if self.token_file else os.environ.get(TOKEN, "").strip()
        if not text and not self.token_file:
            return ""
        if len(text) < 16 or not text.isascii() or any(c.isspace() for c in text):
            raise InputError(option, "", "a token of at least 16 characters, without spaces", f"{len(text)}")
        return text

    def _token_file(self) -> str:
        assert self.token_file is not None
        where = str(self.token_file)
        try:
            mode, text = self.token_file.stat().st_mode, self.token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError("--token-file", "", "a file with a token", f"{where}: {error}") from None
        if mode & 0o077:
            raise InputError("--token-file", "", "a file that its owner alone may read (chmod 600)", where)
        return text
