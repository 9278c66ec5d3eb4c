"""Holds the blobs that a run's rows name against their digests, and says which must still be there.

Updates and named tensors are deleted when the plan's retention is over. A coordinator may do so while
its blobs are read here, so one that is missing is looked up in the newest rows before it is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from client_sdk.tensors import TensorError, TensorHeader, read_header
from client_sdk.tensors.manifest import digest_of
from coordinator.blobs import BlobError
from coordinator.engine.named_tensors import called
from coordinator.engine.rounds import KINDS, kind_of
from coordinator.engine.state import RunState
from coordinator.folding.refold import Readable, hashed, short
from coordinator.runtime.commits import needed
from coordinator.store.port import TERMINAL, CheckpointRow, DeviceRow, Reader, RunRow
from coordinator.verify.replay import Replay
from coordinator.verify.violation import RunViolation

Still = Callable[[Reader], bool]
"""Whether the newest rows still need a blob."""


@dataclass(frozen=True, slots=True)
class WantedBlob:
    digest: str
    round: int
    what: str
    size: int | None = None
    model: bool = False
    """Whether it is a checkpoint, which must be readable."""
    still: Still | None = None
    """None: it is never deleted."""


class HashedBlobs:
    """Each blob is read once. ``whole`` says whether its bytes have its digest; BlobError where it cannot be read."""

    def __init__(self, blobs: Readable) -> None:
        self.blobs = blobs
        self._found: dict[str, tuple[str, int]] = {}

    def found(self, digest: str) -> tuple[str, int]:
        if digest not in self._found:
            try:
                self._found[digest] = hashed(self.blobs, digest)
            except OSError as error:
                raise BlobError(f"the file cannot be read: {error.strerror or error}") from error
        return self._found[digest]

    def header(self, digest: str) -> TensorHeader:
        """BlobError, TensorError, OSError."""
        with self.blobs.open(digest) as file:
            return read_header(file)

    def whole(self, digest: str) -> bool:
        try:
            return self.found(digest)[0] == digest
        except BlobError:
            return False


def wanted_blobs(
    row: RunRow, replay: Replay, line: Sequence[CheckpointRow], devices: dict[str, DeviceRow]
) -> Iterator[WantedBlob]:
    """Every blob that a run's rows need."""
    for item in line:
        what = f"the blob of version {item.version}"
        yield WantedBlob(item.digest, item.round or 1, what, size=item.bytes, model=True)
    for drawn in replay.draws.all:
        if drawn.pool is not None:
            yield WantedBlob(drawn.pool, drawn.round, "the list of who waited")
    state = replay.state
    forgotten = state.round_number - (state.round is not None) - state.plan.retention.rounds
    made = {digest: (name, item) for item in reversed(line) for name, digest in item.named_tensors.items()}
    for digest in sorted(needed(line, forgotten)):
        name, read = made[digest]
        what = f"{called(name)} of version {read.version}"
        yield WantedBlob(digest, read.round or 1, what, still=_is_needed(row.run, digest, state.plan.retention.rounds))
    yield from _updates(row.run, replay, forgotten, devices)


def against_blob(blobs: HashedBlobs, wanted: WantedBlob, newest: Reader) -> Iterator[RunViolation]:
    """Findings for one blob. ``newest``: reads of committed data, also of what was committed since."""
    try:
        found, size = blobs.found(wanted.digest)
    except BlobError as error:
        if wanted.still is None or wanted.still(newest):
            yield RunViolation("5", wanted.round, f"{wanted.what} cannot be read: {error}")
        return
    if found != wanted.digest or (wanted.size is not None and size != wanted.size):
        yield RunViolation("5", wanted.round, f"{wanted.what} holds other bytes than were committed")
        return
    if wanted.model:
        try:
            blobs.header(wanted.digest)
        except (TensorError, BlobError, OSError) as error:
            yield RunViolation("5", wanted.round, f"{wanted.what} is no checkpoint: {error}")


def against_manifests(blobs: HashedBlobs, line: Sequence[CheckpointRow], state: RunState) -> Iterator[RunViolation]:
    """All versions of a model have the tensors of the first, with the roles to which devices agreed: no round changes
    their names, shapes or dtypes."""
    first = None
    for row in line:
        if not blobs.whole(row.digest):
            continue
        try:
            found = blobs.header(row.digest).manifest
        except (TensorError, BlobError, OSError):
            continue  # named where the blobs are read
        if first is None and digest_of(found, state.roles) != state.roles_digest:
            yield RunViolation("log", 1, "devices agreed to other tensors, or other roles of them, than the model's")
        first = found if first is None else first
        if found != first:
            what = f"the blob of version {row.version} has other tensors than the versions before"
            yield RunViolation("5", row.round or 1, what)


def _updates(run: str, replay: Replay, forgotten: int, devices: dict[str, DeviceRow]) -> Iterator[WantedBlob]:
    """Acknowledged updates of the open round, and of those whose retention is not over."""
    state = replay.state
    retained: list[tuple[int, str, str]] = []
    if state.round is not None:
        kind = kind_of(state.round)
        if kind.single_updates:
            retained += [(state.round.number, item.device, item.digest) for item in kind.contributions(state.round)]
        for digest in kind.blobs(state.round):
            still = _is_open(run, state.round.number)
            yield WantedBlob(digest, state.round.number, f"a message of the round, {short(digest)},", still=still)
    for row in replay.store.rounds(run, forgotten, state.round_number):
        if row.status not in TERMINAL or not KINDS[row.kind].single_updates:
            continue
        number = row.round
        retained += [(number, item.device, item.digest) for item in replay.store.contributions(run, number)]
        refused = replay.store.refusals(run, number)
        retained += [(number, item.device, item.digest) for item in refused if item.digest and item.kind == "abandoned"]
    for number, device, digest in retained:
        if (known := devices.get(device)) is None or not known.simulated:
            still = _is_retained(run, number, state.plan.retention.rounds)
            yield WantedBlob(digest, number, f"{device}'s update", still=still)


def _last_ended(reader: Reader, run: str) -> int:
    latest = max(reader.rows_by_round(run)["rounds"], default=0)
    row = reader.round(run, latest)
    return latest if row is None or row.status in TERMINAL else latest - 1


def _is_retained(run: str, number: int, retention: int) -> Still:
    return lambda reader: number > _last_ended(reader, run) - retention


def _is_open(run: str, number: int) -> Still:
    return lambda reader: _last_ended(reader, run) < number


def _is_needed(run: str, digest: str, retention: int) -> Still:
    return lambda reader: digest in needed(reader.checkpoints(run), _last_ended(reader, run) - retention)


def forgotten_rounds(replay: Replay) -> int:
    """The last round whose updates the plan's retention allowed to be deleted; 0 for none that counted any."""
    state = replay.state
    forgotten = state.round_number - (state.round is not None) - state.plan.retention.rounds
    numbers = range(forgotten, 0, -1)
    return next((number for number in numbers if replay.store.contributions(replay.run, number)), 0)
