"""Bugs in who is served: expired and revoked keys, older lists and certificates, replays, requests out of time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from client_sdk.credentials.certificate import Certificate, RevocationList
from client_sdk.credentials.request_signature import NonceWindow, RequestSignature
from client_sdk.protocol.problems import ProblemError
from coordinator.engine import events as ev
from coordinator.engine.phases import collecting
from coordinator.engine.state import RunState
from coordinator.runtime import process_state
from coordinator.runtime.devices import DeviceRequests
from coordinator.runtime.fleet import Fleet, PoolPlace
from coordinator.runtime.identities import Identities, SignedRequests
from coordinator.runtime.process_state import HeldList
from coordinator.runtime.signals import Signals
from coordinator.store.port import DeviceRow, StoreError
from tests.explorer.mutants.datacenter import CENTER
from tests.explorer.mutants.registry import mutant

Patches = list[tuple[Any, str, Any]]
EXPIRING: dict[str, Any] = {"rates": {"certificate-expires": 0.3, "delay": 0.05}, "storm_s": 60.0}
REVOKING: dict[str, Any] = {"rates": {"revoked": 0.8, "delay": 0.05}, "storm_s": 60.0}

LATE_COPIES: dict[str, Any] = {
    "rates": {"certificate-expires": 0.05, "redeliver-late": 0.6, "duplicate": 0.3, "delay": 0.3},
    "storm_s": 60.0,
}


@mutant("expired-certificate-served", "permission", focus=("certificate-expires", "selecting"), **EXPIRING)
def _expired_certificate_served() -> Patches:
    """Whether a certificate is valid now is not asked."""
    return [(Certificate, "require_valid", lambda self, at: None)]


@mutant("revoked-key-served", "permission", focus=("revoked", "collecting"), **REVOKING)
def _revoked_key_served() -> Patches:
    """A key is served that the newest list has."""
    return [(RevocationList, "require_good", lambda self, public_key: None)]


@mutant("older-list-taken", "list", "permission", focus=("revoked", "collecting"), **REVOKING)
def _older_list_taken() -> Patches:
    """A list with a lower counter replaces the one that is held."""

    def any_list(held: Any, offered: bytes, authority: Any) -> RevocationList:
        found = RevocationList.parse(offered)
        found.require_signed(authority)
        return found

    return [(process_state, "following", any_list)]


@mutant("revoked-waits-on", "draw", focus=("revoked", "selecting"), **REVOKING)
def _revoked_waits_on() -> Patches:
    """Devices that are new on a list stay in the pool."""
    return [(HeldList, "_devices_new_on", lambda self, found: [])]


@mutant("check-ins-of-many-lost", "draw", focus=("store-full", "selecting"), rates={"store-full": 0.1})
def _check_ins_of_many_lost() -> Patches:
    """Of check-ins that are written together and could not be, each is answered with a place in the pool."""

    def wait(self: Fleet, device: DeviceRow, check_in: Any) -> Callable[[], PoolPlace]:
        arrival = self._arrival(device, check_in)
        entered = self.arrivals.enter(arrival)

        def settle() -> PoolPlace:
            with suppress(StoreError):
                entered()
            return PoolPlace(arrival.row.device, arrival.row.expires)

        return settle

    return [(Fleet, "wait", wait)]


@mutant("left-device-registers-again", "permission", leavers=1)
def _left_device_registers_again() -> Patches:
    """A device that has left is registered again under its id."""
    register = Identities._registered

    def again(self: Identities, one: Any, before: DeviceRow | None, holder: str) -> DeviceRow:
        return register(self, one, None if before is None else replace(before, left_at=None), holder)

    return [(Identities, "_registered", again)]


@mutant("left-device-waits-on", "draw", leavers=1)
def _left_device_waits_on() -> Patches:
    """A device that has left stays in the pool."""
    from coordinator.store.memory import MemoryTransaction

    def forget(self: Any, device: str, at: float) -> None:
        row = next((row for row in self.waiting(float("-inf")) if row.device == device), None)
        forget_device(self, device, at)
        self.put_waiting([] if row is None else [row])

    forget_device = MemoryTransaction.forget_device
    return [(MemoryTransaction, "forget_device", forget)]


@mutant("leaves-without-withdrawing", "claims", leavers=2)
def _leaves_without_withdrawing() -> Patches:
    """The round that a device works for when it leaves waits for it until its deadline."""
    return [(DeviceRequests, "abandon", lambda self, device, reason: None)]


@mutant("revoked-key-registers", "permission", focus=("revoked", "selecting"), **REVOKING)
def _revoked_key_registers() -> Patches:
    """Who registers is not looked for on the list."""
    require = Identities.require_certificate

    def of_anyone(self: Identities, certificate: Certificate, holder: Any) -> None:
        try:
            require(self, certificate, holder)
        except ProblemError as error:
            if error.kind != "revoked-key":
                raise

    return [(Identities, "require_certificate", of_anyone)]


def _any_place() -> Patches:
    def stop_waiting(self: Fleet, place: PoolPlace) -> None:
        with self._store.transaction() as tx:
            tx.drop_waiting([place.device])

    return [(Fleet, "stop_waiting", stop_waiting)]


@mutant("older-request-takes-the-place", "draw", focus=("device-crash", "selecting"), replicas=3)
def _older_request_takes_the_place() -> Patches:
    """The end of an older request takes the device out of the pool in which its newer one holds it."""
    return _any_place()


@mutant("older-http-request-takes-the-place", "draw", http=True, replicas=3)
def _older_http_request_takes_the_place() -> Patches:
    """Over HTTP, the end of an older request takes the device out of the pool in which its newer one holds it."""
    return _any_place()


@mutant(
    "stored-list-not-read",
    "permission",
    "spent",
    focus=("revoked", "selecting"),
    **{**REVOKING, "replicas": 2},
    lost_replicas=0,
)
def _stored_list_not_read() -> Patches:
    """A replica goes by the list that it was handed itself."""
    newest = HeldList.newest

    def own(self: HeldList, authority: str, *, read: bool = False) -> RevocationList | None:
        return newest(self, authority) if self._held is None else self._held

    return [(HeldList, "newest", own)]


@mutant("list-not-kept", "ack-durable", focus=("revoked", "collecting"), **REVOKING)
def _list_not_kept() -> Patches:
    """A list is held in memory only."""
    from coordinator.store.memory import MemoryTransaction

    return [(MemoryTransaction, "put_revocations", lambda self, row: None)]


@mutant("revoked-poll-held", "liveness", focus=("revoked", "collecting"), replicas=1, **REVOKING)
def _revoked_poll_held() -> Patches:
    """What is held open for a revoked key stays open until it is looked at again."""
    replace_list = HeldList._replace

    def silent(self: HeldList, found: RevocationList, **stored: bool) -> None:
        signals, self._signals = self._signals, Signals()
        try:
            replace_list(self, found, **stored)
        finally:
            self._signals = signals

    return [(HeldList, "_replace", silent)]


@mutant("older-certificate-taken", "permission", focus=("certificate-expires", "selecting"), **LATE_COPIES)
def _older_certificate_taken() -> Patches:
    """A late copy of an older registration replaces the newer certificate."""
    return [(Identities, "_require_newer", lambda self, certificate, registered: None)]


@mutant("nonces-not-kept", "replay", focus=("replayed", "collecting"))
def _nonces_not_kept() -> Patches:
    """The nonces of requests are not remembered."""
    return [(NonceWindow, "take", lambda self, signature, now: None)]


@mutant("replay-counts", "counts-once", "log", "ack-durable", focus=("replayed", "collecting"), replicas=3)
def _replay_counts() -> Patches:
    """An update that arrives again counts once more."""
    reported = collecting.reported

    def again(state: RunState, event: ev.Reported) -> Any:
        member = None if state.round is None else state.round.members.get(event.device)
        if state.phase == "collecting" and member is not None and member.digest == event.digest:
            state = state.with_member(event.device, replace(member, digest=None, status="selected"))
        return reported(state, event)

    return [(collecting, "reported", again)]


@mutant("times-not-checked", "permission", focus=("replayed", "collecting"))
def _times_not_checked() -> Patches:
    """A signed request is let in at any time."""
    return [(RequestSignature, "require_current", lambda self, now: None)]


@mutant("signature-not-checked", "permission", focus=("lie", "collecting"), liars=2)
def _signature_not_checked() -> Patches:
    """Who names a registered key is taken for its owner."""
    return [(SignedRequests, "_require_signed", lambda self, *request: None)]


@mutant("any-authority", "permission", "no-bug", focus=("lie", "collecting"), liars=2)
def _any_authority() -> Patches:
    """A certificate of any authority is taken."""

    def unsigned(self: Identities, certificate: Certificate, holder: str) -> None:
        return None

    return [(Identities, "require_certificate", unsigned)]


@mutant("class-not-checked", "permission", focus=("lie", "collecting"), liars=2)
def _class_not_checked() -> Patches:
    """A device registers as a worker."""
    require = Identities.require_certificate

    def any_class(self: Identities, certificate: Certificate, holder: str) -> None:
        require(self, certificate, certificate.holder)

    return [(Identities, "require_certificate", any_class)]


@mutant("revoked-worker-served", "permission", plan=CENTER, workers=2, focus=("op-revoke", "training"))
def _revoked_worker_served() -> Patches:
    """A worker that an operator has revoked is served."""

    def peer(self: Identities, signed: Any) -> Any:
        known = self._keys.of(signed.key_id)
        self._require_good(known.certificate)
        return known.row

    return [(Identities, "peer", peer)]


@mutant("registration-not-kept", "ack-durable", focus=("certificate-expires", "selecting"), **EXPIRING)
def _registration_not_kept() -> Patches:
    """A device is told that it is registered, and its new certificate is not stored."""
    from coordinator.store.memory import MemoryTransaction

    return [(MemoryTransaction, "certify_device", lambda self, device, key_id, certificate: None)]
