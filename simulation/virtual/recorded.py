"""A recorded behaviour: what the devices of a run did, round by round, to be played again in virtual time.

`quorate record RUN` makes a ``Recording`` of what the API says of a run. It has no device's id, label or data: of
each selected device the seconds of its phases, and how it ended.

In a simulation, the cohort of round r gets the lanes of recorded round r, which device which one by a hash of the seed,
the round and the device. After the last recorded round the first one follows. Where a cohort has another size, each of
its devices draws a lane. So a plan that is played again has rounds of the same length, and another plan has rounds as
that fleet would make them, as far as it is known:

- A device that had not reported when its round closed would have reported at a time that nobody knows. It vanishes
  here. A plan that waits longer than the recorded one finds too few slow devices.
- A lane belongs to a round, and not to a device: who is slow in one round is not in the next. Training takes its
  recorded seconds, however many examples the simulated client has.
- Devices arrive when the cohort was drawn in the recording: selections that found too few before that are left out.
- The coordinator's own time, from the last report to the next round, is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError

from client_sdk.protocol.insight import Lane
from client_sdk.protocol.names import Message
from client_sdk.protocol.operators import RoundView
from simulation.virtual.behaviour import Behaviour, Conduct, Habits


class RecordedLane(Message):
    """What one selected device did. Seconds by the coordinator's clock, but for the length of the training."""

    end: Literal["reported", "withdrawn", "dropped"]
    """*reported*: in time or late. *withdrawn*: it said that it would not report, or its update was refused.
    *dropped*: nothing was heard of it until the round closed."""
    fetch_s: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """From its selection until it began to train. None: it did not."""
    train_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Its training, and the encoding of its update; of one that came late or withdrew, all until its end."""
    send_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """From there until its report was accepted."""

    @classmethod
    def of(cls, lane: Lane) -> Self:
        """From what the coordinator says of a lane of a round that has ended."""
        fetch_s = None if lane.started_at is None else max(0.0, lane.started_at - lane.selected_at)
        if lane.ended_at is None or lane.end in ("dropped", "waiting", "training"):
            return cls(end="dropped", fetch_s=fetch_s)
        left_s = max(0.0, lane.ended_at - lane.selected_at - (fetch_s or 0.0))
        train_s = left_s if lane.train_s is None else min(left_s, lane.train_s + (lane.encode_s or 0.0))
        end: Literal["reported", "withdrawn"] = "reported" if lane.end in ("reported", "late") else "withdrawn"
        return cls(end=end, fetch_s=fetch_s or 0.0, train_s=train_s, send_s=left_s - train_s)


class RecordedRound(Message):
    """A round that selected devices."""

    round: int
    status: Literal["committed", "abandoned"]
    select_s: float = Field(ge=0, allow_inf_nan=False)
    """From its opening, or its last selection that found too few, until its cohort was drawn."""
    collect_s: float = Field(ge=0, allow_inf_nan=False)
    """From there until it closed."""
    lanes: tuple[RecordedLane, ...] = Field(min_length=1)


class Recording(Message):
    """The behaviour of the devices of one run. ``quorate record`` writes it as JSON."""

    recording: Literal[1] = 1
    """The version of the format."""
    run: str
    select: int = Field(ge=1)
    """``cohort.select`` of its plan. A round with fewer lanes was drawn when the time of its selection was over."""
    rounds: tuple[RecordedRound, ...] = Field(min_length=1)

    @classmethod
    def of(cls, run: str, select: int, rounds: Iterable[tuple[RoundView, Collection[Lane]]]) -> Self:
        """From the rounds of a run that have ended, with their lanes, in order. ValueError where none has lanes."""
        found = [
            RecordedRound(
                round=view.round,
                status="committed" if view.status == "committed" else "abandoned",
                select_s=max(0.0, view.collecting_at - (view.missed_at or view.opened_at)),
                collect_s=max(0.0, view.closed_at - view.collecting_at),
                lanes=tuple(map(RecordedLane.of, lanes)),
            )
            for view, lanes in rounds
            if lanes and view.collecting_at is not None and view.closed_at is not None
        ]
        if not found:
            raise ValueError(f"no round of {run} that has ended has lanes: there is nothing to record")
        return cls(run=run, select=select, rounds=tuple(found))

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """A file that ``quorate record`` has written. ValueError for any other."""
        try:
            return cls.model_validate_json(Path(path).read_bytes())
        except (OSError, ValidationError) as error:
            raise ValueError(f"{path} is no recording that quorate record has written: {error}") from None

    def write(self, path: str | Path) -> None:
        """A file that ``read`` reads."""
        Path(path).write_text(self.model_dump_json(exclude_defaults=True, indent=1) + "\n", encoding="utf-8")

    def round(self, number: int) -> RecordedRound:
        """The recorded round that round ``number`` of a simulation follows."""
        return self.rounds[(number - 1) % len(self.rounds)]


class RecordedHabits(Habits):
    """The habits of a recorded fleet."""

    def __init__(self, recording: Recording, seed: int) -> None:
        super().__init__(Behaviour(), lambda device: "", seed)
        self._recording = recording

    @property
    def by_share(self) -> bool:
        return True

    def conducts(self, cohort: Collection[str], round: int, at: float = 0.0) -> dict[str, Conduct]:
        lanes = self._recording.round(round).lanes
        drawn = sorted((self.unit("lane", device, round), device) for device in cohort)
        same = len(drawn) == len(lanes)
        return {
            device: _conduct(lanes[place if same else int(chance * len(lanes))])
            for place, (chance, device) in enumerate(drawn)
        }

    def arrival(self, round: int) -> tuple[float, int | None]:
        recorded = self._recording.round(round)
        count = len(recorded.lanes)
        return recorded.select_s, count if count < self._recording.select else None


def _conduct(lane: RecordedLane) -> Conduct:
    return Conduct(
        step_s=0.0,
        fetch_s=lane.fetch_s or 0.0,
        send_s=lane.send_s,
        vanishes=lane.end == "dropped",
        share=1.0,
        phase="train" if lane.fetch_s is not None else "fetch",
        train_s=lane.train_s,
        withdraws=lane.end == "withdrawn",
    )
