"""One link and several replicas, each with its own connections to one database: one of them opens a session."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from client_sdk.protocol.access import CreateKey
from client_sdk.protocol.problems import ProblemError
from coordinator.access import LOCAL_OWNER, OperatorAccess
from coordinator.access.sessions import LINK_S
from coordinator.store import open_store
from coordinator.store.port import Store, StoreError
from tests.coordinator.store import postgres
from tests.coordinator.world import StandingClock

REPLICAS, LINKS = 4, 12
USED = "this link was used, or is out of date; 'quorate dashboard --login' prints another"
USED_NOW = "this link was used already"
PROGRAMS = postgres.programs()
pytestmark = pytest.mark.slow
ON_POSTGRES = [
    pytest.mark.service,
    pytest.mark.skipif(PROGRAMS is None, reason="no PostgreSQL here: scripts/debian.sh postgresql"),
]


class Replicas:
    """What decides about logins in four processes."""

    def __init__(self, stores: list[Store]) -> None:
        self.clock = StandingClock()
        self.store = stores[0]
        self.access = [OperatorAccess(store, self.clock.now, os.urandom) for store in stores]
        asked = CreateKey.model_validate({"role": "owner", "scope": "*"})
        self.key = self.access[0].keys.create(LOCAL_OWNER, asked).text

    def link(self, access: OperatorAccess) -> str:
        return access.sessions.create_link(access.keys.operator(self.key)).token

    def at_once(self, act: Callable[[OperatorAccess], str]) -> tuple[list[str], list[Exception]]:
        """What each replica's thread returns, and what the others raise, when all begin at the same moment."""
        together, done, refused = threading.Barrier(len(self.access)), list[str](), list[Exception]()

        def one(access: OperatorAccess) -> None:
            together.wait(10)
            try:
                done.append(act(access))
            except (ProblemError, StoreError) as error:
                refused.append(error)

        threads = [threading.Thread(target=one, args=(access,)) for access in self.access]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(done) + len(refused) == len(self.access)
        return done, refused


@pytest.fixture(params=["SQLite", pytest.param("PostgreSQL", marks=ON_POSTGRES)])
def replicas(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Replicas]:
    with ExitStack() as stack:
        url = f"sqlite:///{tmp_path / 'one.db'}"
        if request.param == "PostgreSQL":
            assert PROGRAMS is not None
            server = stack.enter_context(postgres.running(PROGRAMS))
            url = server.url(server.create())
        stores = [open_store(url) for _ in range(REPLICAS)]
        for store in stores:
            stack.callback(store.close)
        yield Replicas(stores)


def test_a_link_opens_one_session_whichever_replicas_get_it_at_the_same_moment(replicas: Replicas) -> None:
    for number in range(1, LINKS + 1):
        token = replicas.link(replicas.access[0])

        def follow(access: OperatorAccess, token: str = token) -> str:
            return access.log_in(lambda: access.sessions.open_by_link(token)).secret

        opened, refused = replicas.at_once(follow)
        assert len(opened) == 1, refused
        assert {str(error) for error in refused} <= {USED, USED_NOW}
        assert [row.kind for row in replicas.store.logins()] == ["session"] * number
        assert all(access.sessions.operator(opened[0]).by == "local" for access in replicas.access)
    actions = [row.action for _, row in replicas.store.audit_of_all(0, 1000)]
    assert actions.count("login") == LINKS


def test_replicas_that_delete_the_same_expired_logins_wait_for_each_other(replicas: Replicas) -> None:
    """Each login deletes what has expired, and its operator's oldest beyond their number."""
    for number in range(3 * LINKS):
        replicas.clock.at += LINK_S if number % 5 == 4 else 1
        tokens = {access: replicas.link(access) for access in replicas.access}

        def act(access: OperatorAccess, tokens: dict[OperatorAccess, str] = tokens) -> str:
            if replicas.access.index(access) % 2:
                return replicas.link(access)
            return access.sessions.open_by_link(tokens[access]).secret

        done, refused = replicas.at_once(act)
        assert len(done) == REPLICAS, refused
