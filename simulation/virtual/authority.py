"""The authority of a simulation, and what each device owns for secure rounds: keys, a certificate, a source of secrets.

All of it follows from the simulation's seed by HKDF-SHA256, so that a simulation that is repeated sends the same bytes.
None of it is ever a real device's: a ``Client`` takes no entropy but the operating system's. Virtual time begins at
``EPOCH`` where rounds are secure, because headers name times and devices round their values by the header.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from client_sdk.credentials.certificate import certify, sign_revocations
from client_sdk.credentials.identity_keys import TrustedAuthority
from client_sdk.device.record import AuthorityRef, Record
from client_sdk.identity import DeviceKey, Entropy
from client_sdk.protocol.devices import Registered
from client_sdk.secagg.agreement import derive
from client_sdk.secagg.quantize import ROUNDING_BYTES
from coordinator.runtime.identities import PinnedAuthority

EPOCH = 1_767_225_600
"""The first second of 2026, in Unix seconds."""
_END = EPOCH + 2**36
"""Two thousand years later: nothing expires in a simulation."""
_DOMAIN = b"quorate simulation "


@dataclass(frozen=True, slots=True, repr=False)
class SimulatedIdentity:
    """What one device owns."""

    key: DeviceKey
    certificate: bytes
    rounding_secret: bytes

    def record(self, authority: TrustedAuthority, url: str, registered: Registered) -> Record:
        """The record of the device, certified and registered at the coordinator of this URL."""
        return Record(
            key_seed=self.key.seed.hex(),
            authority=AuthorityRef(url=url, digest=authority.digest.hex(), public_key=authority.public_key.hex()),
            certificate=self.certificate.hex(),
            coordinator=url,
            registered=registered,
            rounding_secret=self.rounding_secret.hex(),
        )


class SimulatedAuthority:
    """``identity`` of each device, ``entropy`` for its attempts, and the one revocation list, with nobody on it."""

    def __init__(self, seed: int) -> None:
        self._secret = seed.to_bytes(max(32, (seed.bit_length() + 7) // 8), "big")
        key = DeviceKey(self._derived("authority"))
        self.trusted = TrustedAuthority(bytes.fromhex(key.public_hex))
        self.revocations = sign_revocations(key, counter=1, issued=EPOCH, next_update=_END, revoked=())
        self._key = key
        self._known: dict[str, SimulatedIdentity] = {}

    @property
    def pinned(self) -> PinnedAuthority:
        """The authority as a coordinator takes it."""
        return PinnedAuthority(self.trusted)

    def identity(self, device: str) -> SimulatedIdentity:
        """The keys of a device: the same in all rounds."""
        found = self._known.get(device)
        if found is None:
            key = DeviceKey(self._derived("device", device))
            public = bytes.fromhex(key.public_hex)
            certificate = certify(
                self._key, id=device, holder="device", public_key=public, not_before=EPOCH, not_after=_END
            )
            rounding = self._derived("rounding", device, length=ROUNDING_BYTES)
            found = self._known[device] = SimulatedIdentity(key, certificate.encoded, rounding)
        return found

    def entropy(self, device: str, round: int) -> Entropy:
        """Where the secrets of a device's attempts in one round come from."""
        return self._reader("attempts", device, round)

    def _reader(self, *what: object) -> Callable[[int], bytes]:
        reads = 0

        def read(count: int) -> bytes:
            nonlocal reads
            reads += 1
            return self._derived(*what, reads, length=count)

        return read

    def _derived(self, *what: object, length: int = 32) -> bytes:
        return derive(self._secret, salt=b"", info=_DOMAIN + "/".join(map(str, what)).encode(), length=length)
