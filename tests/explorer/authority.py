"""The authority of one schedule: it certifies, renews and revokes, as ``coordinator.authority`` does.

Most certificates outlast every schedule. Where the fault ``certificate-expires`` is possible, some holders get short
ones until the storm is over, and the fault keeps the authority silent until one of these has expired. Who comes too
late gets a new enrolment token from a person.
"""

from __future__ import annotations

from typing import Literal, Protocol

from client_sdk.credentials.certificate import Certificate, RevocationList
from client_sdk.credentials.enrolment_token import EnrolmentToken
from client_sdk.protocol.problems import Problem, problem
from simulation.virtual.agenda import Agenda
from tests.explorer.chance import Chance
from tests.explorer.holders import DAY_S, Holder, certificate_of, list_of, trusted

SHORT_S = (15.0, 60.0)
"""Of how many seconds a short certificate is."""
LONG_S = 90 * DAY_S
BACKDATED_S = 10
"""How long before its issue the validity of a short one begins, in seconds."""
SILENT_S = 5.0
"""The authority is silent for at most so much longer than a certificate is valid."""


class AuthorityWorld(Protocol):
    """What the authority needs of the world."""

    chance: Chance
    agenda: Agenda
    stormy: bool


class ExplorerAuthority:
    """Its clock is the world's."""

    def __init__(self, world: AuthorityWorld) -> None:
        self._world = world
        self._began = int(world.agenda.now)
        self.short: set[str] = set()
        """Ids of the holders whose certificates are short."""
        self.silent_until = float("-inf")
        self.revoked: dict[str, int] = {}
        """Key id -> counter of the first list that it is on."""
        self.left_out: dict[str, int] = {}
        """Id of the holder -> counter of the first list that its key is on."""
        self.lists: list[RevocationList] = [list_of(1, self._began, frozenset())]
        self._newest: dict[str, Certificate] = {}
        """By key id."""
        self._used: set[tuple[bytes, str]] = set()
        """(secret of an enrolment token, key id)."""

    @property
    def id(self) -> str:
        """``TrustedAuthority.id``, in hexadecimal."""
        return trusted().id.hex()

    @property
    def ends_at(self) -> int:
        """When the certificates expire that are not short."""
        return self._began + LONG_S

    @property
    def newest_list(self) -> RevocationList:
        return self.lists[-1]

    def issue(self, holder: Holder) -> Certificate:
        """Certifies the holder's key from now on."""
        if holder.id in self.short:
            now = int(self._world.agenda.now)
            seconds = int(self._world.chance.between("certificate-s", *SHORT_S)) if self._in_storm else LONG_S
            newest = self._newest.get(holder.key_id)
            ends_at = now + seconds if newest is None else max(now + seconds, newest.not_after + 1)
            made = certificate_of(holder, now - BACKDATED_S, ends_at)
        else:
            made = certificate_of(holder, 0, self.ends_at)
        self._newest[holder.key_id] = made
        return made

    def ask(
        self, what: Literal["enrol", "renew", "rotate"], holder: Holder, token: EnrolmentToken | None
    ) -> Certificate | Problem | None:
        """The answer to a device or a worker; None: the authority is silent."""
        now = self._world.agenda.now
        if now < self.silent_until:
            return None
        if holder.key_id in self.revoked:
            return problem("revoked-key", "The authority has revoked this key.").problem
        newest = self._newest.get(holder.key_id)
        expired = newest is not None and now >= newest.not_after
        if what == "enrol":
            if token is None:
                return _refused("There is no token.")
            if (token.secret, holder.key_id) in self._used:
                return _refused("This token was used.") if expired else newest
            self._used.add((token.secret, holder.key_id))
            return self.issue(holder)
        if newest is None or expired:
            return _refused("The certificate has expired, and its key alone proves nothing.")
        is_young = now < (newest.not_before + newest.not_after) / 2
        return newest if is_young and self._in_storm else self.issue(holder)

    def is_silenced_for(self, holder: Holder) -> None:
        """The authority does not answer until the holder's certificate has expired."""
        newest, chance = self._newest.get(holder.key_id), self._world.chance
        if newest is not None:
            self.silent_until = max(self.silent_until, newest.not_after + chance.between("silent-s", 0.0, SILENT_S))

    def revoke(self, holder: Holder) -> RevocationList:
        """Revokes the holder's key. Returns the list that says so."""
        counter = self.newest_list.counter + 1
        self.revoked.setdefault(holder.key_id, counter)
        self.left_out.setdefault(holder.id, counter)
        self.lists.append(list_of(counter, int(self._world.agenda.now), frozenset(self.revoked)))
        return self.newest_list

    @property
    def _in_storm(self) -> bool:
        return self._world.stormy or self._world.agenda.now == self._began


def _refused(why: str) -> Problem:
    return problem("enrolment-refused", f"{why} Ask an operator of the authority for a new token.").problem
