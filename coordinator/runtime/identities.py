"""Which keys are devices and workers of this coordinator: what the authority has certified, and not revoked.

::

    registered   the store has a certificate of this key           else *unregistered*: it registers again
    certified    the certificate is of the pinned authority        else *not-certified*
    valid        at this coordinator's present time                else *expired-certificate*: it is renewed
    good         the key is not on the newest list that was seen   else *revoked-key*

Without an authority, or before its first list was seen, nobody is let in: *busy*.

``SignedRequests`` checks the signatures of requests: of who is registered, and of who registers::

    a registered key     times -> the key of this id -> signature, body -> certificate valid and good -> nonce
    a registration       times -> the certificate, its class and its key -> signature, body -> nonce

The nonce is taken last: who has no certified key, or one that is revoked or expired, cannot fill the window, nor use up
a nonce of somebody else. Everything runs in the thread that then handles the request.

Devices that register together share a transaction, which has their rows of the audit too: with a transaction each and
two more for the audit, one costs five times as much, and a fleet comes in a crowd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from client_sdk.credentials.certificate import Certificate, HolderClass, RevocationList
from client_sdk.credentials.errors import BadCredential, CredentialError, NotValidNow, RevokedKey, refusal_of
from client_sdk.credentials.identity_keys import TrustedAuthority
from client_sdk.credentials.request_signature import NonceWindow, RequestSignature
from client_sdk.protocol.devices import rounded_size
from client_sdk.protocol.problems import ProblemError, problem
from coordinator.access.audit import Audit
from coordinator.group_commit import GroupCommit
from coordinator.runtime.core import Core
from coordinator.runtime.signals import secure_key
from coordinator.store.gateway import NoSuchValue
from coordinator.store.port import AuditRow, AuthorityRow, Conflict, DeviceRow, WorkerRow

_NO_AUTHORITY = (
    "This coordinator has no authority, so it cannot tell whose keys are devices: start it with --authority URL "
    "--authority-key KEY, or with --dev-authority."
)
_NO_LIST = "This coordinator has not seen a revocation list of its authority yet."

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PinnedAuthority:
    """The authority whose certificates this coordinator takes."""

    trusted: TrustedAuthority
    url: str = ""
    """Where its revocation list is fetched; empty where it is handed over otherwise."""
    inside: bool = False
    """Whether this coordinator has the authority's key itself."""


@dataclass(frozen=True, slots=True)
class SignedBy:
    """A request whose signature was checked."""

    key_id: str
    """32 hexadecimal digits."""
    at: float
    """When the request arrived, in Unix seconds: its times are judged by that, however long it takes or is held."""


@dataclass(frozen=True, slots=True)
class Registrant:
    """Who registers: the certificate was checked, and its key has signed the request."""

    certificate: Certificate


@dataclass(frozen=True, slots=True)
class _Registration:
    """A certificate, and what its device says of itself."""

    certificate: Certificate
    examples: int
    label: str


