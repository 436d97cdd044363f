"""Security settings of Ray: environment variables that must be set before Ray is imported."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from teal.runtime.storage import cache_dir


def guard() -> Path | None:
    """Bind Ray to the loopback address, and require token authentication between its processes.

    Returns:
        token file, readable by its owner only; None if ``RAY_ADDRESS`` names a cluster.
    """
    # The security of an existing cluster is configured by its owner.
    if os.environ.get("RAY_ADDRESS"):
        return None
    # On any system, "0" makes Ray use the loopback address as that of this machine.
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    # On a busy machine Ray Serve's HTTP proxy takes longer to start than Ray's default timeouts of
    # 5 and 10 s.
    for setting in ("READY", "HEALTH"):
        os.environ.setdefault(f"RAY_SERVE_PROXY_{setting}_CHECK_TIMEOUT_S", "60")
    # Create the token at the first start; later processes read the same file.
    file = cache_dir("serve") / "ray-token"
    with (
        contextlib.suppress(FileExistsError),
        os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream,
    ):
        stream.write(secrets.token_hex(32))
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(file)
    return file
