"""What a device remembers of secure rounds: what must outlive a crash, and what must outlive the round.

Knows the fields and their bytes. Has never heard of storage or of when to write. Of a live attempt it holds what a
restarted device needs to go on with the same bytes, and no secret for longer than a step to come needs it: the
device's own secrets until its vector is masked, peers' shares until a list is signed, from then on what may be revealed
under that list. When the attempt ends, or another takes its place, all of that goes. For good it holds which
checkpoints are *spent*, the highest revocation counter seen, and the learners that took part in secure rounds.

A device that is set back to an older copy of this memory has forgotten what it signed, and no rule can save it: keep it
out of backups that are restored, and give no two devices copies of one. What was deleted may lie in the machine's RAM,
in swap, or in what a disk keeps of an overwritten file: encrypt the device's disk.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from client_sdk.secagg.advertisement import SELF_MASK_BYTES, AttemptSecrets
from client_sdk.secagg.agreement import KEY_BYTES, AgreementKey
from client_sdk.secagg.graph import NONCE_BYTES
from client_sdk.secagg.header import Header
from client_sdk.secagg.shamir import SHARE_BYTES
from client_sdk.secagg.shares import SharePair
from client_sdk.secagg.statement import DIGEST_BYTES
from client_sdk.secagg.wire import WireReader, WireWriter

KIND = 64
FORMAT = 2


@dataclass(frozen=True, kw_only=True, repr=False)
class Live:
    """One attempt under way, as far as it came: an empty field is a step not taken yet."""

    header: bytes
    advertised: bytes
    """The device's own advertisement: what must stand in the roster under its id."""
    secrets: AttemptSecrets | None
    """What it advertised for. None once the vector is masked: nothing needs them any more."""
    roster: bytes = b""
    """The one roster accepted for this advertisement."""
    bundle: bytes = b""
    """The sealed shares that go to peers; none once theirs have come."""
    held: dict[int, SharePair] = field(default_factory=dict)
    """Dealer's place -> the pair of shares held of it; in a complete graph the device's own among them. Empty once a
    list is signed."""
    vector: bytes = b""
    """The packed masked vector: sent again byte for byte; none once a list is signed."""
    survivors: bytes = b""
    """The one list signed."""
    revealed: bytes = b""
    """What is revealed under it, once others signed it too: for a peer one share of one kind. The other kind is
    gone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tries:
    """Advertisements made on one checkpoint."""

    count: int
    last_at: float
    """Unix seconds, device's clock."""
    round: int
    attempt: int
    """The newest; an older or equal one is a replay."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Memory:
    """Everything. Mappings are by the checkpoint's digest."""

    revocations: int = 0
    """The highest counter of a revocation list seen."""
    spent: dict[bytes, bytes] = field(default_factory=dict)
    """Checkpoints on which this device signed a list -> SHA-256 of what it signed. Never taken back."""
    tries: dict[bytes, Tries] = field(default_factory=dict)
    live: dict[bytes, Live] = field(default_factory=dict)
    learners: frozenset[str] = frozenset()
    """Learners for which a secure round was agreed to: plain plans for them are refused until the owner says
    otherwise."""

    def going_on(self, model: bytes, live: Live) -> Memory:
        """The same with this attempt as it is now."""
        return replace(self, live={**self.live, model: live})

    def without(self, model: bytes) -> Memory:
        """The same with nothing left of an attempt on this checkpoint."""
        return replace(self, live={digest: live for digest, live in self.live.items() if digest != model})

    def ended(self, header: bytes) -> Memory:
        """The same with nothing left of the attempt of this header; itself where it is not under way. For whoever
        drives the device, when it hears that the round is over or gives the attempt up: a round that is abandoned ends
        without the answer to *unmask*. What is spent stays spent."""
        over = [model for model, live in self.live.items() if live.header == header]
        return replace(self, live={m: live for m, live in self.live.items() if m not in over}) if over else self

    def swept(self, at: float) -> Memory:
        """The same without attempts that have expired by ``at`` (Unix seconds); itself where there is none."""
        expired = [model for model, live in self.live.items() if Header.parse(live.header).expires_at < at]
        return replace(self, live={m: live for m, live in self.live.items() if m not in expired}) if expired else self

    def plain_again(self, learner: str) -> Memory:
        """The same with plain plans for ``learner`` allowed again: for its owner alone to ask."""
        return replace(self, learners=self.learners - {learner})

    @property
    def encoded(self) -> bytes:
        """The bytes to keep. They hold secrets of live attempts: keep them as private as the device's key."""
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
        """What ``encoded`` gave, every bit of it. BadMessage otherwise: a device whose memory is damaged takes part in
        no secure round, since it cannot know what it signed."""
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
