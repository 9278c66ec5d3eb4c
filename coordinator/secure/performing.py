"""Performs the engine's actions of a secure round, and writes the checkpoint of its commit: of the unmasked sum, or
that which advances an exhausted run.

Each action ends in an event, or in nothing where it is no longer wanted. The runtime does the commit itself and deletes
blobs. Any action may be performed twice, by several replicas, and after a crash: the same blobs give the same sum and
the same checkpoint. Only the sum is unmasked; no blob, event or log line holds a rebuilt secret.
``client_sdk.secagg.quantize`` converts its lanes to a mean, the plan's codec decodes it, and ``aggregator`` makes the
checkpoint of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import BinaryIO, Protocol, assert_never

import numpy as np

from client_sdk import codecs
from client_sdk.codecs import FLOAT32, NOTHING_DRAWN, LinearCodec
from client_sdk.secagg.errors import BadVector, SecaggError
from client_sdk.secagg.graph import ring_order
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.lanes import Lanes, lane_bits, lane_dtype, pack, packed_bytes, unpack
from client_sdk.secagg.masks import Masker
from client_sdk.secagg.noise import NO_NOISE, signed
from client_sdk.secagg.quantize import Quantizer
from client_sdk.secagg.roster import MaskingCohort, Roster, RosterEntry, Vouching, join_all
from client_sdk.secagg.statement import SIGNATURE_BYTES, require_signed
from client_sdk.secagg.survivors import RevealedShares
from client_sdk.tensors.exact_sum import FRACTION_BITS
from client_sdk.tensors.floats import Float32, narrow, widen
from client_sdk.tensors.manifest import Manifest, OutOfRange, TensorSpec, numpy_dtype
from client_sdk.tensors.safetensors_file import read_header
from coordinator.blobs import BlobError, Blobs, Gone
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.aggregation.combining import Blocks, Computed
from coordinator.engine.aggregation.parameters import Settings
from coordinator.engine.event_fields import Evidence, Group, sum_digest
from coordinator.engine.named_tensors import NamedTensors, Small
from coordinator.engine.secure.state import SecureRound
from coordinator.engine.state import RunState
from coordinator.folding.aggregator import BLOCK, Aggregator, CannotAggregate, NewCheckpoint
from coordinator.folding.named_tensors import HashedReads
from coordinator.secure.announcing import Authorities, announce
from coordinator.secure.arrived import ShortMessage
from coordinator.secure.attempt import Attempt, Attempts
from coordinator.secure.blob_formats import body_of, parse_entry, sum_bytes, sum_of
from coordinator.secure.opening import WORKERS, Lost, MakeMasker, Sum, open_sum

Make = Callable[[RunState, float], ev.Event | None]
"""An event from the newest state and the time, or None for nothing."""
Committing = fx.CommitSum | fx.Advance
SecureAction = fx.Announce | fx.Gather | fx.Open


class SecureRun(Protocol):
    """The run's state and its log."""

    @property
    def digest(self) -> bytes:
        """Tells the run from all others: ``announcing.run_digest``."""
        ...

    @property
    def state(self) -> RunState:
        """The newest durable state, whichever replica wrote it."""
        ...

    @property
    def known(self) -> RunState:
        """The newest state that this process has read."""
        ...

    @property
    def recent(self) -> RunState:
        """The newest durable state as of a moment ago: what costs nothing where many ask for it."""
        ...

    def submit(self, make: Make) -> Sequence[fx.Effect]:
        """Apply the event under the run's lock, and return its effects once they are durable."""
        ...

    def enter(self, make: Make, short: ShortMessage | None = None) -> Callable[[], Sequence[fx.Effect]]:
        """Queues the event. The function that it returns does the rest of ``submit``, for all that is queued then.
        ``short``: the message that the event accepts, which becomes durable with it, or not at all."""
        ...

    def short_messages(self, digests: Collection[str]) -> Mapping[str, bytes]:
        """The contents of those of these messages that are stored beside their events, by digest."""
        ...


