"""What a device keeps from round to round for a strategy: the *current* state, and beside it, until the outcome of its
round is known, the *candidate* that its last training has made.

A candidate is stored before the update that it belongs to is sent, under the round, the attempt and the update's
digest. It becomes the current one where that update is in a checkpoint, and is deleted where it is not. So whatever a
crash interrupts, a device trains from what belongs to the updates of it that the model has.

The files of ``StateFolder``, for each key (a device: coordinator and run; a simulation: client)::

    <key>.state    safetensors, with the training that has made it
    <key>.next     the candidate: it is renamed to the former, or deleted
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from client_sdk.device.durable_folder import DurableFolder, explained
from client_sdk.protocol.devices import Outcome
from client_sdk.tensors import TensorError, Tensors, from_bytes, read_header, to_bytes

KEY = "quorate.state"
"""The only key of the metadata."""
MOST_BYTES = 1 << 30
"""What a device keeps for one run at most, where its owner does not say."""


class Candidate(NamedTuple):
    """The training that has made a state."""

    round: int
    attempt: int
    update: str
    """SHA-256 of the update that it belongs to, in hexadecimal; in secure rounds of what is masked; ``-``: not known,
    as in simulations."""


def belongs(outcome: Outcome, candidate: Candidate, *, masked: bool) -> bool:
    """Whether a checkpoint has the update that the candidate belongs to. ``masked``: the outcome names the digest of
    what was sent under masks, not that of the update."""
    counted = outcome.result == "counted" and outcome.version is not None
    return counted and (masked or candidate.update in ("-", outcome.digest))


class Kept(NamedTuple):
    """A current state."""

    tensors: Tensors
    round: int
    """The round of the training that has made it."""
    at: float
    """When: Unix seconds by the device's clock."""


class States(Protocol):
    """The port. All calls but ``current`` are durable when they return."""

    def current(self, key: str) -> Kept | None:
        """What is kept under this key; None: nothing, or what is damaged."""

    def candidate(self, key: str) -> Candidate | None:
        """The training whose state waits for its outcome; None: there is none."""

    def put(self, key: str, candidate: Candidate, tensors: Tensors, at: float) -> None:
        """Store a candidate, in place of an earlier one. ``at``: now. TensorError where a file cannot hold it."""

    def settle(self, key: str, *, keep: bool) -> None:
        """Make the candidate the current state, or delete it. It may be repeated."""

    def expire(self, before: float) -> list[tuple[int, float]]:
        """Delete what was made before this time, under whatever key; of each the round, and when it was made."""

    def forget(self) -> None:
        """Delete all."""


def key_of(*parts: str) -> str:
    """The key of what these name: they may have any characters."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


class MemoryStates:
    """States in memory: they survive a crashed session, not the process."""

    def __init__(self) -> None:
        self._current: dict[str, bytes] = {}
        self._next: dict[str, tuple[Candidate, bytes]] = {}

    def current(self, key: str) -> Kept | None:
        return _decoded(self._current[key]) if key in self._current else None

    def candidate(self, key: str) -> Candidate | None:
        return self._next[key][0] if key in self._next else None

    def put(self, key: str, candidate: Candidate, tensors: Tensors, at: float) -> None:
        self._next[key] = candidate, encoded(candidate, tensors, at)

    def settle(self, key: str, *, keep: bool) -> None:
        _, body = self._next.pop(key, (None, b""))
        if keep and body:
            self._current[key] = body

    def expire(self, before: float) -> list[tuple[int, float]]:
        bodies = [*self._current.items(), *((key, body) for key, (_, body) in self._next.items())]
        old = [(key, body, made) for key, body in bodies if (made := _made(body)) is not None and made[1] < before]
        for key, body, _ in old:
            if self._current.get(key) is body:
                del self._current[key]
            else:
                del self._next[key]
        return [made for *_, made in old]

    def forget(self) -> None:
        self._current.clear()
        self._next.clear()


class StateFolder:
    """States in files of a folder, which is made when the first one comes. StorageError where it cannot be used."""

    def __init__(self, files: DurableFolder) -> None:
        self._files = files
        self.folder = files.folder

    def current(self, key: str) -> Kept | None:
        return self.read(key, "state")

    def read(self, key: str, kind: str) -> Kept | None:
        """What is kept in the file of this ending; None: nothing, or what is damaged."""
        path = self.path(key, kind)
        with explained(self._files.folder):
            return _decoded(path.read_bytes()) if path.exists() else None

    def candidate(self, key: str) -> Candidate | None:
        with explained(self._files.folder):
            path = self.path(key, "next")
            if not path.exists():
                return None
            try:
                return _candidate(read_header(path).metadata)
            except (TensorError, ValueError, KeyError):
                self._files.erase(path)
                return None

    def put(self, key: str, candidate: Candidate, tensors: Tensors, at: float) -> None:
        with explained(self._files.folder):
            self._files.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._files.replace_erasing(self.path(key, "next"), encoded(candidate, tensors, at))

    def settle(self, key: str, *, keep: bool) -> None:
        path = self.path(key, "next")
        with explained(self._files.folder):
            if keep and path.exists():
                self._files.move_erasing(path, self.path(key))
            elif path.exists():
                self._files.erase(path)

    def expire(self, before: float) -> list[tuple[int, float]]:
        found = []
        with explained(self._files.folder):
            for path in sorted([*self._files.folder.glob("*.state"), *self._files.folder.glob("*.next")]):
                if (made := _made(path)) is not None and made[1] < before:
                    self._files.erase(path)
                    found.append(made)
        return found

    def forget(self) -> None:
        with explained(self._files.folder):
            for path in self._files.folder.glob("*"):
                self._files.erase(path)

    def path(self, key: str, kind: str = "state") -> Path:
        """The file of this ending."""
        return self._files.folder / f"{key}.{kind}"


def encoded(candidate: Candidate, tensors: Tensors, at: float) -> bytes:
    """The bytes of a candidate. TensorError where a file cannot hold it."""
    return to_bytes(tensors, {KEY: json.dumps({**candidate._asdict(), "at": at})})


def _candidate(metadata: Mapping[str, str]) -> Candidate:
    said = json.loads(metadata[KEY])
    return Candidate(int(said["round"]), int(said["attempt"]), str(said["update"]))


def _made(source: Path | bytes) -> tuple[int, float] | None:
    """The round of the training that has made this state, and when; None: it is damaged."""
    try:
        said = json.loads(read_header(source).metadata[KEY])
        return int(said["round"]), float(said["at"])
    except (TensorError, ValueError, KeyError):
        return None


def _decoded(body: bytes) -> Kept | None:
    made = _made(body)
    try:
        return None if made is None else Kept(from_bytes(body), *made)
    except TensorError:
        return None
