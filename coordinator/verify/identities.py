"""Holds the rows of who may ask against the credentials in them and the audit: certificates of devices and workers,
revocation lists, API keys, places in the pool. No log of a run has them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from client_sdk.credentials.certificate import Certificate, HolderClass
from client_sdk.credentials.errors import CredentialError
from client_sdk.credentials.identity_keys import TrustedAuthority
from client_sdk.credentials.revocations import RevocationList
from client_sdk.flower.work import node_id
from coordinator.runtime.held_list import list_row
from coordinator.store.port import AuditRow, DeviceRow, Reader
from coordinator.verify.violation import Violation, printable

_PAGE = 5000
_NEVER = float("-inf")


@dataclass(slots=True)
class IdentityChecks:
    """``findings`` reads the rows once; ``notes`` says then what was not checked."""

    authorities: Collection[TrustedAuthority]
    """Those whose public keys were given."""
    _unchecked: int = 0
    """Credentials of an authority whose key was not given."""

    def findings(self, reader: Reader) -> Iterator[Violation]:
        """What speaks against them."""
        keys = {authority.id: authority for authority in self.authorities}
        recorded = {row.authority for row in reader.authorities()}
        audited = _Audited(reader)
        caps: dict[str, int] = {}
        for device in _devices(reader):
            caps[device.device] = device.examples_cap
            name = f"device {device.device}"
            if device.node not in (None, node_id(device.device)):
                yield _violation(f"{name} has the node id {device.node}, which is not its own")
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
        for worker in reader.workers():
            if worker.certificate:
                for wrong in self._certificate(
                    worker.worker, "worker", worker.key_id, worker.certificate, keys, recorded
                ):
                    yield _violation(f"worker {worker.worker}: {wrong}")
            elif worker.worker in audited.registered["worker"]:
                yield _violation(
                    f"worker {worker.worker} has no certificate, and the audit says that it was registered with one"
                )
        yield from self._lists(reader, keys, recorded, audited)
        yield from audited.keys(reader)
        for name, count in Counter(claim.device for claim in reader.claims()).items():
            if count > 1:
                yield _violation(f"device {name} has {count} assignments, and may have one")
        for waiting in reader.waiting(_NEVER):
            if waiting.device not in caps:
                yield _violation(f"{waiting.device} waits, and is not registered")
            elif waiting.examples > caps[waiting.device]:
                allowed = f"its registration allows {caps[waiting.device]}"
                yield _violation(f"device {waiting.device} waits with {waiting.examples} examples, and {allowed}")

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
        if recorded and found.authority.hex() not in recorded:
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
            if recorded and row.authority not in recorded:
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
        self.registered: dict[HolderClass, set[str]] = {"device": set(), "worker": set()}
        self.lists: dict[int, set[int]] = defaultdict(set)
        """Counter -> how many keys lists of this number had."""
        self._made: set[str] = set()
        self._asked: Counter[str] = Counter()
        """Requests for a key, by operator, of which no row says how they ended."""
        after = 0
        while page := reader.audit_of_all(after, _PAGE):
            for _, row in page:
                self._add(row)
            after = max(number for number, _ in page)

    def _add(self, row: AuditRow) -> None:
        says = dict(word.partition("=")[::2] for word in row.detail.split())
        match row.action:
            case "device.register done":
                self.registered["device"].add(says.get("device", ""))
            case "worker.register done":
                self.registered["worker"].add(says.get("worker", ""))
            case "revocations.taken":
                self.lists[int(says["counter"])].add(int(says["keys"]))
            case "key.create":
                self._asked[row.by] += 1
            case "key.create done" | "key.create refused":
                self._asked[row.by] -= 1
                self._made.add(says.get("key", ""))
            case _:  # other actions make no row of these
                pass

    def keys(self, reader: Reader) -> Iterator[Violation]:
        """API keys that nobody created. A request that a crash cut short may have left one."""
        for row in reader.api_keys():
            if row.key in self._made:
                continue
            if self._asked[row.created_by] > 0:
                self._asked[row.created_by] -= 1
                continue
            yield _violation(f"the API key {row.key} of role {row.role!r} is stored, and the audit has no row of it")


def _devices(reader: Reader) -> Iterator[DeviceRow]:
    after = ""
    while page := reader.devices(_PAGE, after):
        yield from page
        after = page[-1].device


def _violation(what: str) -> Violation:
    return Violation("identity", "", 0, printable(what))
