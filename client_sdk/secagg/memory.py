"""A device's durable state of secure rounds: what must survive a crash, and what must survive the round.

Checkpoints go by the digest of their canonical tensors (``tensors.canonical_digest``), over all runs: one model has one
digest, in whatever file and whichever run. Of a live attempt the memory holds what a restarted device needs to continue
with the same bytes. When the attempt ends, or another on the same checkpoint replaces it, all of that is deleted.
Permanent are the *spent* checkpoints, the lowest revocation counter accepted, the newest attempt of each run, and the
learners that took part in secure rounds. So it grows: by 32 bytes for each checkpoint on which this device signed a
list, by 44 for each on which it advertised and never signed, by 44 for each run, and by 309 for each of the last
4,096 models into whose sums it has put an update, and by 312 for the last model of each of the last 256 runs. It
stays when the device leaves.

Memories are not changed: a step makes a changed copy of the newest one, under the storage's lock.

A device that is set back to an older copy of this memory has lost the record of what it signed, and no rule can protect
it: exclude the memory from backups that are restored, and never copy it to a second device. Deleted secrets may remain
in RAM, in swap, or in a disk's copy of an overwritten file: encrypt the device's disk.

A checkpoint must have exactly the tensors of the learner's model (``Update.model``): an ignored tensor would else make
another checkpoint of the same model, on which a device is not spent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from operator import itemgetter

from client_sdk.secagg.agreement import KEY_BYTES, AgreementKey
from client_sdk.secagg.errors import BadMessage, Superseded
from client_sdk.secagg.graph import NONCE_BYTES
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.nearness import SKETCH_BYTES
from client_sdk.secagg.roster import DEALING_BYTES, SELF_MASK_BYTES, AttemptSecrets
from client_sdk.secagg.shamir import SHARE_BYTES
from client_sdk.secagg.shares import SharePair
from client_sdk.secagg.statement import DIGEST_BYTES, WireReader, WireWriter

# ------------------------------------------------------------ live
# The progress of one live attempt, as a device stores it: the last step taken, and what the next ones need.
#
# Each secret is held only as long as a later step needs it. A step has no way back: it is one of these::
#
#     step         is held beside header and advertisement
#     advertised   own secrets, the certificate, the header's revocation list
#     shared       own secrets, the roster, the sealed shares for peers, in a complete graph the own pair of shares
#     masked       own secrets, the roster, the sealed shares for peers, the pairs of shares of all peers that shared,
#                  the masked vector
#     signed       the roster, the signed list, one share of each of those pairs


LEAST_BYTES = 1 + 9 * 8 + 4
"""Bytes of an attempt whose fields are all empty."""


class Step(IntEnum):
    """The last step of an attempt that was stored; its message may have been sent."""

    ADVERTISED = 1
    SHARED = 2
    MASKED = 3
    SIGNED = 4


_HELD = {
    Step.ADVERTISED: {"secrets", "certificate", "revocations"},
    Step.SHARED: {"secrets", "roster", "bundle"},
    Step.MASKED: {"secrets", "roster", "bundle", "held", "vector"},
    Step.SIGNED: {"roster", "survivors", "revealed"},
}
_OPTIONAL = {Step.SHARED: {"held"}}
_BYTES = ("header", "advertised", "certificate", "revocations", "roster", "bundle", "vector", "survivors", "revealed")
_PARTS = {part for held in _HELD.values() for part in held}


@dataclass(frozen=True, kw_only=True, repr=False)
class Live:
    """One live attempt. BadMessage where the fields do not fit the step."""

    step: Step
    header: bytes
    advertised: bytes
    """The device's own advertisement: the roster must hold it under the device's id."""
    secrets: AttemptSecrets | None = None
    """The secrets behind the advertisement, until a list is signed: until then a pair of shares may have to be
    opened."""
    certificate: bytes = b""
    """The certificate that is shown with the advertisement, until a roster is accepted: a device that renews its own
    meanwhile shows the same one again."""
    revocations: bytes = b""
    """The revocation list that the header names, until a roster is accepted: each entry of it was vouched for then."""
    roster: bytes = b""
    """The one roster accepted for this advertisement."""
    bundle: bytes = b""
    """The sealed shares for peers, until a list is signed: a peer may complain of its row."""
    held: dict[int, SharePair] = field(default_factory=dict)
    """Dealer's place -> the pair of its shares; in a complete graph the device's own pair too. Until a list is
    signed."""
    vector: bytes = b""
    """The packed masked vector, which is sent again byte for byte, until a list is signed."""
    survivors: bytes = b""
    """The one list signed."""
    revealed: bytes = b""
    """What is revealed under that list, once others have signed it too: one share for each peer. The other share is
    deleted."""

    def __post_init__(self) -> None:
        held = {part for part in _PARTS if getattr(self, part)}
        if not self.header or not self.advertised or held - _OPTIONAL.get(self.step, set()) != _HELD[self.step]:
            raise BadMessage(f"memory of secure rounds: what is held is not what the step {self.step.name} holds")

    def shared(self, *, roster: bytes, bundle: bytes, held: dict[int, SharePair]) -> Live:
        """After sharing: this advertisement has this roster."""
        return replace(
            self, step=Step.SHARED, certificate=b"", revocations=b"", roster=roster, bundle=bundle, held=held
        )

    def masked(self, *, held: dict[int, SharePair], vector: bytes) -> Live:
        """After masking."""
        return replace(self, step=Step.MASKED, held=held, vector=vector)

    def signed(self, *, survivors: bytes, revealed: bytes) -> Live:
        """After signing: the device's own secrets are gone, and of each pair of shares one is left."""
        return replace(
            self,
            step=Step.SIGNED,
            secrets=None,
            bundle=b"",
            held={},
            vector=b"",
            survivors=survivors,
            revealed=revealed,
        )

    def write(self, out: WireWriter) -> None:
        """Append this attempt to a memory's bytes."""
        out.number(self.step, 1)
        secrets = self.secrets
        if secrets is not None:
            out.fixed(secrets.share_key.private, KEY_BYTES).fixed(secrets.mask_key.private, KEY_BYTES)
            out.fixed(secrets.self_mask, SELF_MASK_BYTES).fixed(secrets.nonce, NONCE_BYTES)
            out.fixed(secrets.dealing, DEALING_BYTES)
        for name in _BYTES:
            part = getattr(self, name)
            out.number(len(part), 8).fixed(part, len(part))
        out.number(len(self.held), 4)
        for place in sorted(self.held):
            out.number(place, 4).fixed(self.held[place].self_mask, SHARE_BYTES)
            out.fixed(self.held[place].mask_key, SHARE_BYTES)

    @classmethod
    def read(cls, read: WireReader) -> Live:
        """Decode what ``write`` appended. BadMessage where a field does not fit the step."""
        number = read.number(1)
        if number not in {step.value for step in Step}:
            read.refuse("an attempt is at no step")
        step, secrets = Step(number), None
        if "secrets" in _HELD[step]:
            keys = AgreementKey(read.fixed(KEY_BYTES)), AgreementKey(read.fixed(KEY_BYTES))
            rest = read.fixed(SELF_MASK_BYTES), read.fixed(NONCE_BYTES), read.fixed(DEALING_BYTES)
            secrets = AttemptSecrets(*keys, *rest)
        parts = {name: read.fixed(read.count(8, 1)) for name in _BYTES}
        held = {}
        for _ in range(read.count(4, 4 + 2 * SHARE_BYTES)):
            place = read.number(4)
            held[place] = SharePair(read.fixed(SHARE_BYTES), read.fixed(SHARE_BYTES))
        return cls(step=step, secrets=secrets, held=held, **parts)


