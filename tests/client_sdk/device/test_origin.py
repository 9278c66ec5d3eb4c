"""Where a model comes from: which first models a device takes, and how far from them later ones may be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from client_sdk.device.contribution import first_made, model_digest, sketch_for
from client_sdk.identity import DeviceKey
from client_sdk.protocol.devices import Policy
from client_sdk.protocol.names import Route
from client_sdk.protocol.secure import SecureRefusal
from client_sdk.secagg.consent import SecurePolicy, require_terms
from client_sdk.secagg.errors import Refusal
from client_sdk.secagg.header import GraphRule, Terms
from client_sdk.secagg.memory import MOST_KNOWN, Known, Memory
from client_sdk.secagg.nearness import SKETCH_BYTES
from client_sdk.secagg.origin import First, require_origin, require_reachable, sign_model
from client_sdk.tensors import Tensors, to_bytes
from tests.client_sdk.bounds import any_work
from tests.client_sdk.device.secure_world import SessionPhone, finish, world_with

SECRET, RUN = b"s" * 32, b"r" * 32
MAX_NORM = 2.0
TERMS = Terms(
    q=16,
    max_norm=MAX_NORM,
    max_abs=1.0,
    weight_cap=1,
    rule=GraphRule(profile="strict"),
    minimum_cohort=64,
    move=MAX_NORM,
    move_each=MAX_NORM,
)
RNG = np.random.default_rng(4)
MODEL: Tensors = {
    "bn.running_mean": np.zeros(20, np.float32),
    "seen": np.array(7, np.int64),
    "w": RNG.standard_normal((50, 20)).astype(np.float32),
}
AWAY = (RNG.standard_normal((50, 20)) / np.sqrt(1000)).astype(np.float32)
"""Of norm 1, nearly."""


def sketch(moved: float = 0.0) -> bytes:
    return sketch_for(SECRET, to_bytes({**MODEL, "w": (MODEL["w"] + moved * AWAY).astype(np.float32)}))


def model(moved: float, version: int, at: float = 0.0) -> Known:
    return Known(version=version, at=at, sketch=sketch(moved))


MADE = First(sketch=sketch(), made=True, can_make=True)
FURTHER, DIFFERENT = "further from the last one", "not the one that the learner makes"
LATER = "under version 3 of the run's model is of no key that this device trusts, or is of another run, version"
UNKNOWN, UNTRUSTED = "does not know where the run's model comes from", "of no key that this device trusts"


def far(known: Known | None, now: Known, first: First = MADE, values: int = 1000, **bounds: Any) -> str:
    """Why this model is refused; empty where it is not."""
    try:
        require_reachable(TERMS, SecurePolicy(**bounds), known, first, now, values)
    except Refusal as refused:
        return str(refused) if refused.final else "for now"
    return ""


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({}, ""),
        ({"w": MODEL["w"] * np.float32(1 + 2e-6)}, ""),
        ({"w": MODEL["w"] * np.float32(1 + 1e-4)}, "w"),
        ({"w": np.float32("nan") * MODEL["w"]}, "w"),
        ({"w": MODEL["w"].astype(np.float64)}, "w"),
        ({"w": MODEL["w"].reshape(20, 50)}, "w"),
        ({"v": MODEL["w"]}, "v"),
        ({"seen": np.array(8, np.int64)}, "seen"),
        ({"bn.running_mean": np.full(20, 1e-7, np.float32)}, "bn.running_mean"),
        ({"~control/w": np.zeros_like(MODEL["w"])}, ""),
        ({"~control/w": MODEL["w"]}, "~control/w"),
    ],
)
def test_version_0_is_what_the_learner_makes_but_for_rounding(change: Tensors, differs: str) -> None:
    received = to_bytes({**MODEL, **change})
    found = first_made(MODEL, received, 0, sketch())
    assert found == First(sketch=sketch(), made=True, differs=differs, can_make=True)
    assert not first_made(MODEL, received, 1, sketch()).differs, "a later version is another"
    if differs:
        with pytest.raises(Refusal, match=DIFFERENT):
            require_origin(found, b"", SecurePolicy(), bytes(32))
        require_origin(found, b"", SecurePolicy(origins="any"), bytes(32))
    else:
        require_origin(found, b"", SecurePolicy(origins="signed"), bytes(32))


@pytest.mark.parametrize(
    ("can_make", "origins", "why"),
    [
        (True, "usual", UNKNOWN),
        (True, "signed", UNKNOWN),
        (True, "any", ""),
        (False, "usual", ""),
        (False, "signed", UNKNOWN),
        (False, "any", ""),
    ],
)
def test_a_model_of_which_nothing_is_said_goes_by_the_owners_policy(can_make: bool, origins: Any, why: str) -> None:
    policy = SecurePolicy(origins=origins)
    if not why:
        require_origin(First(can_make=can_make), b"", policy, bytes(32))
        return
    with pytest.raises(Refusal, match=why) as refused:
        require_origin(First(can_make=can_make), b"", policy, bytes(32))
    assert refused.value.final


@pytest.mark.parametrize("can_make", [True, False])
def test_a_signed_model_is_taken_from_the_authority_and_from_keys_that_the_owner_trusts(can_make: bool) -> None:
    authority, mine, other = (DeviceKey(bytes([n]) * 32) for n in range(1, 4))
    pinned, body = bytes.fromhex(authority.public_hex), to_bytes(MODEL)
    first = First(sketch=sketch(), signed=model_digest(body), can_make=can_make)
    trusting = SecurePolicy(origins="signed", model_keys=(mine.public_hex,))
    for key in (authority, mine):
        require_origin(first, sign_model(key, model_digest(body)), trusting, pinned)
    changed = to_bytes({**MODEL, "w": -MODEL["w"]})
    for signature in (sign_model(other, first.signed), sign_model(authority, model_digest(changed)), bytes(64)):
        with pytest.raises(Refusal, match=UNTRUSTED):
            require_origin(first, signature, trusting, pinned)
    with pytest.raises(Refusal, match=UNTRUSTED):
        require_origin(first, sign_model(mine, first.signed), SecurePolicy(), pinned)
    assert model_digest(to_bytes({**MODEL, "~control/w": MODEL["w"]})) == first.signed, "what a strategy shares"


def test_a_later_version_is_taken_where_the_signature_is_of_this_run_version_and_model() -> None:
    authority, pinned = DeviceKey(b"a" * 32), bytes.fromhex(DeviceKey(b"a" * 32).public_hex)
    digest = model_digest(to_bytes(MODEL))
    later = First(version=3, sketch=sketch(), signed=digest, can_make=True)
    bounded = SecurePolicy(origins="any")
    require_origin(later, sign_model(authority, digest, "run", 3), bounded, pinned, "run")
    other = model_digest(to_bytes({**MODEL, "w": -MODEL["w"]}))
    for signature in (
        sign_model(authority, digest, "run2", 3),
        sign_model(authority, digest, "run", 4),
        sign_model(authority, other, "run", 3),
        sign_model(authority, digest),
        sign_model(DeviceKey(b"b" * 32), digest, "run", 3),
        bytes(64),
    ):
        with pytest.raises(Refusal, match=LATER) as refused:
            require_origin(later, signature, bounded, pinned, "run")
        assert refused.value.final
    with pytest.raises(Refusal, match=UNTRUSTED):
        require_origin(replace(later, version=0), sign_model(authority, digest, "run", 3), SecurePolicy(), pinned)
    require_origin(later, bytes(64), SecurePolicy(origins="any", largest_move=None), pinned, "run")


@pytest.mark.parametrize(
    ("known", "moved", "version", "why"),
    [
        (None, 500.0, 7, ""),
        (model(0.0, 6), 500.0, 7, ""),
        (model(0.0, 6), 502.0, 8, ""),
        (model(0.0, 6), 510.0, 8, FURTHER),
        (None, 502.0, 8, ""),
        (None, 560.0, 800, FURTHER),
        (None, 500.0, 6, FURTHER),  # a signature of a version that is not there yet
        (model(0.0, 7), 500.0, 8, FURTHER),  # what it knows is as new as what was signed
    ],
)
def test_models_after_a_signed_version_are_measured_from_there(
    known: Known | None, moved: float, version: int, why: str
) -> None:
    signed = First(version=7, sketch=sketch(500.0), signed=b"s" * 32)
    assert why in (found := far(known, model(moved, version, at=5.0), signed))
    assert bool(found) == bool(why)


@pytest.mark.parametrize(
    ("moved", "version", "late", "why"),
    [
        (0.0, 0, 10, ""),
        (2.0, 1, 10, ""),
        (4.0, 1, 10, FURTHER),
        (19.0, 10, 10, ""),
        (19.0, 1_000_000, 10, ""),
        (40.0, 1_000_000, 10, FURTHER),
        (40.0, 1_000_000, 20, ""),
        (0.1, 1_000_000, 0, FURTHER),
    ],
)
def test_the_first_model_that_a_device_sees_of_a_run_is_near_its_origin(
    moved: float, version: int, late: int, why: str
) -> None:
    assert why in (found := far(None, model(moved, version), late_moves=late))
    assert bool(found) == bool(why)
    assert not far(None, model(moved, version), First(can_make=True)), "nothing to measure from"
    assert not far(None, model(moved, version), largest_move=None, late_moves=late)


@pytest.mark.parametrize(
    ("moved", "version", "at", "why"),
    [
        (2.0, 21, 0.1, ""),
        (4.0, 21, 1e9, FURTHER),
        (2.0, 20, 1e9, ""),  # a run that was set back, or a second attempt
        (9.5, 25, 1e9, ""),
        (9.5, 15, 1e9, ""),
        (9.5, 25, 30.0, ""),  # a round in 10 s, and one more
        (14.0, 1_000_000, 30.0, FURTHER),
        (14.0, 1_000_000, 60.0, ""),
        (4.0, 1_000_000, -50.0, FURTHER),  # the clock went back
    ],
)
def test_a_later_model_is_no_further_than_the_rounds_since_by_its_own_clock(
    moved: float, version: int, at: float, why: str
) -> None:
    assert why in (found := far(model(0.0, 20), model(moved, version, at)))
    assert bool(found) == bool(why)


def test_a_model_that_cannot_be_measured_is_far() -> None:
    for value in ("inf", "nan"):
        body = to_bytes({**MODEL, "w": np.full((50, 20), value, np.float32)})
        assert FURTHER in far(model(0.0, 1), Known(version=2, at=1e9, sketch=sketch_for(SECRET, body)))
    other = Known(version=2, at=1e9, sketch=sketch_for(SECRET, to_bytes({"v": MODEL["w"]})))
    assert FURTHER in far(model(0.0, 1), other)


def test_a_plan_that_moves_a_model_further_than_the_owner_allows_is_refused() -> None:
    wide = "at most 3 times max_norm; the plan's may move it by up to 3.5 times it"
    with pytest.raises(Refusal, match=wide):
        require_terms(replace(TERMS, move=7.0, move_each=7.0), SecurePolicy())
    with pytest.raises(Refusal, match="by any distance"):
        require_terms(replace(TERMS, move=np.inf, move_each=np.inf), SecurePolicy())
    require_terms(replace(TERMS, move=6.0, move_each=6.0), SecurePolicy())
    require_terms(replace(TERMS, move=np.inf, move_each=np.inf), SecurePolicy(largest_move=None))


def test_a_step_in_every_coordinate_is_as_long_as_the_model_is_large() -> None:
    """Known once the model is there: the square root of its number of values."""
    adam = replace(TERMS, move=1000.0, move_each=0.1)
    require_terms(adam, SecurePolicy())
    require_reachable(adam, SecurePolicy(), model(0.0, 1), MADE, model(0.0, 2), 3600)
    with pytest.raises(Refusal, match=r"by up to 3\.02 times it"):
        require_reachable(adam, SecurePolicy(), model(0.0, 1), MADE, model(0.0, 2), 3640)


def test_a_device_measures_from_one_model_until_a_round_can_have_passed() -> None:
    """Otherwise a coordinator could walk a model on by one move with each assignment."""
    memory = Memory().knowing(RUN, model(0.0, 1, at=100.0), 10.0)
    assert memory.knowing(RUN, model(1.0, 2, at=109.9), 10.0) is memory
    later = memory.knowing(RUN, model(1.0, 2, at=110.0), 10.0)
    assert later.known == {RUN: model(1.0, 2, at=110.0)}
    assert memory.knowing(RUN, model(1.0, 2, at=50.0), 10.0).known[RUN].at == 50.0
    assert Memory.parse(later.encoded) == later
    assert later.marks == later, "a device that leaves and comes again knows it still"
    for number in range(MOST_KNOWN):
        later = later.knowing(bytes([number % 256]) * 31 + b"x", model(0.0, 1), 10.0)
    assert len(later.known) == MOST_KNOWN
    assert RUN not in later.known
    assert len(later.encoded) - len(Memory().encoded) == MOST_KNOWN * (48 + SKETCH_BYTES)


# In a session.


def told(phone: SessionPhone) -> list[str]:
    """Why it declined."""
    return [
        send.message.reason for send in phone.routes(Route.SECURE_REFUSAL) if isinstance(send.message, SecureRefusal)
    ]


def owned(phone: SessionPhone, **bounds: Any) -> None:
    usual = {"origins": "usual", "largest_move": 3.0, "smallest_cohort": 3, "smallest_sigma": 20}
    phone.policy = Policy(secure=any_work(**{**usual, **bounds}))


def own_run() -> bytes:
    """The key of the run that each of these worlds has."""
    world, (phone,) = world_with(1)
    phone.sketch = sketch()
    finish(world, [phone])
    (found,) = phone.storage.load_secure().known
    return found


@pytest.mark.parametrize(
    ("first", "why"),
    [(MADE, ""), (First(can_make=True), UNKNOWN), (First(), ""), (replace(MADE, differs="w"), DIFFERENT)],
)
def test_a_device_declines_a_run_of_which_it_does_not_know_the_origin_before_it_trains(first: First, why: str) -> None:
    world, (phone,) = world_with(1)
    owned(phone)
    phone.sketch, phone.first = sketch(), first
    finish(world, [phone])
    if why:
        assert why in " ".join(told(phone))
        assert (phone.trainings, phone.storage.load_secure().known) == (0, {})
    else:
        assert phone.history == [(1, "receipt")]
        assert [known.sketch for known in phone.storage.load_secure().known.values()] == [sketch()]


@pytest.mark.parametrize(
    ("moved", "first", "why"), [(1.0, First(), ""), (99.0, First(sketch=sketch(), can_make=True), FURTHER)]
)
def test_a_device_holds_a_model_against_the_last_one_that_it_knows(moved: float, first: First, why: str) -> None:
    run, (world, (phone,)) = own_run(), world_with(1)
    owned(phone)
    phone.sketch, phone.first = sketch(moved), first
    phone.storage.keep(lambda newest: newest.knowing(run, model(0.0, 0), 10.0))
    finish(world, [phone])
    assert why in (reasons := " ".join(told(phone)))
    assert bool(reasons) == bool(why)


def test_a_later_version_that_is_too_far_from_the_known_one_is_not_held_against_the_first_one() -> None:
    """A coordinator could exchange the model for any near the first one, by a version of ``late_moves``."""
    run, (world, (phone,)) = own_run(), world_with(1)
    owned(phone, late_moves=10)
    phone.sketch, phone.first = sketch(99.0), First(sketch=sketch(99.0), can_make=True, signed=b"s" * 32)
    phone.storage.keep(lambda newest: newest.knowing(run, model(0.0, -1), 10.0))
    finish(world, [phone])
    assert FURTHER in " ".join(told(phone))


def test_a_run_of_a_known_name_that_has_begun_anew_is_measured_from_its_own_first_model() -> None:
    run, (world, (phone,)) = own_run(), world_with(1)
    owned(phone)
    phone.sketch, phone.first = sketch(), MADE
    phone.storage.keep(lambda newest: newest.knowing(run, model(500.0, 7), 10.0))
    finish(world, [phone])
    assert phone.history == [(1, "receipt")]
    assert phone.storage.load_secure().known[run].sketch == sketch()
