"""Flower apps on Quorate: the device that runs a ClientApp, and what both sides need to read an app and its records.

Importing this package needs no flwr. It turns off flwr's telemetry for this process and its children: flwr reads the
variable when it is imported.
"""

from __future__ import annotations

import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