# ------------------------------------------------------------ memory


KIND = 64
FORMAT = 5
ORDER_BYTES = 12
"""Round (8 bytes) and attempt (4 bytes)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Advertisements:
    """Advertisements made on one checkpoint, in all runs."""

    count: int
    last_at: float
    """Unix seconds, device's clock."""


DAY_S = 86_400.0
SKETCH_SECRET_BYTES = 32
MOST_ANSWERED = 4096
"""Models that a device remembers; the oldest goes first. About 1 MB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered:
    """A model into whose sum this device has put an update."""

    at: float
    """The last time: Unix seconds, device's clock."""
    near: bool = False
    """It was near to one before, and the owner allowed that."""
    vectors: int = 1
    """Masked vectors of updates on it, of those that left with less than a day between them: each may be in another
    sum, also where this device signs no list."""
    sketch: bytes
    """``nearness.sketch_of`` its parameters."""


MOST_KNOWN = 256
"""Runs of which a device knows the last model; the oldest goes first. About 80 kB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """The last model of a run that this device has accepted."""

    version: int
    at: float
    """Unix seconds, device's clock."""
    sketch: bytes
    """``nearness.sketch_of`` its parameters."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Memory:
    """All durable state of secure rounds."""

    revocations: int = 0
    """The lowest counter of a revocation list by which the device begins an attempt: that of the newest by which it
    has begun one, or which it saw while no round was under way. A list that it sees during a round does not bind that
    round, whose header was announced before."""
    spent: frozenset[bytes] = frozenset()
    """Checkpoints on which this device signed a list. Never removed."""
    advertisements: Mapping[bytes, Advertisements] = field(default_factory=dict)
    """By checkpoint, until that is spent."""
    order: Mapping[bytes, tuple[int, int]] = field(default_factory=dict)
    """``AttemptHeader.run_digest`` -> round and attempt of the run's newest attempt that was begun: an older or equal
    one is a replay."""
    live: Mapping[bytes, Live] = field(default_factory=dict)
    """By checkpoint: at most one attempt on each."""
    plain: frozenset[str] | None = None
    """The learners and Flower apps for which the owner lets the data go in clear. None: for all, since this device has
    agreed to no secure round yet. The first one makes it empty, for all learners and apps: the data are the same."""

    sketch_secret: bytes = b""
    """``SKETCH_SECRET_BYTES`` by which models are sketched; empty before the first. It is never drawn anew, also where
    the device leaves and enrols again: sketches by another secret are near to none."""
    answered: Mapping[bytes, Answered] = field(default_factory=dict)
    """By checkpoint, in the order in which they were last masked, the last ``MOST_ANSWERED``."""
    known: Mapping[bytes, Known] = field(default_factory=dict)
    """By run (``contribution.run_key``), in the order in which they were last accepted, the last ``MOST_KNOWN``."""

    of_data: tuple[float, ...] = ()
    """When masked vectors of the same data left in the last days, from this and other folders that count together: Unix
    seconds by their clocks. The storage gives them with each memory, and keeps them elsewhere."""

    def answered_since(self, before: Memory) -> Answered | None:
        """The model that was answered last, where one more update has gone into a sum of it than in ``before``; else
        None. A clock that was set back changes times alone, and counts nothing."""
        if not self.answered:
            return None
        digest, last = [*self.answered.items()][-1]
        if not before.answered or [*before.answered][-1] != digest:
            return last
        old = before.answered[digest]
        return last if last.vectors > old.vectors or last.at > old.at else None

    def require_seen(self, tensors: bytes, seen: Live | None) -> None:
        """Raise Superseded where the stored attempt on this checkpoint is another than ``seen``, or at another step."""
        if _mark(self.live.get(tensors)) != _mark(seen):
            raise Superseded

    def moved(self, tensors: bytes, seen: Live | None, live: Live) -> Memory:
        """A copy in which ``live`` is the attempt on this checkpoint, in place of ``seen``, from which it was made.
        Superseded as ``require_seen``."""
        self.require_seen(tensors, seen)
        return replace(self, live={**self.live, tensors: live})

    def begun(self, header: AttemptHeader, tensors: bytes, at: float) -> Memory:
        """A copy in which this device has advertised under ``header`` at ``at`` (Unix seconds)."""
        before = self.advertisements.get(tensors)
        made = Advertisements(count=1 + (before.count if before else 0), last_at=at)
        return replace(
            self,
            advertisements={**self.advertisements, tensors: made},
            order={**self.order, header.run_digest: (header.round, header.attempt)},
        )

    def sketching(self, secret: bytes) -> Memory:
        """A copy with this secret for sketches; the same object where it has one."""
        return self if self.sketch_secret else replace(self, sketch_secret=secret)

    def answering(self, tensors: bytes, model: Answered) -> Memory:
        """A copy that remembers that this device has put an update into a sum of this model. The same object where it
        has no sketch, as in simulations."""
        if not model.sketch:
            return self
        before = self.answered.get(tensors)
        if before is not None and before.at > model.at - DAY_S:
            model = replace(model, vectors=before.vectors + 1)
        others = [(digest, other) for digest, other in self.answered.items() if digest != tensors]
        return replace(self, answered=dict([*others, (tensors, model)][-MOST_ANSWERED:]))

    def knowing(self, run: bytes, model: Known, shortest_round_s: float) -> Memory:
        """A copy that knows this model of the run: the same object where it knows one that is so young that no round
        can have passed since, from which the next one is measured too."""
        before = self.known.get(run)
        if before is not None and before.at <= model.at < before.at + shortest_round_s:
            return self
        others = [(key, other) for key, other in self.known.items() if key != run]
        return replace(self, known=dict([*others, (run, model)][-MOST_KNOWN:]))

    def is_replay(self, header: AttemptHeader) -> bool:
        """Whether an attempt of this run was begun that is as new as ``header`` or newer."""
        newest = self.order.get(header.run_digest)
        return newest is not None and (header.round, header.attempt) <= newest

    def signed_on(self, tensors: bytes) -> Memory:
        """A copy in which that checkpoint is spent. Its advertisements count no more."""
        made = {digest: tried for digest, tried in self.advertisements.items() if digest != tensors}
        return replace(self, spent=self.spent | {tensors}, advertisements=made)

    def is_spent(self, tensors: bytes) -> bool:
        """Whether a list was signed on the checkpoint of these tensors."""
        return tensors in self.spent

    def bound_by(self, counter: int) -> Memory:
        """A copy by which attempts begin with the list of this counter or a newer one; the same object where they do
        already."""
        return replace(self, revocations=counter) if counter > self.revocations else self

    def ended(self, header: bytes) -> Memory:
        """A copy without the attempt of this header; the same object where that attempt is not live. The driver stores
        this when the round is over or it gives the attempt up: an abandoned round ends without the answer to *unmask*.
        Spent checkpoints stay spent."""
        left = {tensors: live for tensors, live in self.live.items() if live.header != header}
        return replace(self, live=left) if len(left) < len(self.live) else self

    def swept(self, at: float) -> Memory:
        """A copy without attempts that have expired by ``at`` (Unix seconds), and without times after ``at``: where the
        clock was set back, pauses begin anew. The same object where nothing changes."""
        left = {tensors: live for tensors, live in self.live.items() if _expiry(live) >= at}
        ahead = {digest: replace(made, last_at=at) for digest, made in self.advertisements.items() if made.last_at > at}
        later = {tensors: replace(model, at=at) for tensors, model in self.answered.items() if model.at > at}
        if len(left) == len(self.live) and not ahead and not later:
            return self
        advertisements, answered = {**self.advertisements, **ahead}, {**self.answered, **later}
        return replace(self, live=left, advertisements=advertisements, answered=answered)

    def masked_for(self, learner: str) -> Memory:
        """A copy in which this device has agreed to a secure round of ``learner``: what the owner said of it before
        counts no more."""
        return replace(self, plain=(self.plain or frozenset()) - {learner})

    def plain_again(self, name: str) -> Memory:
        """A copy by which data may go in clear for this learner or Flower app. Only the owner may ask for it."""
        return self if self.plain is None else replace(self, plain=self.plain | {name})

    @property
    def marks(self) -> Memory:
        """A copy without any live attempt, so without any secret but that of sketches: what was signed, tried, seen and
        agreed to."""
        return replace(self, live={})

    @property
    def encoded(self) -> bytes:
        """The bytes to store. They hold secrets of live attempts: protect them like the device's key."""
        out = WireWriter(KIND).number(FORMAT, 2).number(self.revocations, 8)
        out.number(int(self.plain is not None), 1).number(len(self.plain or ()), 4)
        for name in sorted(self.plain or ()):
            out.text(name)
        out.number(len(self.spent), 4)
        for digest in sorted(self.spent):
            out.fixed(digest, DIGEST_BYTES)
        out.number(len(self.advertisements), 4)
        for digest, made in sorted(self.advertisements.items(), key=itemgetter(0)):
            out.fixed(digest, DIGEST_BYTES).number(made.count, 4).float(made.last_at)
        out.number(len(self.order), 4)
        for run, (number, attempt) in sorted(self.order.items()):
            out.fixed(run, DIGEST_BYTES).number(number, 8).number(attempt, 4)
        out.number(len(self.sketch_secret), 1).fixed(self.sketch_secret, len(self.sketch_secret))
        out.number(len(self.answered), 4)
        for tensors, model in self.answered.items():
            out.fixed(tensors, DIGEST_BYTES).float(model.at).number(int(model.near), 1)
            out.number(model.vectors, 4).fixed(model.sketch, SKETCH_BYTES)
        out.number(len(self.known), 4)
        for run, last in self.known.items():
            out.fixed(run, DIGEST_BYTES).number(last.version, 8).float(last.at).fixed(last.sketch, SKETCH_BYTES)
        out.number(len(self.live), 4)
        for tensors, live in sorted(self.live.items(), key=itemgetter(0)):
            live.write(out.fixed(tensors, DIGEST_BYTES))
        return out.checked()

    @classmethod
    def parse(cls, data: bytes) -> Memory:
        """Decode the bytes of ``encoded``. BadMessage where any bit was changed: a device whose memory is damaged takes
        part in no secure round, since it cannot know what it signed."""
        read = WireReader.checked(data, KIND, "memory of secure rounds")
        if read.number(2) != FORMAT:
            read.refuse("it is of another version of this package")
        revocations = read.number(8)
        joined = read.number(1)
        plain = frozenset(read.text() for _ in range(read.count(4, 2)))
        if joined > 1 or (plain and not joined):
            read.refuse("it does not say whether data may go in clear")
        spent = frozenset(read.fixed(DIGEST_BYTES) for _ in range(read.count(4, DIGEST_BYTES)))
        made = {
            read.fixed(DIGEST_BYTES): Advertisements(count=read.number(4), last_at=read.float())
            for _ in range(read.count(4, DIGEST_BYTES + 12))
        }
        order = {
            read.fixed(DIGEST_BYTES): (read.number(8), read.number(4))
            for _ in range(read.count(4, DIGEST_BYTES + ORDER_BYTES))
        }
        sketch_secret = read.fixed(read.count(1, 1))
        if len(sketch_secret) not in (0, SKETCH_SECRET_BYTES):
            read.refuse("its secret for sketches has another length")
        answered = {
            read.fixed(DIGEST_BYTES): Answered(
                at=read.float(), near=bool(read.number(1)), vectors=read.number(4), sketch=read.fixed(SKETCH_BYTES)
            )
            for _ in range(read.count(4, DIGEST_BYTES + 13 + SKETCH_BYTES))
        }
        known = {
            read.fixed(DIGEST_BYTES): Known(version=read.number(8), at=read.float(), sketch=read.fixed(SKETCH_BYTES))
            for _ in range(read.count(4, DIGEST_BYTES + 16 + SKETCH_BYTES))
        }
        live = {read.fixed(DIGEST_BYTES): Live.read(read) for _ in range(read.count(4, DIGEST_BYTES + LEAST_BYTES))}
        read.end()
        return cls(
            revocations=revocations,
            spent=spent,
            advertisements=made,
            order=order,
            live=live,
            plain=plain if joined else None,
            sketch_secret=sketch_secret,
            answered=answered,
            known=known,
        )


def _mark(live: Live | None) -> tuple[bytes, int] | None:
    """What tells one stored state of an attempt from another: a header is begun once, and a step is taken once."""
    return None if live is None else (live.header, live.step)


def _expiry(live: Live) -> int:
    return AttemptHeader.parse(live.header).expires_at