class SecureWork:
    """The coordinator's own work in the secure rounds of one run."""

    def __init__(
        self,
        run: SecureRun,
        blobs: Blobs,
        aggregator: Callable[[], Aggregator],
        authority: Authorities,
        attempts: Attempts,
        workers: int = WORKERS,
        masker: MakeMasker = Masker,
    ) -> None:
        self._run, self._blobs, self._aggregator = run, blobs, aggregator
        self._authority, self._attempts, self._workers, self._masker = authority, attempts, workers, masker

    def perform(self, action: SecureAction) -> None:
        """Perform one action. BlobError for a failure of this machine: the action may then be repeated."""
        try:
            match action:
                case fx.Announce():
                    self._announce(action)
                case fx.Gather():
                    self._gather(action)
                case fx.Open():
                    self._open(action)
                case _:
                    assert_never(action)
        except Gone:  # usually the round has ended meanwhile; else it waits until the right bytes are back
            if wanted(self._run.state, action):
                raise

    def checkpoint(self, action: Committing) -> NewCheckpoint:
        """Write the checkpoint of a commit, the same each time. CannotAggregate, BlobError. The caller holds the
        commit's fence."""
        if isinstance(action, fx.Advance):
            return advance(self._blobs, action.parent, self._aggregator().layout.parameters)
        secure = self._run.state.secure
        if secure is None:
            raise CannotAggregate(f"round {action.round} is over")
        header, counted = self._attempts.header(secure), {item.device for item in action.contributions}
        totals, spread = [], NO_NOISE
        for number, digest in sorted(action.sums.items()):
            order, packed = secure.groups[number].order, sum_of(self._attempts.bytes_of(digest))
            bits, noise = header.lane_bits(len(order)), header.spread(len(order))
            lanes = signed(unpack(packed, header.lanes, bits), bits, noise)
            totals.append((lanes, len(counted.intersection(order))))
            spread += noise
        return commit_sums(
            self._aggregator(),
            action.round,
            action.parent,
            header.quantizer,
            totals,
            action.named_tensors,
            action.small,
            action.settings,
            codec=codecs.linear(f"{header.codec}@{header.codec_version}"),
            seed=header.codec_seed,
            spread=spread,
            updates=sum_digest(
                secure.header, ((item.device, item.digest) for item in action.contributions), action.sums.values()
            ),
        )

    def forget(self) -> None:
        """Free the memory of a round that has ended."""
        self._attempts.forget()

    # ------------------------------------------------------------ one for each action

    def _announce(self, action: fx.Announce) -> None:
        aggregator, authority = self._aggregator(), self._authority()

        def announced(state: RunState, at: float) -> ev.Announced | None:
            if not wanted(state, action) or state.secure is None or state.secure.header:
                return None
            task = aggregator.algorithm.task(state.plan, state.version, state.small)
            header = announce(
                state, run=self._run.digest, task=task, layout=aggregator.layout, authority=authority, at=at
            )
            return ev.Announced(
                at=at,
                round=action.round,
                attempt=action.attempt,
                header=header.encoded.hex(),
                expires_at=header.expires_at,
            )

        self._run.submit(announced)

    def _gather(self, action: fx.Gather) -> None:
        state = self._run.state
        if not wanted(state, action) or state.secure is None or state.secure.roster:
            return
        if tuple(sorted(state.secure.advertised.items())) != action.advertised:
            return  # a device was excluded meanwhile, and another action names the others
        header = self._attempts.header(state.secure)
        shown = self._attempts.messages(digest for _, digest in action.advertised)
        entries = [parse_entry(message) for message in shown]
        try:
            roster, cohorts = gather(header, entries, self._authority(header.expires_at).vouched)
        except Spoiled as spoiled:
            for device, reason in spoiled.devices.items():
                self._submit(action, ev.Faulted, attempt=action.attempt, device=device, reason=reason)
            return
        digest = self._blobs.put(roster.encoded)
        self._attempts.cache(state.secure.header, digest, cohorts)
        groups = tuple(numbers_of(cohort) for cohort in cohorts)
        self._made(action, digest, ev.Rostered, attempt=action.attempt, groups=groups)

    def _open(self, action: fx.Open) -> None:
        for group in self._attempts_to_open(action):
            self._open_group(action, *group)

    def _attempts_to_open(self, action: fx.Open) -> Iterator[tuple[Attempt, SecureRound]]:
        """The groups that are to be opened, each as the newest state has it."""
        opened = set[int]()
        while wanted(state := self._run.state, action) and (secure := state.secure) is not None and secure.opening:
            left = secure.standing.keys() - secure.sums.keys() - opened
            if not left:
                return
            number = min(left)
            opened.add(number)
            yield self._attempts.groups(secure)[number], secure

    def _open_group(self, action: fx.Open, attempt: Attempt, secure: SecureRound) -> None:
        cohort, where = attempt.cohort, {"attempt": action.attempt, "group": attempt.group}
        try:
            total = self._opened(attempt, secure)
        except Lost as error:
            lost = tuple(cohort.device(place) for place in error.places)
            self._submit(action, ev.OpeningFailed, lost=lost, reason=str(error), **where)
        except SecaggError as error:
            self._submit(action, ev.OpeningFailed, lost=(), reason=str(error), **where)
        else:
            stored = sum_bytes(pack(total.lanes, cohort.roster.lane_bits), cohort.h)
            digest = self._blobs.put(stored)
            self._made(action, digest, ev.Opened, bytes=len(stored), weight=total.weight, **where)

    def _opened(self, attempt: Attempt, secure: SecureRound) -> Sum:
        cohort, survivors = attempt.cohort, attempt.survivors(secure)
        revealed = (
            RevealedShares.parse(body_of(message), survivors, cohort.n)
            for message in self._attempts.messages(attempt.mine(secure.revealed).values())
        )
        vectors = self._vectors(attempt, secure)
        return open_sum(
            cohort,
            survivors,
            attempt.sharers(secure),
            vectors,
            revealed,
            self._workers,
            self._masker,
            attempt.lacks(secure),
        )

    def _vectors(self, attempt: Attempt, secure: SecureRound) -> Iterator[memoryview]:
        """The survivors' masked vectors in sequence, in one reused buffer."""
        length = packed_bytes(attempt.cohort.header.lanes, attempt.cohort.roster.lane_bits)
        buffer = bytearray(length + SIGNATURE_BYTES)
        for digest in attempt.mine(secure.masked).values():
            with self._blobs.open(digest) as file:
                if file.readinto(buffer) != len(buffer):  # type: ignore[attr-defined]
                    raise BlobError(f"the blob {digest} is no masked vector of this round")
            yield memoryview(buffer)[:length]

    def _submit(self, action: SecureAction, event: Callable[..., ev.Event], **fields: object) -> Sequence[fx.Effect]:
        return self._run.submit(lambda state, at: event(at=at, round=action.round, **fields))

    def _made(self, action: SecureAction, digest: str, event: Callable[..., ev.Event], **fields: object) -> None:
        """Submit the event of a new blob. Where the event is refused, delete the blob."""
        effects = self._submit(action, event, digest=digest, **fields)
        if any(isinstance(effect, fx.Refused) for effect in effects):
            drop(self._run, self._blobs, digest)


