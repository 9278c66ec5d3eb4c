"""How near, how often: into whose sums a device puts an update, and how near the models of two of these may be."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk.device.contribution import sketch_for
from client_sdk.device.data_ledger import LedgerFile
from client_sdk.device.record import StorageError
from client_sdk.device.storage import FileStorage
from client_sdk.protocol.devices import Policy
from client_sdk.protocol.names import Route
from client_sdk.protocol.secure import SecureRefusal
from client_sdk.secagg.consent import SecurePolicy, require_another_model, require_sums_left
from client_sdk.secagg.errors import BadMessage, Refusal
from client_sdk.secagg.header import GraphRule, Terms
from client_sdk.secagg.memory import MOST_ANSWERED, Answered, Memory
from client_sdk.secagg.nearness import SKETCH_BYTES, distance, sketch_of
from client_sdk.tensors import Manifest, Tensors, from_bytes, narrow, to_bytes
from coordinator.blobs import MemoryBlobs
from coordinator.secure.performing import advance
from tests.client_sdk.bounds import any_work
from tests.client_sdk.device.secure_world import SessionPhone, finish, world_with

SECRET, KIND = b"s" * 32, b"kind" * 2
DAY = 86_400.0
TERMS = Terms(q=16, max_norm=2.0, max_abs=1.0, weight_cap=1, rule=GraphRule(profile="strict"), minimum_cohort=64)
MODEL = {"w": np.linspace(-1, 1, 5000, dtype=np.float32).reshape(50, 100), "bn.running_mean": np.ones(100, np.float32)}


def of(*arrays: Any, kind: bytes = KIND, secret: bytes = SECRET) -> bytes:
    return sketch_of([np.asarray(one) for one in arrays], kind, secret)


def test_distances_are_those_of_the_models_within_the_sketch() -> None:
    """The mean of the squares over many secrets is the square: the estimate is unbiased."""
    rng = np.random.default_rng(1)
    model = rng.standard_normal(70_000).astype(np.float32)
    for moved in (rng.standard_normal(70_000) * 1e-3, np.eye(1, 70_000, 65_600).ravel() * 0.2):
        near = (model + moved).astype(np.float32)
        true = float(np.linalg.norm(near.astype(np.float64) - model))
        found = [distance(of(model, secret=bytes([n]) * 32), of(near, secret=bytes([n]) * 32)) for n in range(100)]
        assert abs(float(np.mean(np.square(found))) / true**2 - 1) < 0.08
        assert all(0.6 * true < one < 1.4 * true for one in found)
    assert len(of(model)) == SKETCH_BYTES
    assert distance(of(model), of(model)) == 0
    assert of(model[:100], model[100:]) == of(model[:100].reshape(10, 10), model[100:])
    assert distance(of(model, kind=b"other..."), of(model)) == float("inf")


def test_one_place_of_one_weight_is_near_and_another_secret_another_sketch() -> None:
    model = np.linspace(-1, 1, 1000, dtype=np.float32)
    near = model.copy()
    near[3] = np.nextafter(near[3], np.float32(9))
    assert distance(of(model), of(near)) < 1e-5
    assert of(model) != of(model, secret=b"t" * 32)


def test_what_moves_statistics_alone_is_near_and_other_tensors_are_another_model() -> None:
    """By the names of the tensors: roles that a coordinator says are no argument."""
    found = sketch_for(SECRET, to_bytes(MODEL))
    moved = {**MODEL, "bn.running_mean": np.zeros(100, np.float32), "steps": np.array(7, np.int64)}
    assert sketch_for(SECRET, to_bytes(moved)) == found
    assert sketch_for(SECRET, to_bytes({**MODEL, "~control/w": MODEL["w"]})) == found, "a strategy's shared tensors"
    assert distance(sketch_for(SECRET, to_bytes({"v": MODEL["w"]})), found) == float("inf")


@pytest.mark.parametrize("dtype", ["F16", "BF16", "F64"])
def test_models_of_other_floats_have_distances_too(dtype: str) -> None:
    one, other = (to_bytes({"w": narrow(values, dtype)}) for values in (MODEL["w"], MODEL["w"] + np.float32(0.5)))
    found = distance(sketch_for(SECRET, one), sketch_for(SECRET, other))
    assert 0.6 < found / float(np.linalg.norm(np.full(5000, 0.5))) < 1.4


def test_what_cannot_be_measured_is_near() -> None:
    for value in (np.float32("nan"), np.float32("inf")):
        assert distance(of(np.array([value], np.float32)), of(np.array([1], np.float32))) == 0
    huge = [np.full(1000, scale) for scale in (1e200, 2e200)]
    assert distance(of(huge[0]), of(huge[1])) == 0


def remembering(*models: tuple[float, bool, Any]) -> Memory:
    memory = Memory()
    for number, (at, near, values) in enumerate(models):
        memory = memory.answering(bytes([number]) * 32, Answered(at=at, near=near, sketch=of(values)))
    return memory


def test_what_was_answered_survives_with_the_number_of_its_vectors() -> None:
    memory = remembering((1.5, False, [1.0]), (2.5, True, [2.0]))
    assert Memory.parse(memory.encoded) == memory
    assert list(Memory.parse(memory.encoded).answered) == list(memory.answered)
    again = memory.answering(bytes(32), Answered(at=9, sketch=of([1.0]))).answered
    assert [(model.at, model.vectors) for model in again.values()] == [(2.5, 1), (9, 2)]
    later = memory.answering(bytes(32), Answered(at=1.5 + DAY, sketch=of([1.0]))).answered
    assert [(model.at, model.vectors) for model in later.values()] == [(2.5, 1), (1.5 + DAY, 1)]
    assert memory.answering(b"n" * 32, Answered(at=9, sketch=b"")) is memory
    assert memory.swept(2.0).answered[b"\1" * 32].at == 2.0
    assert memory.swept(3.0) is memory
    assert memory.marks.answered == memory.answered
    secret = memory.sketching(SECRET)
    assert secret.marks.sketch_secret == Memory.parse(secret.encoded).sketch_secret == SECRET
    assert secret.sketching(bytes(32)) is secret
    with pytest.raises(BadMessage, match="secret for sketches"):
        Memory.parse(memory.sketching(b"short").encoded)
    with pytest.raises(BadMessage):
        Memory.parse(memory.encoded[:-40])


def test_the_oldest_model_is_forgotten_first() -> None:
    full = {number.to_bytes(32): Answered(at=number, sketch=of([1.0])) for number in range(MOST_ANSWERED)}
    memory = Memory(answered=full).answering(b"n" * 32, Answered(at=MOST_ANSWERED, sketch=of([2.0])))
    assert len(memory.answered) == MOST_ANSWERED
    assert bytes(32) not in memory.answered
    assert list(memory.answered)[-1] == b"n" * 32


@pytest.mark.parametrize(
    ("values", "before", "bounds", "answer"),
    [
        ([1.0], [], {}, False),
        ([1.0], [(0, False, [1.0])], {}, "nearer to one"),
        ([1.0099], [(0, False, [1.0])], {}, "nearer to one"),
        ([1.0101], [(0, False, [1.0])], {}, False),
        ([1.0101], [(0, False, [1.0]), (1, False, [1.02])], {}, "nearer to one"),
        ([1.03], [(0, False, [1.0])], {"nearest_model": 0.02}, "nearer to one"),
        ([1.0], [(0, False, [1.0])], {"nearest_model": 0.0}, False),
        ([1.0], [(0, False, [1.0])], {"near_repeats": 1}, True),
        ([1.0], [(0, False, [1.0]), (DAY, True, [1.0])], {"near_repeats": 1}, "nearer to one"),
        ([1.0], [(0, True, [1.0])], {"near_repeats": 1}, True),
        (
            [5.0],
            [(DAY, False, [1.0]), (DAY, False, [2.0])],
            {"sums_a_day": 2},
            "into 2 sums a day, and today's are made",
        ),
        ([5.0], [(0, False, [1.0]), (DAY, False, [2.0])], {"sums_a_day": 2}, False),
        ([5.0], [(DAY, False, [float(n)]) for n in range(10, 110)], {}, "into 100 sums a day"),
        ([5.0], [(DAY, False, [float(n)]) for n in range(10, 110)], {"sums_a_day": None}, False),
    ],
)
def test_near_models_and_more_sums_than_a_days_are_refused(
    values: list[float], before: Any, bounds: dict[str, Any], answer: bool | str
) -> None:
    """The clip is 2, and the owner asks for 0.005 of it: 0.01. What was answered at time 0 is of yesterday."""

    policy = SecurePolicy(**{"nearest_model": 0.005, **bounds})

    def ask() -> bool:
        return require_another_model(TERMS, policy, remembering(*before), b"t" * 32, of(values), 1.2 * DAY)

    if isinstance(answer, bool):
        assert ask() is answer
        return
    with pytest.raises(Refusal, match=answer) as refused:
        ask()
    assert refused.value.final == ("nearer" in answer), "another day, another answer"


def test_a_model_is_never_near_to_itself_and_without_a_sketch_nothing_is() -> None:
    memory = remembering((0, False, [1.0]))
    assert require_another_model(TERMS, SecurePolicy(), memory, bytes(32), of([1.0]), DAY) is False
    assert require_another_model(TERMS, SecurePolicy(), memory, b"t" * 32, b"", DAY) is False


# In a session.


def careful(phone: SessionPhone, **bounds: Any) -> None:
    phone.policy = Policy(secure=any_work(smallest_cohort=3, smallest_sigma=20, **{"nearest_model": 0.005, **bounds}))


def test_a_device_remembers_a_model_before_its_vector_leaves_and_declines_one_that_is_near() -> None:
    world, (phone,) = world_with(1)
    careful(phone)
    phone.sketch = of([1.0])
    world.play(done=lambda _: (1, 0, "mask") in phone.sent)
    (model,) = phone.storage.load_secure().answered.values()
    assert (model.sketch, model.near) == (phone.sketch, False)
    memory = phone.storage.load_secure().marks

    world, (phone,) = world_with(1)
    careful(phone)
    phone.storage.keep(lambda _: Memory(answered={b"o" * 32: model, **memory.answered}))
    phone.sketch = of([1.0 + 1e-6])
    finish(world, [phone])
    assert (phone.trainings, phone.sent) == (0, {})
    (told,) = phone.routes(Route.SECURE_REFUSAL)
    assert isinstance(told.message, SecureRefusal)
    assert told.message.reason.startswith("This model is nearer to one that this device has answered")
    assert phone.storage.history()[-1].result == "withdrawn"


def test_an_owner_may_allow_one_near_model_a_day() -> None:
    world, (phone,) = world_with(1)
    careful(phone, near_repeats=1)
    phone.storage.keep(lambda _: Memory(answered={b"o" * 32: Answered(at=world.at, sketch=of([1.0]))}))
    phone.sketch = of([1.0 + 1e-6])
    finish(world, [phone])
    assert phone.history == [(1, "receipt")]
    assert [model.near for model in phone.storage.load_secure().answered.values()] == [False, True]


def test_more_sums_than_a_day_has_are_left_out_and_the_device_asks_again_another_day() -> None:
    world, (phone,) = world_with(1)
    careful(phone, sums_a_day=1)
    phone.storage.keep(lambda _: Memory(answered={b"o" * 32: Answered(at=world.at, sketch=of([1.0]))}))
    phone.sketch = of([5.0])
    finish(world, [phone])
    assert (phone.trainings, phone.routes(Route.SECURE_REFUSAL)) == (0, [])
    assert "into 1 sums a day" in phone.storage.history()[-1].reason


def test_folders_with_the_same_data_count_their_vectors_together(tmp_path: Path) -> None:
    sums, policy = tmp_path / "sums" / "data", SecurePolicy(sums_a_day=2)
    with FileStorage(tmp_path / "a", ledger=sums) as one, FileStorage(tmp_path / "b", ledger=sums) as other:
        for storage, at in ((one, 0.0), (other, 5.0)):
            require_another_model(TERMS, policy, storage.load_secure(), bytes(32), of([1.0]), at)
            storage.keep(lambda newest, at=at: newest.answering(bytes(32), Answered(at=at, sketch=of([1.0]))))  # type: ignore[misc]
            storage.keep(lambda newest: newest.bound_by(3))  # no vector
        for storage in (one, other):
            assert storage.load_secure().of_data == (0.0, 5.0)
            with pytest.raises(Refusal, match="into 2 sums a day"):
                require_sums_left(policy, storage.load_secure(), DAY - 1)
            require_sums_left(policy, storage.load_secure(), DAY)
        one.keep(lambda newest: newest.answering(b"n" * 32, Answered(at=DAY + 1, sketch=of([2.0]))))
        assert other.load_secure().of_data == (5.0, DAY + 1), "what is a day old is forgotten"
    with FileStorage(tmp_path / "c") as alone:
        assert alone.load_secure() == Memory()
    sums.write_text("x")
    with FileStorage(tmp_path / "d", ledger=sums) as storage, pytest.raises(StorageError, match="cannot be read"):
        storage.load_secure()


def test_repro_a_vector_is_counted_once_whatever_the_clock_does(tmp_path: Path) -> None:
    """One vector and three sweeps by a clock that was set back were four sums."""
    with FileStorage(tmp_path / "a", ledger=tmp_path / "sums") as storage:

        def counted(change: Callable[[Memory], Memory]) -> int:
            storage.keep(change)
            return len(storage.load_secure().of_data)

        def answered(digest: bytes, at: float) -> int:
            model = Answered(at=at, sketch=of([1.0]))
            return counted(lambda newest: newest.swept(at).answering(digest, model))

        assert answered(b"a" * 32, 1000.0) == 1
        for at in (900.0, 800.0, 700.0):
            assert counted(lambda newest, at=at: newest.swept(at)) == 1  # type: ignore[misc]
        assert answered(b"a" * 32, 700.0) == 2, "a second vector on the same model"
        assert answered(b"a" * 32, 600.0) == 3, "and one in the same step as a sweep"
        assert answered(b"b" * 32, 600.0) == 4
        assert answered(b"b" * 32, 600.0 + 1.5 * DAY) == 1, "a day later: those before count no more"


def test_vectors_that_leave_several_folders_at_one_moment_are_all_counted(tmp_path: Path) -> None:
    ledger = LedgerFile(tmp_path / "sums" / "data", durable=False)

    def left(folder: int) -> None:
        for number in range(20):
            at = 100.0 * folder + number
            ledger.change(lambda newest, at=at: newest.summed(at))  # type: ignore[misc]

    with ThreadPoolExecutor(8) as folders:
        list(folders.map(left, range(8)))
    times = ledger.read().sums
    assert sorted(times) == [100.0 * folder + number for folder in range(8) for number in range(20)]


def test_a_clock_that_was_ahead_bars_no_folder_for_longer_than_a_day() -> None:
    memory, policy = Memory(of_data=(9 * DAY,)), SecurePolicy(sums_a_day=1)
    require_sums_left(policy, memory, 8 * DAY)
    with pytest.raises(Refusal, match="into 1 sums a day"):
        require_sums_left(policy, memory, 8 * DAY + 1)


def test_each_vector_of_one_model_counts() -> None:
    """Of an attempt that this device leaves, others may open the sum."""
    policy, memory = SecurePolicy(sums_a_day=2), Memory()
    for at in (0.0, 1.0):
        require_another_model(TERMS, policy, memory, bytes(32), of([1.0]), at)
        memory = memory.answering(bytes(32), Answered(at=at, sketch=of([1.0])))
    with pytest.raises(Refusal, match="into 2 sums a day"):
        require_another_model(TERMS, policy, memory, bytes(32), of([1.0]), 2.0)


def test_advancing_an_exhausted_run_helps_with_devices_whose_owners_allow_a_near_model() -> None:
    """It moves the model by one unit, and those that have signed refuse it as they would a lying coordinator's."""
    blobs = MemoryBlobs()
    model: Tensors = {"w": MODEL["w"]}
    parent = blobs.put(to_bytes(model))
    moved = from_bytes(blobs.open(advance(blobs, parent, Manifest.of(model))[0]).read())
    assert any((moved[name] != model[name]).any() for name in model)
    before, after = (sketch_for(SECRET, to_bytes(one)) for one in (model, moved))
    memory = Memory(answered={b"o" * 32: Answered(at=0, sketch=before)})
    with pytest.raises(Refusal, match="nearer to one"):
        require_another_model(TERMS, SecurePolicy(), memory, b"t" * 32, after, DAY)
    assert require_another_model(TERMS, SecurePolicy(near_repeats=1), memory, b"t" * 32, after, DAY)
    assert not require_another_model(TERMS, SecurePolicy(), Memory(), b"t" * 32, after, DAY), "a new device"