class Identities:
    """The devices and workers of one coordinator. Safe from any thread."""

    def __init__(
        self,
        core: Core,
        audit: Audit,
        authority: PinnedAuthority | None = None,
    ) -> None:
        self.authority = authority
        self._store, self._clock, self._signals = core.store, core.clock, core.signals
        self._examples_cap = core.settings.examples_cap
        self._keys, self._list = core.process.keys, core.process.revocations
        self._audit = audit
        self.registrations: GroupCommit[_Registration, DeviceRow] = GroupCommit(self._register_devices, pauses=0)
        self.fetch_failure = ""
        """Why the list could not be fetched when that was last tried; empty: it could."""

    @property
    def inside(self) -> bool:
        """Whether this coordinator has the authority's key itself, so that it could make devices up."""
        return self.authority is not None and self.authority.inside

    def record_authority(self) -> None:
        """Notes from when on this authority's certificates are taken, where that has changed since the last start."""
        if self.authority is None:
            return
        row = AuthorityRow(
            authority=self.authority.trusted.id.hex(), inside=self.authority.inside, since=self._clock.now()
        )
        last = self._store.authorities()[-1:]
        if not last or (last[0].authority, last[0].inside) != (row.authority, row.inside):
            with self._store.transaction() as tx:
                tx.insert_authority(row)

    # ------------------------------------------------------------ who asks

    def public_key(self, key_id: str) -> bytes:
        """The key of this id (32 hexadecimal digits), which is registered. ProblemError *unregistered*."""
        return self._keys.of(key_id).certificate.public_key

    def device(self, signed: SignedBy) -> DeviceRow:
        """The device whose key has signed."""
        row = self.peer(signed)
        if not isinstance(row, DeviceRow):
            raise problem("not-certified", f"{row.worker} is a worker, and this is a request of devices")
        return row

    def worker(self, signed: SignedBy) -> WorkerRow:
        """The worker whose key has signed."""
        row = self.peer(signed)
        if not isinstance(row, WorkerRow):
            raise problem("not-certified", f"{row.device} is a device, and this is a request of workers")
        return row

    def peer(self, signed: SignedBy) -> DeviceRow | WorkerRow:
        """The device or the worker whose key has signed, and is certified, valid and good now."""
        known = self._keys.of(signed.key_id)
        row = known.row
        self._require_good(known.certificate)
        if isinstance(row, WorkerRow) and row.revoked_at is not None:
            raise _revoked_here(row)
        return row

    def valid_s(self, signed: SignedBy) -> float:
        """How long the certificate of the key that has signed is still valid, in seconds."""
        return max(0.0, self._keys.of(signed.key_id).certificate.not_after - self._clock.now())

    def require_certificate(self, certificate: Certificate, holder: HolderClass) -> None:
        """ProblemError unless the authority has signed this certificate for a ``holder``, and it is valid and good
        now."""
        try:
            certificate.require_signed(self.trusted()[0])
        except CredentialError as error:
            raise problem("not-certified", str(error)) from None
        if certificate.holder != holder:
            raise problem("not-certified", f"this certificate is one of a {certificate.holder}, not of a {holder}")
        self._require_good(certificate)

    # ------------------------------------------------------------ registering

    def register_device(
        self, certificate: Certificate, *, examples: int = 0, label: str = ""
    ) -> Callable[[], DeviceRow]:
        """Queues the registration of the device of this certificate, which ``require_certificate`` has let pass. The
        function that it returns makes it and its row of the audit durable, and returns the device. The same certificate
        again changes nothing of it; ``examples`` and ``label`` count the first time. ProblemError *not-certified* for a
        certificate that is older than the newest that was registered, and *revoked-key* where the device has left."""
        return self.registrations.enter(_Registration(certificate, examples, label))

    def register_worker(self, certificate: Certificate, *, label: str = "") -> WorkerRow:
        """Registers a worker at once, as ``register_device`` does a device, without its row of the audit. ProblemError
        also where an operator has revoked it."""
        row = self._store.worker(certificate.id)
        if row is not None and row.revoked_at is not None:
            raise _revoked_here(row)
        if row is not None and row.certificate == certificate.encoded.hex():
            return row
        self._require_newer(certificate, row.certificate if row is not None else "")
        key_id = certificate.key_id.hex()
        try:
            with self._store.transaction() as tx:
                if row is not None:
                    tx.certify_worker(certificate.id, key_id, certificate.encoded.hex())
                else:
                    row = WorkerRow(
                        worker=certificate.id,
                        key_id=key_id,
                        certificate=certificate.encoded.hex(),
                        label=label,
                        created_at=self._clock.now(),
                    )
                    tx.insert_worker(row)
        except Conflict:
            other = self._store.worker_by_key(key_id)
            if other is not None and other.worker != certificate.id:
                raise _taken(other.worker) from None
            return self.register_worker(certificate, label=label)
        self.forget_cached()
        return self._stored(self._store.worker(certificate.id))

    def forget_cached(self) -> None:
        """Reads every row anew from now on: one was changed."""
        self._keys.forget()

    def leave(self, device: DeviceRow) -> None:
        """Forgets the device's key, certificate and label. Its id, its times and its cap stay, and what it has counted
        in. What is held open for it ends."""
        with self._store.transaction() as tx:
            tx.forget_device(device.device, self._clock.now())
        self.forget_cached()
        self._signals.wake_many([f"device:{device.device}", secure_key(device.device)])

    def refusal(self, certificate: Certificate) -> ProblemError | None:
        """Why who holds this registered certificate is refused now; None: it is not."""
        try:
            self._require_good(certificate)
        except ProblemError as error:
            return error
        return None

    # ------------------------------------------------------------ the list

    def list(self, *, read: bool = False) -> RevocationList | None:
        """The newest list of the authority that this coordinator, or a replica of it, has seen. ``read``: what a
        replica took a moment ago counts too."""
        return None if self.authority is None else self._list.newest(self.authority.trusted.id.hex(), read=read)

    def list_named(self, digest: str) -> bytes | None:
        """The bytes of the list of this digest, as long as it is in date."""
        return self._list.named(digest)

    def trusted(self, *, read: bool = False) -> tuple[TrustedAuthority, RevocationList]:
        """The authority and its newest list; ``read``: see ``list``. ProblemError *busy* where one of them is not
        there."""
        if self.authority is None:
            raise problem("busy", _NO_AUTHORITY, retry_after_s=30)
        held = self.list(read=read)
        if held is None:
            raise problem("busy", _NO_LIST, retry_after_s=5)
        return self.authority.trusted, held

    def take_list(self, encoded: bytes) -> RevocationList:
        """Stores a list that follows the one that is held, and returns the newest. What is held open for keys that are
        newly on it ends, and their devices leave the pool. CredentialError: it is no list of the authority, or an older
        one."""
        if self.authority is None:
            raise problem("busy", _NO_AUTHORITY)
        return self._list.take(encoded, self.authority.trusted, self._audit)

    def trouble(self) -> str:
        """Why devices cannot register, why secure rounds wait, or why the list was not fetched. Empty: all is well."""
        found = []
        try:
            self.trusted()[1].require_current(self._clock.now())
        except NotValidNow as error:
            found.append(f"{error} Secure rounds wait.")
        except ProblemError as error:
            found.append(error.problem.detail)
        if self.fetch_failure:
            found.append(f"The last fetch of the revocation list failed: {self.fetch_failure}")
        return " ".join(found)

    # ------------------------------------------------------------ inside

    def _register_devices(self, batch: Sequence[_Registration]) -> Sequence[DeviceRow | BaseException]:
        try:
            return self._register_together(batch)
        except NoSuchValue as error:  # such as a label with a zero byte, on PostgreSQL
            if len(batch) == 1:
                return [error]
        except Conflict:  # another replica has registered one of them at the same time
            pass
        return [found for one in batch for found in self._register_devices([one])]

    def _register_together(self, batch: Sequence[_Registration]) -> Sequence[DeviceRow | BaseException]:
        """Registers them one after the other in one transaction; one that is refused changes nothing. Conflict where
        the rows of another replica are in the way."""
        found: list[DeviceRow | BaseException] = []
        new, changed, audited = dict[str, DeviceRow](), list[DeviceRow](), list[AuditRow]()
        with self._store.transaction() as tx:
            known = {row.device: row for row in tx.devices_named({one.certificate.id for one in batch})}
            keys = {one.certificate.key_id.hex() for one in batch}
            holders = {row.key_id: row.device for row in tx.devices_by_keys(keys)}
            for one in batch:
                device = one.certificate.id
                before = known.get(device)
                try:
                    row = self._registered(one, before, holders.get(one.certificate.key_id.hex(), device))
                except Exception as error:  # noqa: BLE001 - it is of this one, not of the batch
                    found.append(error)
                    if isinstance(error, ProblemError):
                        audited.append(self._audit.row(device, "device.register refused", error.kind))
                    continue
                cap = f"device={device} rounded_cap={rounded_size(row.examples_cap)}"
                audited.append(self._audit.row(device, "device.register done", cap))
                if before is None:
                    row = replace(row, enrolled_at=audited[-1].at)
                found.append(row)
                if row is before:
                    continue
                if before is None or device in new:
                    new[device] = row
                else:
                    changed.append(row)
                if before is not None:
                    holders.pop(before.key_id, None)
                known[device], holders[row.key_id] = row, device
            if new:
                tx.hold_pool()  # before rows of devices are locked
            for row in changed:
                tx.certify_device(row.device, str(row.key_id), row.certificate)
            tx.insert_device(*new.values())
            tx.insert_audit(audited)
        if changed:
            self.forget_cached()
        return found

    def _registered(self, one: _Registration, before: DeviceRow | None, holder: str) -> DeviceRow:
        """The row of a device that registers: the same one where nothing changes. ``holder``: the device that has its
        key. ProblemError."""
        certificate, key_id, encoded = one.certificate, one.certificate.key_id.hex(), one.certificate.encoded.hex()
        if before is not None and before.certificate == encoded:
            return before
        self._require_newer(certificate, before.certificate if before is not None else "")
        if before is not None and before.left_at is not None:
            raise problem("revoked-key", f"{before.device} has left this coordinator, which has forgotten it")
        if holder != certificate.id:
            raise _taken(holder)
        if before is not None:
            return replace(before, key_id=key_id, certificate=encoded)
        return DeviceRow(
            device=certificate.id,
            key_id=key_id,
            certificate=encoded,
            label=one.label,
            examples_cap=min(one.examples or self._examples_cap, self._examples_cap),
            enrolled_at=self._clock.now(),
        )

    def _require_good(self, certificate: Certificate) -> None:
        trusted, held = self.trusted()
        if certificate.authority != trusted.id:
            raise problem("not-certified", "this certificate is of another authority than this coordinator's")
        try:
            certificate.require_valid(self._clock.now())
            held.require_good(certificate.public_key)
        except NotValidNow as error:
            raise problem("expired-certificate", str(error)) from None
        except RevokedKey as error:
            raise problem("revoked-key", str(error)) from None

    def _require_newer(self, certificate: Certificate, registered: str) -> None:
        """ProblemError where a certificate of this authority is registered that is newer. One of an authority of before
        is replaced."""
        if not registered:
            return
        last = Certificate.parse(bytes.fromhex(registered))
        newer = (certificate.not_before, certificate.not_after) >= (last.not_before, last.not_after)
        if last.authority == certificate.authority and not newer:
            raise problem("not-certified", f"a newer certificate of {certificate.id} is registered")

    def _stored(self, row: T | None) -> T:
        if row is None:
            raise problem("busy", "this was removed while it registered; register again", retry_after_s=1)
        return row