def drop(run: SecureRun, blobs: Blobs, digest: str) -> None:
    """Delete the blob of a refused message, unless the state names it since the same bytes were accepted.
    Both happen under the run's lock, so that no request can be accepted in between."""

    def unless_named(state: RunState, at: float) -> None:
        if state.secure is None or digest not in state.secure.blobs:
            blobs.delete(digest)

    run.submit(unless_named)


def wanted(state: RunState, action: SecureAction) -> bool:
    """Whether the attempt is still under way."""
    return state.round_number == action.round and state.phase != "idle" and state.current.attempt == action.attempt


def numbers_of(cohort: MaskingCohort) -> Group:
    """The numbers of a group of the roster that the engine needs."""
    parameters = cohort.parameters
    nonces = [entry.advertisement.nonce for entry in cohort.roster.entries]
    return Group(
        order=tuple(cohort.device(place) for place in range(cohort.n)),
        threshold=parameters.threshold,
        signers=parameters.signers,
        fewest=cohort.fewest_survivors,
        ring=() if parameters.complete else tuple(ring_order(nonces)),
        neighbours=0 if parameters.complete else parameters.neighbours,
    )


# ------------------------------------------------------------ the roster
# Devices refuse a whole roster where one entry of it is invalid, so devices that would make it invalid are found here,
# each with the reason: a certificate that was revoked meanwhile, or a key, commitment, nonce or identity that two
# devices show. Then both are named, since its owner is not known.


