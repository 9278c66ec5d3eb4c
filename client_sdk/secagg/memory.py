"""A device's durable state of secure rounds: what must survive a crash, and what must survive the round.

Of a live attempt it holds what a restarted device needs to continue with the same bytes. It holds each secret only as
long as a later step needs it: the device's own secrets until its vector is masked, peers' shares until a list is
signed, then only what may be revealed under that list. When the attempt ends, or another replaces it, all of that is
deleted. Permanent are the *spent* checkpoints, the highest revocation counter seen, and the learners that took part in
secure rounds.

A device that is set back to an older copy of this memory has lost the record of what it signed, and no rule can protect
it: exclude the memory from backups that are restored, and never copy it to a second device. Deleted secrets may remain
in RAM, in swap, or in a disk's copy of an overwritten file: encrypt the device's disk.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from client_sdk.secagg.advertisement import SELF_MASK_BYTES, AttemptSecrets
from client_sdk.secagg.agreement import KEY_BYTES, AgreementKey
from client_sdk.secagg.graph import NONCE_BYTES
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.shamir import SHARE_BYTES
from client_sdk.secagg.shares import SharePair
from client_sdk.secagg.statement import DIGEST_BYTES
from client_sdk.secagg.wire import WireReader, WireWriter

KIND = 64
FORMAT = 2


@dataclass(frozen=True, kw_only=True, repr=False)
class Live:
    """The progress of one live attempt: an empty field is a step not taken yet."""

    header: bytes
    advertised: bytes
    """The device's own advertisement: the roster must hold it under the device's id."""
    secrets: AttemptSecrets | None
    """The secrets behind the advertisement. None once the vector is masked: no later step needs them."""
    roster: bytes = b""
    """The one roster accepted for this advertisement."""
    bundle: bytes = b""
    """The sealed shares for peers; empty once theirs have arrived."""
    held: dict[int, SharePair] = field(default_factory=dict)
    """Dealer's place -> the pair of its shares; in a complete graph the device's own pair too. Empty once a list is
    signed."""
    vector: bytes = b""
    """The packed masked vector, which is sent again byte for byte; empty once a list is signed."""
    survivors: bytes = b""
    """The one list signed."""
    revealed: bytes = b""
    """What is revealed under that list, once others have signed it too: one share for each peer. The other share is
    deleted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tries:
    """Advertisements made on one checkpoint."""

    count: int
    last_at: float
    """Unix seconds, device's clock."""
    round: int
    attempt: int
    """The newest attempt; an older or equal one is a replay."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Memory:
    """All durable state of secure rounds. Mappings are by the checkpoint's digest."""

    revocations: int = 0
    """The highest counter of a revocation list seen."""
    spent: dict[bytes, bytes] = field(default_factory=dict)
    """Checkpoints on which this device signed a list -> SHA-256 of what it signed. Never removed."""
    tries: dict[bytes, Tries] = field(default_factory=dict)
    live: dict[bytes, Live] = field(default_factory=dict)
    learners: frozenset[str] = frozenset()
    """Learners for which the device agreed to a secure round: it refuses plain plans for them until the owner allows
    them."""

    def going_on(self, model: bytes, live: Live) -> Memory:
        """A copy with this attempt in its present state."""
        return replace(self, live={**self.live, model: live})

    def without(self, model: bytes) -> Memory:
        """A copy without any attempt on this checkpoint."""
        return replace(self, live={digest: live for digest, live in self.live.items() if digest != model})

    def ended(self, header: bytes) -> Memory:
        """A copy without the attempt of this header; the same object where that attempt is not live. The driver calls
        this when the round is over or it gives the attempt up: an abandoned round ends without the answer to *unmask*.
        Spent checkpoints stay spent."""
        over = [model for model, live in self.live.items() if live.header == header]
        return replace(self, live={m: live for m, live in self.live.items() if m not in over}) if over else self

    def swept(self, at: float) -> Memory:
        """A copy without attempts that have expired by ``at`` (Unix seconds); the same object where none has."""
        expired = [model for model, live in self.live.items() if AttemptHeader.parse(live.header).expires_at < at]
        return replace(self, live={m: live for m, live in self.live.items() if m not in expired}) if expired else self

    def plain_again(self, learner: str) -> Memory:
        """A copy that allows plain plans for ``learner`` again. Only the owner may ask for it."""
        return replace(self, learners=self.learners - {learner})

    @property
    def marks(self) -> Memory:
        """A copy without any live attempt, so without any secret: what was signed, tried, seen and agreed to."""
        return replace(self, live={})

    @property
    def encoded(self) -> bytes:
        """The bytes to store. They hold secrets of live attempts: protect them like the device's key."""
        out = WireWriter(KIND).number(FORMAT, 2).number(self.revocations, 8)
        out.number(len(self.learners), 4)
        for learner in sorted(self.learners):
            out.text(learner)
        out.number(len(self.spent), 4)
        for model in sorted(self.spent):
            out.fixed(model, DIGEST_BYTES).fixed(self.spent[model], DIGEST_BYTES)
        out.number(len(self.tries), 4)
        for model in sorted(self.tries):
            tries = self.tries[model]
            out.fixed(model, DIGEST_BYTES).number(tries.count, 4).float(tries.last_at)
            out.number(tries.round, 8).number(tries.attempt, 4)
        out.number(len(self.live), 4)
        for model in sorted(self.live):
            live = self.live[model]
            out.fixed(model, DIGEST_BYTES).number(int(live.secrets is not None), 1)
            if live.secrets is not None:
                out.fixed(live.secrets.share_key.private, KEY_BYTES).fixed(live.secrets.mask_key.private, KEY_BYTES)
                out.fixed(live.secrets.self_mask, SELF_MASK_BYTES).fixed(live.secrets.nonce, NONCE_BYTES)
            for part in (
                live.header,
                live.advertised,
                live.roster,
                live.bundle,
                live.vector,
                live.survivors,
                live.revealed,
            ):
                out.number(len(part), 8).fixed(part, len(part))
            out.number(len(live.held), 4)
            for place in sorted(live.held):
                out.number(place, 4).fixed(live.held[place].self_mask, SHARE_BYTES)
                out.fixed(live.held[place].mask_key, SHARE_BYTES)
        return out.checked()

    @classmethod
    def parse(cls, data: bytes) -> Memory:
        """Decode the bytes of ``encoded``. BadMessage where any bit was changed: a device whose memory is damaged takes
        part in no secure round, since it cannot know what it signed."""
        read = WireReader.checked(data, KIND, "memory of secure rounds")
        if read.number(2) != FORMAT:
            read.refuse("it is of another version of this package")
        revocations = read.number(8)
        learners = frozenset(read.text() for _ in range(read.count(4, 2)))
        spent = {read.fixed(DIGEST_BYTES): read.fixed(DIGEST_BYTES) for _ in range(read.count(4, 2 * DIGEST_BYTES))}
        tries = {}
        for _ in range(read.count(4, DIGEST_BYTES + 24)):
            model = read.fixed(DIGEST_BYTES)
            tries[model] = Tries(
                count=read.number(4), last_at=read.float(), round=read.number(8), attempt=read.number(4)
            )
        live = {}
        for _ in range(read.count(4, DIGEST_BYTES + 61)):
            model = read.fixed(DIGEST_BYTES)
            secrets = None
            has = read.number(1)
            if has > 1:
                read.refuse("a flag is neither 0 nor 1")
            if has:
                secrets = AttemptSecrets(
                    AgreementKey(read.fixed(KEY_BYTES)),
                    AgreementKey(read.fixed(KEY_BYTES)),
                    read.fixed(SELF_MASK_BYTES),
                    read.fixed(NONCE_BYTES),
                )
            parts = [read.fixed(read.count(8, 1)) for _ in range(7)]
            header, advertised, roster, bundle, vector, survivors, revealed = parts
            held = {}
            for _ in range(read.count(4, 4 + 2 * SHARE_BYTES)):
                place = read.number(4)
                held[place] = SharePair(read.fixed(SHARE_BYTES), read.fixed(SHARE_BYTES))
            live[model] = Live(
                header=header,
                advertised=advertised,
                secrets=secrets,
                roster=roster,
                bundle=bundle,
                held=held,
                vector=vector,
                survivors=survivors,
                revealed=revealed,
            )
        read.end()
        return cls(revocations=revocations, spent=spent, tries=tries, live=live, learners=learners)
