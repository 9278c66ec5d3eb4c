"""Flower apps on Quorate: the device that runs a ClientApp, and what both sides need to read an app and its records.

Importing this package needs no flwr. It turns off flwr's telemetry for this process and its children: flwr reads the
variable when it is imported.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from client_sdk.imports import load

if TYPE_CHECKING:
    from client_sdk.flower.learner_app import client_app

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

__all__ = ["client_app"]
_HOMES = {"client_app": "client_sdk.flower.learner_app"}


def __getattr__(name: str) -> object:
    return load(__name__, name, _HOMES, extra="flower")