class Spoiled(SecaggError):
    """Devices that a roster of this header cannot hold, each with the reason."""

    def __init__(self, devices: dict[str, str]) -> None:
        super().__init__(f"{len(devices)} devices spoil the roster")
        self.devices = dict(sorted(devices.items()))


def gather(
    header: AttemptHeader, entries: Iterable[RosterEntry], vouched: Vouching
) -> tuple[Roster, tuple[MaskingCohort, ...]]:
    """The roster of an attempt from the devices' advertisements, whatever their order, and the cohorts of its groups.
    Spoiled, which names all devices that make the roster invalid; SecaggError where there are too few."""
    spoiling: dict[str, str] = {}
    good: list[tuple[RosterEntry, str]] = []
    for entry in entries:
        try:
            good.append((entry, _identity(header, entry, vouched)))
        except SecaggError as error:
            spoiling[entry.advertisement.device] = str(error)
    seen = Counter(value for entry, identity in good for value in _marks(entry, identity))
    for entry, identity in good:
        if any(seen[value] > 1 for value in _marks(entry, identity)):
            spoiling[entry.advertisement.device] = "another device shows the same key, commitment, nonce or identity"
    if spoiling:
        raise Spoiled(spoiling)
    roster = Roster.of(header, [entry for entry, _ in good])
    return roster, join_all(header, roster, vouched)


def _identity(header: AttemptHeader, entry: RosterEntry, vouched: Vouching) -> str:
    shown = entry.advertisement
    identity = vouched(shown.device, entry.certificate)
    require_signed(identity, entry.signature, header.digest, "advertise", shown.encoded, f"device {shown.device}")
    return identity


def _marks(entry: RosterEntry, identity: str) -> list[tuple[str, bytes]]:
    """The values that may occur in a roster only once."""
    shown = entry.advertisement
    return [
        ("device", shown.device.encode()),
        ("identity", bytes.fromhex(identity)),
        ("key", shown.share_key),
        ("key", shown.mask_key),
        ("commitment", shown.commitment),
        ("nonce", shown.nonce),
    ]


_COPIED = 1 << 20
_LARGE_SHARE = 0.3
"""From this on it is said how much of a step is rounding: the error is then a third of the step or more."""
_MOST_DOUBLINGS = 160
"""From 2^-32 up to float32's largest values."""


def commit_sums(
    aggregator: Aggregator,
    round: int,
    parent: str,
    quantizer: Quantizer,
    totals: Sequence[tuple[Lanes, int]],
    named_tensors: NamedTensors | None = None,
    small: Small | None = None,
    settings: Settings | None = None,
    *,
    codec: LinearCodec = FLOAT32,
    seed: bytes = NOTHING_DRAWN,
    spread: Fraction = NO_NOISE,
    updates: str = "",
) -> NewCheckpoint:
    """Write the checkpoint that follows ``parent`` with what the survivors' clipped updates give, and the named tensors
    and the small state after it. ``totals``: of each group the sum of its survivors' lanes, and how many they are. A
    rule that needs the sum alone gets the weighted mean of all; any other the groups' means, each as one update of
    weight 1. ``named_tensors``, ``small``: those before; ``codec`` and its ``seed``: those of the attempt's header;
    ``spread``: the variance of the noise in all sums together; ``updates``: what the evidence says of them.
    CannotAggregate where there is no such mean or no such checkpoint.

    A mean of encoded values is computed in float64, rounded to float32 and decoded in a fixed order of operations: the
    same sums give the same bits. Memory beside the sums: a few blocks.
    """
    survivors = sum(count for _, count in totals)
    together = totals[0][0]
    if len(totals) > 1:
        together = together.astype(np.int64 if spread else lane_dtype(lane_bits(survivors, quantizer.q)))
        for lanes, _ in totals[1:]:
            together += lanes
    parameters = aggregator.layout.parameters.elements

    def mean_of(total: Lanes, count: int) -> Blocks:
        return _mean(quantizer, total, count, codec, seed, spread, parameters)

    mean = mean_of(together, survivors)
    groups = [] if aggregator.needs_sum else [mean_of(*total) for total in totals]
    made = aggregator.apply(round, parent, mean, named_tensors, small, settings, updates, survivors, groups)
    if quantizer.clip:
        made = aggregator.with_clip(made, small, quantizer.within(together, survivors))
    share = quantizer.rounding_share(together[: codec.count(parameters)], survivors)
    return made._replace(rounding=float(f"{share:.2f}") if share >= _LARGE_SHARE else 0.0)


