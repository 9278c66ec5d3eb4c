"""Exchange 1, AdvertiseKeys: the keys, the commitment and the nonce with which a device enters one attempt.

All of it is drawn anew for each attempt; the device's permanent identity signs it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

from client_sdk.identity import Entropy, Signer
from client_sdk.secagg.agreement import KEY_BYTES, AgreementKey, require_public
from client_sdk.secagg.graph import NONCE_BYTES
from client_sdk.secagg.statement import DIGEST_BYTES, DOMAIN, signed
from client_sdk.secagg.wire import WireReader, WireWriter

KIND = 2
SELF_MASK_BYTES = 32
DEALING_BYTES = 32

_FIELDS = f">{KEY_BYTES}s{KEY_BYTES}s{DIGEST_BYTES}s{NONCE_BYTES}s"


@dataclass(frozen=True)
class Advertisement:
    """The public values of one device that its peers need."""

    device: str
    """Its id, given by the authority."""
    share_key: bytes
    """X25519: peers seal their shares for this device under the secret agreed with this key."""
    mask_key: bytes
    """X25519: pairwise masks come from the secret agreed with this key; its private half is shared."""
    commitment: bytes
    """To the self-mask seed: ``commitment_to``. The seed that is rebuilt from shares is checked against it."""
    nonce: bytes
    """Contributes to the order of the devices in the mask graph."""

    @cached_property
    def encoded(self) -> bytes:
        """The canonical bytes, which the device signs together with the header's digest."""
        out = WireWriter(KIND).text(self.device).fixed(self.share_key, KEY_BYTES).fixed(self.mask_key, KEY_BYTES)
        return out.fixed(self.commitment, DIGEST_BYTES).fixed(self.nonce, NONCE_BYTES).done()

    @classmethod
    def parse(cls, data: bytes) -> Advertisement:
        """Decode an advertisement. BadMessage for malformed bytes, BadKey for an invalid or low-order key."""
        read = WireReader(data, KIND, "advertisement")
        found = cls(read.text(), *next(read.rows(_FIELDS, 1)))
        read.end()
        require_public(found.share_key)
        require_public(found.mask_key)
        found.__dict__["encoded"] = bytes(data)  # a message has one form
        return found


@dataclass(frozen=True, repr=False)
class AttemptSecrets:
    """What a device draws for one attempt and keeps secret until the attempt ends."""

    share_key: AgreementKey
    mask_key: AgreementKey
    self_mask: bytes
    """The secret behind the device's own mask, 32 bytes."""
    nonce: bytes
    dealing: bytes
    """32 bytes, from which the shares of the two other secrets are computed: see ``dealing``."""

    @classmethod
    def draw(cls, entropy: Entropy) -> AttemptSecrets:
        """Fresh secrets: five draws of 32 bytes, in the order of the fields."""
        return cls(
            AgreementKey.create(entropy),
            AgreementKey.create(entropy),
            entropy(SELF_MASK_BYTES),
            entropy(NONCE_BYTES),
            entropy(DEALING_BYTES),
        )

    def advertisement(self, device: str) -> Advertisement:
        """The public half."""
        return Advertisement(
            device, self.share_key.public, self.mask_key.public, commitment_to(self.self_mask), self.nonce
        )


def commitment_to(self_mask: bytes) -> bytes:
    """SHA-256 over the domain and the secret: hiding and binding, since the secret is uniform and 32 bytes long."""
    return hashlib.sha256(DOMAIN + b"commitment" + self_mask).digest()


def sign_advertisement(advertisement: Advertisement, header_digest: bytes, signer: Signer) -> bytes:
    """The device's signature of its advertisement for this header."""
    return signed(signer, header_digest, "advertise", advertisement.encoded)
