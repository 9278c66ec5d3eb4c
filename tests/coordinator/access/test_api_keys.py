"""API keys: shown once, stored as a hash, valid until they expire or are revoked."""

from __future__ import annotations

import pytest

from client_sdk.protocol.access import CreateKey
from client_sdk.protocol.problems import ProblemError
from coordinator.access import LOCAL_OWNER, Grant, Operator
from tests.coordinator.world import World

DAY_S = 86_400


@pytest.fixture
def world() -> World:
    return World(0)


def refusal(world: World, text: str) -> str:
    with pytest.raises(ProblemError) as caught:
        world.coordinator.access.operator(text)
    assert caught.value.kind == "unauthenticated"
    return str(caught.value)


def test_a_key_says_who_its_operator_is_until_it_expires(world: World) -> None:
    keys = world.coordinator.access.keys
    made = keys.create(LOCAL_OWNER, CreateKey(role="operator", scope="mnist-*", label="ci", expires_in_s=DAY_S))
    operator = world.coordinator.access.operator(made.text)
    assert (operator.id, str(operator)) == (f"key:{made.key}", "operator mnist-*")
    assert operator.expires_at == made.expires_at == world.clock.at + DAY_S
    world.clock.at += DAY_S
    assert "has expired" in refusal(world, made.text)


def test_a_revoked_key_is_refused_also_by_a_replica(world: World) -> None:
    keys = world.coordinator.access.keys
    made = keys.create(LOCAL_OWNER, CreateKey(role="owner"))
    assert world.replica().access.operator(made.text)
    keys.revoke(LOCAL_OWNER, made.key)
    assert "was revoked" in refusal(world, made.text)
    with pytest.raises(ProblemError, match="was revoked"):
        world.replica().access.operator(made.text)


def test_only_the_whole_text_is_a_key(world: World) -> None:
    made = world.coordinator.access.keys.create(LOCAL_OWNER, CreateKey(role="owner"))
    secret = made.text.rpartition("_")[2]
    wrong = secret[:-1] + ("0" if secret[-1] != "0" else "1")
    for text in (f"qk_{made.key}_{wrong}", f"qk_{'0' * 16}_{secret}", made.text + "0", made.text.upper(), "qk_", ""):
        refusal(world, text)


def test_the_store_has_no_secret(world: World) -> None:
    made = world.coordinator.access.keys.create(LOCAL_OWNER, CreateKey(role="owner", label="first"))
    secret = made.text.rpartition("_")[2]
    (row,) = world.store.api_keys()
    assert secret not in repr(row)
    assert secret not in repr(world.coordinator.access.keys.listed(LOCAL_OWNER))
    assert (row.role, row.scope, row.label, row.created_by) == ("owner", "*", "first", LOCAL_OWNER.id)


def test_an_owner_gives_keys_within_the_own_scope_and_sees_no_others(world: World) -> None:
    keys = world.coordinator.access.keys
    paul = Operator("paul", (Grant.parse("owner mnist-*"),))
    mine = keys.create(paul, CreateKey(role="viewer", scope="mnist-1"))
    for scope in ("*", "mnist", "m*"):
        with pytest.raises(ProblemError, match="is beyond what you may do: owner mnist-"):
            keys.create(paul, CreateKey(role="viewer", scope=scope))
    other = keys.create(LOCAL_OWNER, CreateKey(role="viewer", scope="cifar"))
    assert [row.key for row in keys.listed(paul)] == [mine.key]
    assert {row.key for row in keys.listed(LOCAL_OWNER)} == {mine.key, other.key}
    with pytest.raises(ProblemError, match=f"no key {other.key} within your scope"):
        keys.revoke(paul, other.key)
    assert keys.revoke(paul, mine.key).revoked_at == world.clock.at