def _mean(
    quantizer: Quantizer,
    total: Lanes,
    survivors: int,
    codec: LinearCodec,
    seed: bytes,
    spread: Fraction,
    parameters: int,
) -> Blocks:
    """The weighted mean of the survivors' values, decoded; with noise their sum over the divisor. CannotAggregate where
    they have none."""
    try:
        weight = quantizer.require_possible(total, survivors, spread)
        if weight == 0:
            raise BadVector("the survivors' weights sum to nothing, which has no mean")
    except BadVector as error:
        raise CannotAggregate(str(error)) from None
    weight = quantizer.divisor * quantizer.weight_cap or weight

    def encoded(start: int, count: int) -> Float32:
        return quantizer.mean_of(total[start : start + count], survivors, weight).astype(np.float32)

    decoded, first = codec.back(encoded, parameters, seed), codec.count(parameters)
    of_statistics = quantizer.of_statistics
    behind = total[first : first + of_statistics.count]

    def mean(start: int, count: int) -> Float32:
        if start < parameters:
            return decoded(start, count)
        return of_statistics.mean_of(behind, start - parameters, count, survivors, weight).astype(np.float32)

    return Computed(mean)


def advance(blobs: Blobs, parent: str, averaged: Manifest) -> NewCheckpoint:
    """Write ``parent`` with one of its ``averaged`` values increased by one unit of the exact scale, 2^-32.

    It changes the first value that this step changes in its dtype; where there is none, the first that twice the step
    changes, and so on. Values only increase, so no older digest, with its spent devices, can occur again.
    """
    with blobs.open(parent) as source:
        header = read_header(source)
        for doubling in range(_MOST_DOUBLINGS):
            step = np.float32(np.ldexp(1.0, doubling - FRACTION_BITS))
            for name in header.manifest:
                if name in averaged:
                    begin = header.offsets[name][0]
                    found = _first_moved(source, header.manifest[name], begin, step)
                    if found is not None:
                        digest, size, read = _patched(blobs, source, *found)
                        return NewCheckpoint(digest, size, evidence=Evidence(parent=read))
    raise CannotAggregate("no value of the model can be moved")


def _first_moved(source: BinaryIO, spec: TensorSpec, begin: int, step: np.float32) -> tuple[int, bytes] | None:
    """(place in the file, new bytes) of the tensor's first value that ``step`` changes."""
    dtype = numpy_dtype(spec.dtype)
    for first in range(0, spec.elements, BLOCK):
        source.seek(begin + first * dtype.itemsize)
        data = source.read(min(BLOCK, spec.elements - first) * dtype.itemsize)
        here = widen(np.frombuffer(data, dtype))
        with np.errstate(over="ignore"):
            there = here + step
        for place in np.flatnonzero(np.isfinite(there) & (there > here)):
            try:
                moved = narrow(there[place : place + 1], spec.dtype)
            except OutOfRange:
                continue
            if widen(moved)[0] > here[place]:
                return begin + (first + int(place)) * dtype.itemsize, moved.tobytes()
    return None


def _patched(blobs: Blobs, source: BinaryIO, place: int, piece: bytes) -> tuple[str, int, str]:
    """Write the file with ``piece`` at ``place``. Returns its digest and size, and the digest of what
    was read."""
    source.seek(0)
    reads = HashedReads(source)
    with blobs.spool() as spool:
        left = place
        while left:
            chunk = reads.read(min(left, _COPIED))
            if not chunk:
                raise BlobError("the checkpoint ends before its header says")
            spool.write(chunk)
            left -= len(chunk)
        spool.write(piece)
        reads.read(len(piece))
        while chunk := reads.read(_COPIED):
            spool.write(chunk)
        return spool.commit(), spool.size, reads.digest
