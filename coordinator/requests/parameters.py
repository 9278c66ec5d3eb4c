"""The parameters in paths and queries that several entries share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from client_sdk.protocol.names import DeviceId
from coordinator.requests.entry import About

RoundNumber = Annotated[int, Field(ge=1), About("the round's number, from 1")]
Attempt = Annotated[int, Field(ge=0), About("the round's attempt, 0 in plain rounds")]
Action = Annotated[Literal["pause", "resume", "stop"], About("what to do with the run")]
Limit = Annotated[int, Field(ge=1, le=10_000), About("at most this many")]
AfterRound = Annotated[int, Field(ge=0, lt=2**63), About("rounds with a number above this")]
AfterDevice = Annotated[DeviceId | Literal[""], About("devices whose id sorts after this, for paging")]
