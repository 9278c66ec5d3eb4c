"""Which flwr this project works with: its private names, which ``flwr_private`` uses, change with any release."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

SUPPORTED = ("1.41", "1.42")
INSTALL = "pip install 'quorate[flower]'"


class WrongFlower(ImportError):
    """flwr is absent, or another version than this project works with."""


def require_flwr() -> None:
    """Raise WrongFlower where the installed flwr is another than the supported ones."""
    try:
        found = version("flwr")
    except PackageNotFoundError:
        raise WrongFlower(f"This needs flwr, which is not installed: {INSTALL}", name="flwr") from None
    if ".".join(found.split(".")[:2]) not in SUPPORTED:
        wanted = " or ".join(SUPPORTED)
        raise WrongFlower(f"flwr {found} is installed, and Quorate works with flwr {wanted}: {INSTALL}", name="flwr")
