"""Clients that do not wait long, as tests start them."""

from __future__ import annotations

from typing import Any

from client_sdk.device.requests import Pacing
from client_sdk.device.storage import MemoryStorage
from client_sdk.http.client import Client
from tests.client_sdk.http.http_authority import shared
from tests.client_sdk.http.http_script import HttpScript, train, trainer

QUICK = Pacing(retry_s=0.02, retry_most_s=0.1, withdrawn_s=(0.01, 0.02), soon_s=(0.01, 0.02))


def client(server: HttpScript, storage: Any = None, **changes: Any) -> Client:
    settings: dict[str, Any] = {"enrolment_token": shared().text, "pacing": QUICK, "hold_s": 5.0}
    learner = changes.pop("learner", train)
    given = changes.pop("trainer", None) or trainer(learner)
    return Client(server.url, storage if storage is not None else MemoryStorage(), given, **(settings | changes))
