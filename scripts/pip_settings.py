"""Where packages come from: pip's own settings, also for uv.

People set indexes, proxies and certificates once, for pip. uv reads none of that, so this file hands it on through the
environment. It names no index itself, and what the user has set for uv wins.
"""

from __future__ import annotations

import ast
import os
import subprocess

# pip's option, uv's variable, and what stands between several values in uv's variable.
_VARIABLES = (
    ("index-url", "UV_DEFAULT_INDEX", None),
    ("extra-index-url", "UV_INDEX", " "),
    ("find-links", "UV_FIND_LINKS", ","),
    ("trusted-host", "UV_INSECURE_HOST", " "),
    ("cert", "SSL_CERT_FILE", None),
    ("timeout", "UV_HTTP_TIMEOUT", None),
    ("proxy", "ALL_PROXY", None),
)


def pip_settings(python: str) -> dict[str, str]:
    """Return pip's settings as option -> value; the environment wins over `[install]`, and that over `[global]`."""
    listing = subprocess.run(
        [python, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    found: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listing.stdout.splitlines():
        key, _, value = line.partition("=")
        section, _, option = key.partition(".")
        if section in found and value:
            found[section][option] = str(ast.literal_eval(value))
    return found["global"] | found["install"] | found[":env:"]


def uv_environment(python: str) -> dict[str, str]:
    """Return this process's environment with pip's settings in uv's words added to it."""
    settings = pip_settings(python)
    environment = dict(os.environ)
    for option, variable, separator in _VARIABLES:
        if option in settings:
            value = settings[option] if separator is None else separator.join(settings[option].split())
            environment.setdefault(variable, value)
    # As pip does: all indexes count alike, and the best version wins wherever it lies.
    environment.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    environment["UV_NO_PROGRESS"] = "1"
    environment["UV_NO_CONFIG"] = "1"
    return environment
