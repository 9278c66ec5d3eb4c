"""Holds the rows of who may ask against the credentials in them and the audit: certificates of devices and workers,
authorities, revocation lists, API keys, places in the pool. No log of a run has them.

The audit of a folder that was never served, as a simulation's, does not begin with a key: it has no row of who was
taken in elsewhere. The label of a device is in no audit: rows stay, and a device that leaves is promised that its label
does not.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from client_sdk.credentials.certificate import Certificate, HolderClass, RevocationList
from client_sdk.credentials.errors import CredentialError
from client_sdk.credentials.identity_keys import TrustedAuthority
from client_sdk.flower.work import node_id
from client_sdk.protocol.devices import rounded_size
from coordinator.runtime.process_state import list_row
from coordinator.store.port import AuditRow, DeviceRow, Reader
from coordinator.verify.audit import audit_rows
from coordinator.verify.kinds import every_device
from coordinator.verify.violation import Violation, printable

_NEVER = float("-inf")
_APART_S = 5.0
"""By how much the clock may have gone back during a request."""


@dataclass(slots=True)
class IdentityChecks:
    """``findings`` reads the rows once; ``notes`` says then what was not checked."""

    authorities: Collection[TrustedAuthority]
    """The authorities whose public keys were given."""
    _unchecked: int = 0
    """Credentials of an authority whose key was not given."""
    _without_certificate: dict[str, str] = field(default_factory=dict)
    """Id -> kind of those that only a simulation makes, where a coordinator has served."""
    _simulated: bool = False
    """Whether nodes of a simulated Flower run are here, which no log names."""

    def findings(self, reader: Reader) -> Iterator[Violation]:
        """What speaks against them."""
        keys = {authority.id: authority for authority in self.authorities}
        authorities = reader.authorities()
        recorded = {row.authority for row in authorities}
        audited = _Audited(reader)
        caps: dict[str, int] = {}
        times: Counter[tuple[str, str]] = Counter()
        for device in every_device(reader):
            caps[device.device] = device.examples_cap
            times["device", device.device] += 1
            name = f"device {device.device}"
            if device.node not in (None, node_id(device.device)):
                yield _violation(f"{name} has the node id {device.node}, which is not its own")
            joined = audited.caps.get(device.device)
            if joined is not None and (rounded := rounded_size(device.examples_cap)) != joined:
                yield _violation(f"{name} may claim {rounded} examples, rounded up, and it registered with {joined}")
            yield from audited.registration("device", device.device, device.enrolled_at)
            yield from audited.leaving(device)
            if device.key_id is None:
                if device.certificate or device.left_at is None:
                    yield _violation(f"{name} has no key, and has not left")
            elif device.certificate:
                for wrong in self._certificate(
                    device.device, "device", device.key_id, device.certificate, keys, recorded
                ):
                    yield _violation(f"{name}: {wrong}")
            elif device.device in audited.registered["device"]:
                yield _violation(f"{name} has no certificate, and the audit says that it was registered with one")
            elif audited.begun:
                self._without_certificate[device.device] = "device"
                self._simulated |= device.node is not None and bool(reader.flower_run_ids())
        workers = reader.workers()
        for worker in workers:
            yield from audited.registration("worker", worker.worker, worker.created_at)
            yield from audited.revocation("worker", worker.worker, f"worker {worker.worker}", worker.revoked_at)
            labels = audited.labels.get(worker.worker, {worker.label})
            if worker.label not in labels:
                yield _violation(
                    f"worker {worker.worker} is called {worker.label!r}, and it registered as {min(labels)!r}"
                )
            if worker.certificate:
                for wrong in self._certificate(
                    worker.worker, "worker", worker.key_id, worker.certificate, keys, recorded
                ):
                    yield _violation(f"worker {worker.worker}: {wrong}")
            elif worker.worker in audited.registered["worker"]:
                yield _violation(
                    f"worker {worker.worker} has no certificate, and the audit says that it was registered with one"
                )
            elif audited.begun:
                self._without_certificate[worker.worker] = "worker"
        for holder, stored in (("device", caps.keys()), ("worker", {worker.worker for worker in workers})):
            for name in sorted(audited.registered[holder] - stored):
                yield _violation(f"{holder} {name} is not there, and the audit says that it was registered")
        yield from self._lists(reader, keys, recorded, audited)
        taken = Counter((row.authority, str(row.inside), row.since) for row in authorities)
        if audited.begun:
            for authority, inside, since in taken - audited.authorities:
                yield _violation(f"the authority {authority} (inside: {inside}, since {since}) is not in the audit")
        for authority, inside, since in audited.authorities - taken:
            yield _violation(f"the authority {authority} (inside: {inside}, since {since}) is in the audit alone")
        yield from audited.keys(reader)
        for login in reader.logins():
            if login.kind == "session" and login.login not in audited.sessions:
                yield _violation(
                    f"the session {login.login} of {login.who} is stored, and the audit has no login of it"
                )
        for name, count in Counter(claim.device for claim in reader.claims()).items():
            if count > 1:
                yield _violation(f"device {name} has {count} assignments, and may have one")
        for waiting in reader.waiting(_NEVER):
            times["place in the pool of", waiting.device] += 1
            if waiting.device not in caps:
                yield _violation(f"{waiting.device} waits, and is not registered")
            elif waiting.examples > caps[waiting.device]:
                allowed = f"its registration allows {caps[waiting.device]}"
                yield _violation(f"device {waiting.device} waits with {waiting.examples} examples, and {allowed}")
        times.update(("worker", worker.worker) for worker in workers)
        times.update(("API key", row.key) for row in reader.api_keys())
        times.update(("login", login.login) for login in reader.logins())
        times.update(("revocation list", f"{row.counter} of {row.authority}") for row in reader.revocation_lists())
        for (kind, name), count in times.items():
            if count > 1:  # the tables' keys forbid it: somebody has removed one
                yield _violation(f"the {kind} {name} is stored {count} times")

    def without_certificate(self, took_part: Collection[set[str]]) -> Iterator[Violation]:
        """Devices and workers as a simulation makes them, where no run may be one of a simulation. ``took_part``: who
        did, run by run; nobody yet: it may be."""
        if self._simulated or any(not named or self._without_certificate.keys() & named for named in took_part):
            return
        for name, kind in self._without_certificate.items():
            yield _violation(f"{kind} {name} has no certificate, is in no audit, and no run is simulated")

    def notes(self) -> Iterator[str]:
        """What could not be checked, for people."""
        if self._unchecked:
            yield (
                f"{self._unchecked} certificates and revocation lists are of an authority whose key was not given, so "
                "their signatures are not checked (give it by --authority-key)"
            )

    def _certificate(
        self,
        id: str,
        holder: HolderClass,
        key_id: str | None,
        encoded: str,
        keys: Mapping[bytes, TrustedAuthority],
        recorded: Collection[str],
    ) -> Iterator[str]:
        try:
            found = Certificate.parse(bytes.fromhex(encoded))
            if found.authority in keys:
                found.require_signed(keys[found.authority])
            else:
                self._unchecked += 1
        except (CredentialError, ValueError) as error:
            yield f"its certificate is not valid: {error}"
            return
        if (found.id, found.holder) != (id, holder):
            yield f"its certificate is that of the {found.holder} {found.id}"
        if found.key_id.hex() != key_id:
            yield f"its key is {key_id}, and its certificate is of {found.key_id.hex()}"
        if found.authority.hex() not in recorded:
            yield f"its certificate is of the authority {found.authority.hex()}, which this coordinator never took"

    def _lists(
        self, reader: Reader, keys: Mapping[bytes, TrustedAuthority], recorded: Collection[str], audited: _Audited
    ) -> Iterator[Violation]:
        newest = 0
        for row in reader.revocation_lists():
            name = f"revocation list {row.counter} of {row.authority}"
            newest = max(newest, row.counter)
            try:
                found = RevocationList.parse(row.encoded)
                if found.authority in keys:
                    found.require_signed(keys[found.authority])
                else:
                    self._unchecked += 1
            except (CredentialError, ValueError) as error:
                yield _violation(f"{name} is not valid: {error}")
                continue
            if list_row(found) != row:
                yield _violation(f"{name}: its row differs from the bytes of list {found.counter}")
            if row.authority not in recorded:
                yield _violation(f"{name} is of an authority that this coordinator never took")
            sizes = audited.lists.get(row.counter, {len(found.revoked)})
            if len(found.revoked) not in sizes:
                yield _violation(f"{name} has {len(found.revoked)} keys, and the audit says {max(sizes)}")
        if audited.lists and newest < max(audited.lists):
            taken = f"the audit says that number {max(audited.lists)} was taken"
            yield _violation(f"the newest revocation list has number {newest}, and {taken}")


class _Audited:
    """What the audit says of registrations, lists and API keys."""

    def __init__(self, reader: Reader) -> None:
        self.registered: dict[str, set[str]] = {"device": set(), "worker": set()}
        self.caps: dict[str, int] = {}
        """Device -> the most examples that it may claim, rounded up, since it registered first."""
        self.labels: dict[str, set[str]] = defaultdict(set)
        """Worker -> what it asked to be called."""
        self.begun = False
        """Whether a coordinator has served with this audit: then it has all of the following."""
        self.authorities: Counter[tuple[str, str, float]] = Counter()
        self._first: dict[tuple[str, str], float] = {}
        """(action, device, worker or API key) -> when the audit first has it."""
        self.lists: dict[int, set[int]] = defaultdict(set)
        """Counter -> how many keys lists of this number had."""
        self.sessions: set[str] = set()
        self._made: dict[str, str] = {}
        """API key -> the digest of its row."""
        for _, row in audit_rows(reader):
            self._add(row)

    def _add(self, row: AuditRow) -> None:
        says: dict[str, str] = {}
        for word in row.detail.split():
            says.setdefault(*word.partition("=")[::2])
        match row.action:
            case "audit.key":
                self.begun = True
            case "authority.taken":
                self.authorities[says["authority"], says["inside"], row.at] += 1
            case "device.leave":
                self._first.setdefault((row.action, row.by), row.at)
            case "device.register done":  # it is in the transaction that registers
                for action in ("device.register", row.action):
                    self._first.setdefault((action, says["device"]), row.at)
                self.registered["device"].add(says["device"])
                if "rounded_cap" in says:
                    self.caps.setdefault(says["device"], int(says["rounded_cap"]))
            case "worker.register":
                self._first.setdefault((row.action, row.by), row.at)
                self.labels[row.by].add(row.detail.partition("=")[2])
            case "worker.register done":
                self._first.setdefault((row.action, says["worker"]), row.at)
                self.registered["worker"].add(says["worker"])
            case "worker.revoke" | "worker.revoke done" | "key.revoke" | "key.revoke done":
                self._first.setdefault((row.action, says[row.action.partition(".")[0]]), row.at)
            case "login":
                self.sessions.add(row.detail.rpartition("session=")[2])
            case "revocations.taken":
                self.lists[int(says["counter"])].add(int(says["keys"]))
            case "key.create done":
                self._made[says["key"]] = says.get("row", "")
            case _:  # other actions make no row of these
                pass

    def registration(self, kind: str, id: str, at: float) -> Iterator[Violation]:
        """When it was registered. A worker's request is recorded before and after it is carried out, by the clock of
        one process, and a device's with it."""
        done = self._first.get((f"{kind}.register done", id))
        if done is not None and not self._between(f"{kind}.register", id, at):
            yield _violation(f"{kind} {id} was registered at {at}, and by the audit at {done}")

    def leaving(self, device: DeviceRow) -> Iterator[Violation]:
        """When the device left."""
        asked = self._first.get(("device.leave", device.device))
        if device.left_at is None:
            return
        if asked is None and self.begun:
            yield _violation(f"device {device.device} has left, and the audit has no request of that")
        elif asked is not None and device.left_at < asked - _APART_S:
            yield _violation(f"device {device.device} left at {device.left_at}, and asked for it at {asked}")

    def revocation(self, kind: str, id: str, name: str, at: float | None) -> Iterator[Violation]:
        """What the audit says against a revocation at this time; ``at`` None: against none. Of a request that a crash
        has cut short the audit has the beginning alone."""
        action = f"{kind}.revoke"
        asked, done = self._first.get((action, id)), self._first.get((f"{action} done", id))
        if at is None:
            if done is not None:
                yield _violation(f"{name} is not revoked, and the audit says that it was")
        elif asked is None and done is None:
            if self.begun or kind == "key":
                yield _violation(f"{name} is revoked, and the audit has no request of that")
        elif not self._between(action, id, at):
            yield _violation(f"{name} was revoked at {at}, and by the audit at {done or asked}")

    def _between(self, action: str, id: str, at: float) -> bool:
        """Whether it was carried out at this time, by the first request of it."""
        after, before = self._first.get((action, id), _NEVER), self._first.get((f"{action} done", id), -_NEVER)
        return after - _APART_S <= at <= before + _APART_S

    def keys(self, reader: Reader) -> Iterator[Violation]:
        """API keys that nobody created so, or that were revoked. A key and its row of the audit are one transaction."""
        rows = {row.key: row for row in reader.api_keys()}
        for key, row in rows.items():
            name, made = f"the API key {key} of role {row.role!r}", self._made.get(key)
            if made is None:
                yield _violation(f"{name} is stored, and the audit has no row of it")
            elif made != row.digest:
                yield _violation(f"{name} was created with another grant, secret, label, time or creator")
            yield from self.revocation("key", key, name, row.revoked_at)
        for key in sorted(self._made.keys() - rows.keys()):
            yield _violation(f"the API key {key} is not there, and the audit says that it was created")


def _violation(what: str) -> Violation:
    return Violation("identity", "", 0, printable(what))
