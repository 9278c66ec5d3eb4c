"""The progress of one live attempt, as a device stores it: the last step taken, and what the next ones need.

Each secret is held only as long as a later step needs it. A step has no way back: it is one of these::

    step         is held beside header and advertisement
    advertised   own secrets, the certificate, the header's revocation list
    shared       own secrets, the roster, the sealed shares for peers, in a complete graph the own pair of shares
    masked       the roster, the pairs of shares of all peers that shared, the masked vector
    signed       the roster, the signed list, one share of each of those pairs
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum

from client_sdk.secagg.advertisement import DEALING_BYTES, SELF_MASK_BYTES, AttemptSecrets
from client_sdk.secagg.agreement import KEY_BYTES, AgreementKey
from client_sdk.secagg.errors import BadMessage
from client_sdk.secagg.graph import NONCE_BYTES
from client_sdk.secagg.shamir import SHARE_BYTES
from client_sdk.secagg.shares import SharePair
from client_sdk.secagg.wire import WireReader, WireWriter

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
    Step.MASKED: {"roster", "held", "vector"},
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
    """The secrets behind the advertisement, until the vector is masked."""
    certificate: bytes = b""
    """The certificate that is shown with the advertisement, until a roster is accepted: a device that renews its own
    meanwhile shows the same one again."""
    revocations: bytes = b""
    """The revocation list that the header names, until a roster is accepted: each entry of it was vouched for then."""
    roster: bytes = b""
    """The one roster accepted for this advertisement."""
    bundle: bytes = b""
    """The sealed shares for peers, until theirs have arrived."""
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
        """After masking: the device's own secrets are gone."""
        return replace(self, step=Step.MASKED, secrets=None, bundle=b"", held=held, vector=vector)

    def signed(self, *, survivors: bytes, revealed: bytes) -> Live:
        """After signing: of each pair of shares one is left."""
        return replace(self, step=Step.SIGNED, held={}, vector=b"", survivors=survivors, revealed=revealed)

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
