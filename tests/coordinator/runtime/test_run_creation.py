"""How a run begins: the conditions on its plan and its first checkpoint, and the errors where they are not met."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from client_sdk.protocol.devices import Score
from client_sdk.protocol.operators import CreateRun, RunView
from client_sdk.tensors import BF16, HEADER_LIMIT, REPORT_ROOM, Tensors, to_bytes
from client_sdk.update import Update, encode_update
from coordinator.blobs import DigestMismatch
from tests.coordinator.world import World


def upload(world: World, body: bytes, digest: str | None = None) -> str:
    name = digest or hashlib.sha256(body).hexdigest()
    with world.blobs.spool() as spool:
        spool.write(body)
        world.coordinator.operators.put_checkpoint(spool, name)
    return name


def begin(world: World, init: str, **sections: Any) -> RunView:
    return world.coordinator.operators.create_run(CreateRun(plan=world.plan(**sections), init=init, origin="by hand"))


@pytest.fixture
def empty(make_world: Any) -> World:
    """Four devices and no run yet."""
    made: World = make_world(4)
    return made


def test_a_run_records_its_plan_its_checkpoint_and_where_that_came_from(empty: World) -> None:
    init = upload(empty, to_bytes(empty.model()))
    view = begin(empty, init)
    assert (view.run, view.name, view.origin, view.checkpoint, view.version) == ("marks", "marks", "by hand", init, 0)
    assert (view.status, view.phase, view.round) == ("running", "selecting", 1)
    assert view.plan["cohort"]["goal"] == 3  # type: ignore[index]
    assert view.plan["retention"] == {"rounds": 0}, "defaults are written out"
    (first,) = empty.coordinator.operators.checkpoints("marks")
    assert (first.digest, first.parent, first.origin, first.round) == (init, None, "by hand", None)


def test_a_name_that_is_taken_gets_a_number(empty: World) -> None:
    init = upload(empty, to_bytes(empty.model()))
    assert [begin(empty, init).run for _ in range(3)] == ["marks", "marks-2", "marks-3"]
    assert [view.name for view in empty.coordinator.operators.runs()] == ["marks"] * 3


def test_a_run_costs_no_more_reads_of_runs_where_there_are_many(empty: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one plan and one checkpoint, as in a search for the best learning rate."""
    init, run, read = upload(empty, to_bytes(empty.model())), type(empty.store).run, list[str]()
    monkeypatch.setattr(type(empty.store), "run", lambda store, name: read.append(name) or run(store, name))
    counts = []
    for _ in range(8):
        read.clear()
        empty.coordinator.operators.stop(begin(empty, init).run)
        counts.append(len(read))
    assert counts[2:] == counts[2:3] * 6, counts


