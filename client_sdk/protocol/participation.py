"""Who takes part in a run: every device that could, also those that never counted. Route: ``Route.PARTICIPATION``."""

from __future__ import annotations

from pydantic import Field

from client_sdk.protocol.names import DeviceId, Message


class DeviceParticipation(Message):
    """How often one device took part in the rounds of a run that have ended. *Selected* is the sum of *reported*,
    *late*, *dropped*, *withdrawn* and *refused*."""

    device: DeviceId
    device_class: str
    selected: int = 0
    reported: int = 0
    """Its update came in time; of a secure round, its masked one."""
    counted: int = 0
    """Of these, in rounds that were committed."""
    late: int = 0
    dropped: int = 0
    """It had sent nothing when the round closed."""
    withdrawn: int = 0
    refused: int = 0
    speed_s: float | None = None
    """Median seconds from its selection until its update came, in time or late, of its last rounds. None: none came; in
    secure rounds it is not told."""

    @property
    def missed(self) -> int:
        """Rounds in which it was too slow, or silent."""
        return self.late + self.dropped


class ClassParticipation(Message):
    """How often all devices of one class together took part."""

    device_class: str
    devices: int
    never_counted: int
    selected: int
    counted: int
    missed: int
    """Late or dropped."""


class RunParticipation(Message):
    """Who took part in the rounds of a run that have ended, from ``from_round`` on."""

    from_round: int
    devices: int
    never_counted: int
    by_class: list[ClassParticipation] = Field(default_factory=list)
    """Those with the most devices first, at most 50."""
    lateness: str = ""
    """Where lateness is concentrated in some devices: in which, in a sentence. Empty: it is not."""
    page: list[DeviceParticipation] = Field(default_factory=list)
    """The devices asked for, the least counted first."""