def _revoked_here(row: WorkerRow) -> ProblemError:
    return problem("revoked-key", f"worker {row.worker} was revoked by an operator of this coordinator")


def _taken(holder: str) -> ProblemError:
    return problem("not-certified", f"this key is registered as {holder}")


class Verify(Protocol):
    """``RequestSignature.require_signed``, or what takes its place where thousands of requests are played."""

    def __call__(
        self, signature: RequestSignature, /, public_key: bytes, *, method: str, uri: str, result: str | None = None
    ) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """A signed request as it arrived: nothing is checked yet but the form of its signature."""

    signature: RequestSignature
    method: str
    uri: str
    """``@target-uri``: the public URL with the path and the query as they were sent."""
    at: float
    """When its head arrived, in Unix seconds."""
    result: str | None = None
    """The header ``Quorate-Result``; None where there is none."""
    sha256: bytes | None = None
    """Of the body, 32 bytes, where it was read; None: who reads it compares it with the signed digest."""


class SignedRequests:
    """The signatures of one process. ``now``: Unix seconds. Safe from any thread."""

    def __init__(
        self,
        identities: Identities,
        now: Callable[[], float],
        nonces: NonceWindow,
        verify: Verify = RequestSignature.require_signed,
    ) -> None:
        self._identities = identities
        self._now = now
        self.nonces = nonces
        self._verify = verify

    def check(
        self,
        signature: RequestSignature,
        *,
        method: str,
        uri: str,
        at: float,
        result: str | None = None,
        sha256: bytes | None = None,
    ) -> SignedBy:
        """Who has signed a request, among those who are registered. The parameters are those of ``Arrived``.

        ProblemError *wrong-clock*, *unregistered*, *bad-signature*, *replayed-request*, *busy*, and those of
        ``Identities.peer``: a held request asks for them again."""
        try:
            signature.require_current(at)
            key = self._identities.public_key(signature.key_id)
            self._require_signed(signature, key, method, uri, result, sha256)
            self._identities.peer(SignedBy(signature.key_id, at))
            return self._taken(signature, at)
        except CredentialError as error:
            raise refusal_of(error) from None

    def check_registration(
        self,
        signature: RequestSignature,
        certificate: Certificate,
        holder: HolderClass,
        *,
        method: str,
        uri: str,
        at: float,
        sha256: bytes | None = None,
    ) -> SignedBy:
        """Who has signed a request that registers this certificate, which the authority has given to a ``holder``.

        Raises what ``check`` raises but *unregistered*, and what ``Identities.require_certificate`` does."""
        try:
            signature.require_current(at)
            self._identities.require_certificate(certificate, holder)
            self._require_signed(signature, certificate.public_key, method, uri, None, sha256)
            return self._taken(signature, at)
        except CredentialError as error:
            raise refusal_of(error) from None

    def _require_signed(
        self,
        signature: RequestSignature,
        key: bytes,
        method: str,
        uri: str,
        result: str | None,
        sha256: bytes | None,
    ) -> None:
        try:
            self._verify(signature, key, method=method, uri=uri, result=result)
            if sha256 is not None:
                signature.require_body(sha256)
        except BadCredential as error:
            raise problem("bad-signature", f"{error} Here it is {method} {uri[:300]}.") from None

    def _taken(self, signature: RequestSignature, at: float) -> SignedBy:
        """Takes the nonce, unless its body took so long that the nonce may be forgotten already."""
        now = self._now()
        if max(at, now) > signature.expires:
            raise problem(
                "wrong-clock", "This request was complete only after its signature had expired; sign it afresh."
            )
        # By the clock as it is, which may have been set back since ``at``: what arrived after that is still known.
        self.nonces.take(signature, now)
        return SignedBy(signature.key_id, at)