def test_each_run_has_a_selection_seed_of_its_own_and_nobody_sees_it(empty: World) -> None:
    init = upload(empty, to_bytes(empty.model()))
    views = [begin(empty, init) for _ in range(3)]
    seeds = {row.selection_seed for row in empty.store.runs()}
    assert len(seeds) == 3
    assert all(0 <= seed < 2**63 for seed in seeds)
    shown = "".join(view.model_dump_json() for view in views)
    shown += "".join(event.model_dump_json() for event in empty.coordinator.operators.events("marks"))
    assert not [seed for seed in seeds if str(seed) in shown]


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"cohort": {"select": 2, "goal": 3}}, r"goal \(3\) is above select \(2\)"),
        ({"cohort": {"gaol": 3}}, r"cohort.gaol: there is no such field"),
        ({"finish": {"rounds": 0}}, "finish.rounds"),
        ({"name": "Not A Name"}, "name"),
        ({"task": {"codec": "zip@9"}}, "task.codec: .*zip@9.*float32@1"),
        ({"task": {"averaged": ["head.*"]}}, r"task.averaged: .*'head\.\*'"),
        ({"task": {"averaged": ["steps"]}}, "task.averaged: .*'steps'"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_makes_no_run(empty: World, sections: dict[str, Any], words: str) -> None:
    init = upload(empty, to_bytes(empty.model()))
    with empty.refuses("invalid-plan", words):
        begin(empty, init, **sections)
    assert empty.coordinator.operators.runs() == []


def test_a_checkpoint_that_was_not_uploaded_makes_no_run(empty: World) -> None:
    with empty.refuses("unknown-checkpoint", "has not been uploaded"):
        begin(empty, "0" * 64)


def test_a_blob_that_is_no_checkpoint_makes_no_run(empty: World) -> None:
    with empty.refuses("invalid-request", "is not a checkpoint"):
        begin(empty, empty.blobs.put(b"the list of who waited"))


def test_a_file_of_torch_save_is_named_and_how_it_is_converted(empty: World) -> None:
    with empty.refuses("invalid-request", "not a checkpoint: this is a zip archive, as torch.save and .*to_bytes"):
        begin(empty, empty.blobs.put(b"PK\x03\x04" + bytes(range(200))))


@pytest.mark.usefixtures("updates_as_files")
def test_repro_a_devices_update_cannot_be_made_a_model_for_all_to_read(empty: World) -> None:
    """Updates are private. As the first checkpoint of a run it would be served to every device."""
    empty.create()
    empty.check_in()
    receipt = empty.report(empty.cohort()[0])[0]
    with empty.refuses("invalid-request", "is not a checkpoint"):
        begin(empty, receipt.digest, name="theft")
    with empty.refuses("unknown-checkpoint"):
        empty.coordinator.operators.require_checkpoint(receipt.digest)


BAD_FILES: list[tuple[str, bytes, str]] = [
    ("nothing", b"", "not a checkpoint"),
    ("no safetensors", b"PK\x03\x04" + b"\0" * 64, "not a checkpoint"),
    ("cut short", to_bytes({"w": np.ones(4, np.float32)})[:-1], "not a checkpoint"),
    ("one byte too long", to_bytes({"w": np.ones(4, np.float32)}) + b"\0", "not a checkpoint"),
    ("with metadata", to_bytes({"w": np.ones(4, np.float32)}, {"format": "pt"}), "__metadata__"),
    ("NaN", to_bytes({"w": np.array([1, np.nan], np.float32)}), "NaN or infinity in w;.*persistent=False"),
    ("infinity in half", to_bytes({"w": np.array([np.inf], np.float16)}), "NaN or infinity in w;.*persistent=False"),
    ("NaN in bfloat16", to_bytes({"w": np.array([0x7FC0], "<u2").view(BF16)}), "NaN or infinity in w"),
    ("a header beyond 4 MiB", (2**22 + 8).to_bytes(8, "little") + b"{}" + b" " * (2**22 + 6), "not a checkpoint"),
]


@pytest.mark.parametrize(("body", "words"), [case[1:] for case in BAD_FILES], ids=[case[0] for case in BAD_FILES])
def test_a_file_that_is_no_canonical_checkpoint_is_refused_and_not_kept(empty: World, body: bytes, words: str) -> None:
    with empty.refuses("invalid-request", words):
        upload(empty, body)
    assert list(empty.blobs.digests()) == []


def test_a_nan_far_into_a_large_tensor_is_found(empty: World) -> None:
    values = np.zeros(600_000, np.float32)
    values[-1] = np.nan
    with empty.refuses("invalid-request", "NaN or infinity in w"):
        upload(empty, to_bytes({"w": values}))


def test_bytes_under_another_digest_are_refused(empty: World) -> None:
    with pytest.raises(DigestMismatch):
        upload(empty, to_bytes(empty.model()), "0" * 64)
    assert list(empty.blobs.digests()) == []


GOOD: list[tuple[str, Tensors]] = [
    ("float16", {"marks": np.zeros(4, np.float16)}),
    ("bfloat16", {"marks": np.zeros(4, "<u2").view(BF16)}),
    ("a scalar", {"marks": np.zeros((), np.float32)}),
    ("with buffers", {"marks": np.zeros(4, np.float32), "n": np.array(1, np.int64), "b": np.array([True])}),
]


@pytest.mark.parametrize("model", [case[1] for case in GOOD], ids=[case[0] for case in GOOD])
def test_models_of_every_kind_make_a_round(empty: World, model: Tensors) -> None:
    empty.create(model)
    empty.check_in()
    delta = {"marks": np.full(model["marks"].shape, 0.5, np.float32)}
    for number in empty.cohort()[:3]:
        empty.send(number, empty.body(number, delta=delta))
    after = empty.checkpoint()
    assert empty.coordinator.operators.run("marks").version == 1
    assert {name: (array.dtype, array.shape) for name, array in after.items()} == {
        name: (array.dtype, array.shape) for name, array in model.items()
    }
    assert after["marks"].tobytes() != model["marks"].tobytes()


def test_uploading_again_is_fine(empty: World) -> None:
    body = to_bytes(empty.model())
    assert upload(empty, body) == upload(empty, body)


def test_a_models_names_leave_room_for_the_report_of_an_update(empty: World) -> None:
    """A header has at most 4 MiB. 16 KiB of them are for the report: 64 metrics of each kind with the longest names."""
    room = HEADER_LIMIT - REPORT_ROOM

    def model(header: int) -> Tensors:
        """A model whose file has a header of so many bytes, a multiple of 8."""
        names = [f"{number:08000}" for number in range(500)]
        part = len(to_bytes({name: np.zeros(0, np.float32) for name in names}))
        return {name: np.zeros(0, np.float32) for name in [*names[1:], names[0] + "x" * (header - part)]}

    assert len(to_bytes(model(room))) == room
    assert begin(empty, upload(empty, to_bytes(model(room)))).run == "marks"
    longer = upload(empty, to_bytes(model(room + 8)))
    with empty.refuses("invalid-request", f"header has {room + 8} bytes: names .* may take {room}, since an update.s"):
        begin(empty, longer)
    assert len(empty.coordinator.operators.runs()) == 1

    worst = {f"m{number:063}": -1.2345678901234567e-300 for number in range(64)}
    update = Update({"w": np.zeros(0, np.float32)}, 2**31, metrics=worst, held_out=Score(examples=2**40, metrics=worst))
    report = encode_update(update, "float32@1", "r" * 60, 2**31, 1000)
    assert len(report) - len(to_bytes({"w": np.zeros(0, np.float32)})) < REPORT_ROOM


@pytest.mark.slow
def test_the_server_optimizers_state_of_a_model_can_be_written() -> None:
    """Its header is longer than the model's where tensors are small: the run would fail at its first commit."""
    empty = World(4)  # in one kind of store: none is concerned, and the model is long
    model = {f"{number:0358}": np.zeros((), np.float32) for number in range(10_000)}
    init = upload(empty, to_bytes(model))
    with empty.refuses("invalid-request", "too many tensors|header has 4[0-9]* bytes: names"):
        begin(empty, init, aggregation={"server_optimizer": "fedadam"})
    assert begin(empty, init).run == "marks"


def test_repro_a_model_without_values_is_refused_for_secure_rounds(empty: World) -> None:
    """The header of its first attempt could never be made: the round stood still, again and again, without a word."""
    secure = {"max_norm": 1.0, "max_abs": 0.5, "minimum_cohort": 3}
    cohort = {"select": 4, "goal": 4, "quorum": 0.6}
    init = upload(empty, to_bytes({"w": np.zeros((0, 3), np.float32), "steps": np.zeros(1, np.int64)}))
    with empty.refuses("invalid-plan", "task.averaged: these tensors hold no values of parameters"):
        begin(empty, init, secure=secure, cohort=cohort, aggregation={"partial": "refuse"})
