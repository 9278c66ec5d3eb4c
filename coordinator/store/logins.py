"""The part of the Store port that holds logins: browsers' sessions, and links that are exchanged for one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from coordinator.store.rows import LoginRow


class LoginReader(Protocol):
    def login(self, login: str) -> LoginRow | None:
        """The login of this id, expired or not."""
        ...

    def logins(self) -> list[LoginRow]:
        """All logins, oldest first."""
        ...


class LoginWriter(Protocol):
    def insert_login(self, row: LoginRow) -> None:
        """Conflict when the id is in use."""
        ...

    def drop_logins(self, logins: Iterable[str]) -> int:
        """Deletes these logins and returns how many of them there were: of two transactions that delete one, one
        counts it."""
        ...
