"""Environment variables that must be set before Ray is imported, because Ray reads them at import
only.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from teal.runtime.storage import cache_dir


def guard() -> Path | None:
    """Bind Ray to the loopback address, and make its processes authenticate with a token of this
    user.

    Returns:
        the file of the token, which only its owner may read; None if ``RAY_ADDRESS`` names a
        cluster.
    """
    if os.environ.get("RAY_ADDRESS"):  # the user's cluster has its own configuration
        return None
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    for setting in (
        "READY",
        "HEALTH",
    ):  # on a busy machine Ray Serve's HTTP proxy takes longer than Ray's 5 and 10 s
        os.environ.setdefault(f"RAY_SERVE_PROXY_{setting}_CHECK_TIMEOUT_S", "60")
    file = cache_dir("serve") / "ray-token"
    with (
        contextlib.suppress(FileExistsError),
        os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream,
    ):
        stream.write(secrets.token_hex(32))
    os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN_PATH"] = "token", str(file)
    return file
