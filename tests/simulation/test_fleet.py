"""The fleet's parts: who has which examples, who behaves how, one download for many, processes that end."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from threading import Event, Lock, Thread

import numpy as np
import pytest

from client_sdk.credentials.enrolment_token import EnrolmentToken
from client_sdk.data import Examples
from client_sdk.device.checkpoint_cache import WrongBytes
from client_sdk.device.storage import read_history
from client_sdk.http.client import Notice
from client_sdk.learners import Catalogue, LearnerError
from client_sdk.protocol.devices import Assignment, CheckpointRef, Task, Work
from client_sdk.protocol.secure import SecureTask
from client_sdk.tensors import Tensors, digest
from client_sdk.update import Update
from simulation.fleet.processes import (
    FleetFailed,
    FleetProcesses,
    FleetWorker,
    SharedCheckpoints,
    WorkerOrders,
    worker_orders,
)
from simulation.fleet.split import Split, cut
from simulation.fleet.trainer import (
    FIRST_GUESS_S,
    LONGEST_HOLD,
    SLOWEST,
    FleetHabits,
    FleetTrainer,
    RoundTimes,
    Vanished,
)
from tests.rotating import on_day
from tests.simulation import synthetic

TINY = {"w": np.zeros(3, np.float32)}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(synthetic.write(tmp_path_factory.mktemp("data") / "blobs.npz"))


# ------------------------------------------------------------ split


def test_workers_hold_disjoint_shards_that_make_up_the_whole(data: str):
    split = Split(data=data, devices=7, seed=3)
    whole, everyone = cut(split)
    held: dict[int, Examples] = {}
    for worker in range(2):
        held |= cut(split, range(worker, 7, 2))[1]
    assert sorted(held) == list(range(7))
    assert all(np.array_equal(held[n].x, everyone[n].x) and np.array_equal(held[n].y, everyone[n].y) for n in held)
    assert sum(len(shard) for shard in held.values()) == len(whole.train)
    assert not any(np.shares_memory(shard.x, whole.train.x) for shard in held.values())


def test_the_seed_and_alpha_decide_the_split(data: str):
    labels = cut(Split(data=data, devices=1))[0].train
    first, same, other = (
        [part.tolist() for part in Split(data=data, devices=9, seed=seed).shards(labels)] for seed in (1, 1, 2)
    )
    assert first == same
    assert first != other


def test_a_device_is_called_by_its_shards_number():
    split = Split(data="some/where/blobs.npz", devices=12)
    assert split.label(7) == "blobs/0007"
    assert [split.number(split.label(n)) for n in range(12)] == list(range(12))
    for stranger in ("blobs/0012", "other/0007", "blobs/7", "blobs-0007", "ward 7", ""):
        with pytest.raises(ValueError, match="not one of this fleet's 12"):
            split.number(stranger)


def test_a_way_to_split_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match="known are iid, dirichlet, shards"):
        Split(data="mnist", devices=4, by="alphabet")


# ------------------------------------------------------------ habits


def test_habits_are_the_shares_they_say():
    habits = FleetHabits(slow=0.1, vanish=0.05, late=0.03, seed=5)
    conducts = [habits.conduct(device, number) for device in range(400) for number in range(1, 26)]
    count = len(conducts)
    vanished = sum(c.vanishes for c in conducts) / count
    late = sum(c.late for c in conducts) / count
    slow_devices = sum(habits.conduct(device, 1).slowness > 1 for device in range(400)) / 400
    assert abs(vanished - 0.05) < 4 * (0.05 * 0.95 / count) ** 0.5
    assert abs(late - 0.03 * 0.95) < 4 * (0.03 * 0.97 / count) ** 0.5
    assert abs(slow_devices - 0.1) < 4 * (0.1 * 0.9 / 400) ** 0.5
    assert not any(c.late and c.vanishes for c in conducts)
    assert all(1.0 <= c.slowness <= SLOWEST for c in conducts)
    assert all(1.0 <= c.away <= 2.0 for c in conducts if c.vanishes)


def test_a_slow_device_is_slow_in_every_round_and_draws_do_not_depend_on_order():
    habits = FleetHabits(slow=0.3, seed=1)
    for device in range(50):
        assert len({habits.conduct(device, number).slowness > 1 for number in range(1, 10)}) == 1
    again = FleetHabits(slow=0.3, seed=1)
    assert again.conduct(41, 7) == habits.conduct(41, 7)
    assert [FleetHabits(seed=2).conduct(d, 1) for d in range(99)] != [
        FleetHabits(seed=3).conduct(d, 1) for d in range(99)
    ]


@pytest.mark.parametrize("name", ["slow", "vanish", "late"])
@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_a_share_is_from_0_to_1(name: str, value: float):
    with pytest.raises(ValueError, match=f"{name}=.* from 0 to 1"):
        FleetHabits(**{name: value})


# ------------------------------------------------------------ times of rounds


def notice(kind: str, number: int | None, run: str | None = "r") -> Notice:
    return Notice(kind=kind, text="", run=run, round=number)


def test_work_in_a_round_says_that_earlier_ones_are_over():
    now = [10.0]
    round_times = RoundTimes(lambda: now[0])
    assert round_times.round_s == FIRST_GUESS_S
    round_times.note(notice("waiting", None, None))
    round_times.note(notice("assigned", 1))
    assert not round_times.is_over("r", 1)
    now[0] = 13.5
    round_times.note(notice("assigned", 2))
    assert round_times.is_over("r", 1)
    assert not round_times.is_over("r", 2)
    assert not round_times.is_over("other", 1)
    assert round_times.round_s == 3.5
    now[0] = 99.0
    round_times.note(notice("assigned", 2))
    round_times.note(notice("assigned", 5))  # rounds 3 and 4 were not seen here: nothing is learned of their duration
    assert round_times.round_s == 3.5


def test_a_refusal_says_that_its_round_is_over():
    round_times = RoundTimes()
    round_times.note(notice("assigned", 4))
    round_times.note(notice("receipt", 4))
    assert not round_times.is_over("r", 4)
    round_times.note(notice("refused", 4))
    assert round_times.is_over("r", 4)


def test_waiting_for_the_end_of_a_round_ends_by_time_and_by_stop():
    now = [0.0]

    class Moving(Event):
        def wait(self, timeout: float | None = None) -> bool:
            now[0] += timeout or 0.0
            return self.is_set()

    round_times, stop = RoundTimes(lambda: now[0]), Moving()
    assert not round_times.wait_over("r", 1, 5.0, stop)
    assert 5.0 <= now[0] < 5.5
    stop.set()
    assert not round_times.wait_over("r", 1, 5.0, stop)
    round_times.note(notice("assigned", 2))
    assert round_times.wait_over("r", 1, 0.0, stop)


# ------------------------------------------------------------ checkpoints


def ref(body: bytes) -> CheckpointRef:
    return CheckpointRef(version=0, digest=digest(body), bytes=len(body))


def test_many_devices_download_a_checkpoint_once():
    body, downloads, got, seen = b"weights" * 100, [], [], []
    shared = SharedCheckpoints(Event())
    started = Event()

    def device() -> None:
        if shared.get(ref(body).digest) is None:
            downloads.append(1)
            with shared.download(ref(body)) as download:
                started.wait(5)
                download.write(body)
        seen.append(1)
        got.append(shared.get(ref(body).digest))

    threads = [Thread(target=device) for _ in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    assert seen == []
    started.set()
    for thread in threads:
        thread.join(5)
    assert len(downloads) == 1
    assert got == [body] * 8


def test_after_a_failed_download_another_device_fetches():
    body = b"weights"
    shared = SharedCheckpoints(Event())
    assert shared.get(ref(body).digest) is None
    with pytest.raises(WrongBytes):
        with shared.download(ref(body)) as download:
            download.write(b"wrong!!")
    assert shared.get(ref(body).digest) is None
    with shared.download(ref(body)) as download:
        download.write(body)
    assert shared.get(ref(body).digest) == body


def test_stop_ends_waiting_for_a_download():
    stop = Event()
    shared = SharedCheckpoints(stop)
    assert shared.get("ab" * 32) is None
    stop.set()
    began = time.monotonic()
    assert shared.get("ab" * 32) is None
    assert time.monotonic() - began < 1


# ------------------------------------------------------------ trainer


class Clockwork(Event):
    """A stop that is never set, and remembers how long it was waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout or 0.0)
        return False


def marks(model: Tensors, data: Examples, task: Task) -> Update:
    time.sleep(0.02)
    return Update({"w": model["w"] + len(data)}, len(data), work=Work(steps=1, steps_planned=1))


def assignment(number: int, secure: SecureTask | None = None) -> Assignment:
    return Assignment(
        run="r",
        round=number,
        device="d1",
        checkpoint=CheckpointRef(version=0, digest="00" * 32, bytes=1),
        plan_digest="00" * 32,
        task=Task(learner="tests:marks"),
        report_within_s=60,
        max_update_bytes=1,
        secure=secure,
    )


def trainer(habits: FleetHabits, round_times: RoundTimes, stop: Event) -> FleetTrainer:
    return FleetTrainer(
        0,
        Examples(np.zeros((5, 2)), np.zeros(5, np.int64)),
        Catalogue({"tests:marks": marks}, installed=[]),
        learner="tests:marks",
        habits=habits,
        round_times=round_times,
        turn=Lock(),
        stop=stop,
    )


def train(who: FleetTrainer, number: int = 1) -> Update:
    return who.train(assignment(number), TINY, "d1", lambda: 60.0)


def test_an_ordinary_device_trains_and_reports_at_once():
    stop = Clockwork()
    who = trainer(FleetHabits(slow=0, vanish=0, late=0), RoundTimes(), stop)
    assert who.learners == {"tests:marks": "0"}
    assert who.examples == 5
    update = train(who)
    assert (update.examples, update.mean()["w"].tolist()) == (5, [5.0, 5.0, 5.0])
    assert stop.waited == []


def test_a_slow_device_takes_a_multiple_of_its_own_time():
    stop = Clockwork()
    train(trainer(FleetHabits(slow=1, vanish=0, late=0), RoundTimes(), stop))
    assert len(stop.waited) == 1
    assert stop.waited[0] >= 0.5 * 0.02


def test_a_device_vanishes_once_a_round_and_then_works():
    who = trainer(FleetHabits(slow=0, vanish=1, late=0), RoundTimes(), Clockwork())
    with pytest.raises(Vanished) as vanished:
        train(who, 1)
    assert 1.0 <= vanished.value.away <= 2.0
    assert not isinstance(vanished.value, Exception)
    assert train(who, 1).examples == 5
    with pytest.raises(Vanished):
        train(who, 2)


def test_in_a_secure_round_a_device_trains_before_it_vanishes():
    who = trainer(FleetHabits(slow=0, vanish=1, late=0), RoundTimes(), Clockwork())
    terms = SecureTask(q=16, max_norm=1, max_abs=1, weight_cap=1, profile="strict", minimum_cohort=3)
    assert who.train(assignment(1, terms), TINY, "d1", lambda: 60.0).examples == 5


def test_a_late_device_holds_its_update_until_the_round_is_over():
    now = [0.0]
    round_times = RoundTimes(lambda: now[0])

    class Ends(Clockwork):
        def wait(self, timeout: float | None = None) -> bool:
            now[0] += timeout or 0.0
            if now[0] > 3.0:
                round_times.note(notice("assigned", 2))
            return super().wait(timeout)

    train(trainer(FleetHabits(slow=0, vanish=0, late=1), round_times, Ends()), 1)
    assert 3.0 < now[0] < 3.3


def test_a_late_device_that_hears_nothing_gives_up_waiting():
    now = [0.0]

    class Passing(Clockwork):
        def wait(self, timeout: float | None = None) -> bool:
            now[0] += timeout or 0.0
            return super().wait(timeout)

    train(trainer(FleetHabits(slow=0, vanish=0, late=1), RoundTimes(lambda: now[0]), Passing()), 1)
    assert LONGEST_HOLD * FIRST_GUESS_S <= now[0] < LONGEST_HOLD * FIRST_GUESS_S + 0.5


# ------------------------------------------------------------ learners and processes


TOKEN = EnrolmentToken("http://127.0.0.1:9", bytes(32), bytes(16)).text


def orders(folder: Path, data: str, **more: object) -> WorkerOrders:
    given = {
        "coordinator": "http://127.0.0.1:9",
        "enrolment_token": TOKEN,
        "folder": folder,
        "split": Split(data=data, devices=3),
        "habits": FleetHabits(),
        "learner": "simulation.learners:mnist_mlp",
        "worker": 0,
        "workers": 1,
    }
    return WorkerOrders.model_validate(given | more)


def test_a_learner_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(LearnerError, match=r"nowhere"):
        FleetWorker(orders(tmp_path, "mnist", learner="nowhere:nothing"), Event())


def test_no_fleet_without_a_coordinator(tmp_path: Path):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "client_sdk.cli",
            "fleet",
            "--token-file",
            "-",
            "--coordinator",
            "http://127.0.0.1:9",
        ],
        input=TOKEN,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Error: No coordinator answers at http://127.0.0.1:9")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_token_that_is_none_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="This is no enrolment token: one begins with qe1_"):
        worker_orders(
            Split(data="mnist", devices=1),
            FleetHabits(),
            coordinator="http://127.0.0.1:9",
            enrolment_token="let-me-in",
            folder=tmp_path / "devices",
            learner="simulation.learners:mnist_mlp",
            processes=1,
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_worker_that_cannot_begin_says_why_in_one_sentence(tmp_path: Path):
    with FleetProcesses([orders(tmp_path, "no-such-data")]) as running:
        with pytest.raises(FleetFailed, match="There is no data 'no-such-data'"):
            running.watch(Event())


@pytest.mark.slow
def test_a_worker_that_is_killed_ends_the_fleet(tmp_path: Path, data: str):
    with FleetProcesses([orders(tmp_path, data)]) as running:
        running._children._children[0].kill()
        with pytest.raises(FleetFailed, match="was killed by SIGKILL, without a request to end"):
            running.watch(Event())


OWNER = """
import sys, time
from simulation.fleet.processes import FleetProcesses
from simulation.fleet.processes import WorkerOrders
with FleetProcesses([WorkerOrders.model_validate_json(sys.argv[1])]) as running:
    print(running._children._children[0].pid, flush=True)
    time.sleep(60)
"""


@on_day(1, of=2)
def test_workers_end_soon_on_request_and_when_their_owner_dies(tmp_path: Path, data: str):
    with FleetProcesses([orders(tmp_path / "a", data)]) as running:
        tally = running.watch(Event())
        assert tally is not None
        assert (tally.devices, tally.examples, tally.enrolled) == (3, 600, 0)
        began = time.monotonic()
    assert time.monotonic() - began < 3
    assert running._children._children[0].returncode == 0

    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, orders(tmp_path / "b", data).model_dump_json()],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    worker = int(owner.stdout.readline())
    owner.kill()
    owner.wait()
    until = time.monotonic() + 15
    while Path(f"/proc/{worker}").exists() and Path(f"/proc/{worker}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < until, "the worker outlived its owner"
        time.sleep(0.1)


@on_day(0, of=2)
def test_a_restarted_fleet_goes_on_with_the_same_devices(tmp_path: Path, data: str):
    from client_sdk.http.operator import OperatorClient
    from tests.coordinator.service.conftest import Server

    server = Server.start(tmp_path / "coordinator")
    try:
        ids: list[set[str]] = []
        for _ in range(2):
            given = worker_orders(
                Split(data=data, devices=4),
                FleetHabits(),
                coordinator=server.url,
                enrolment_token=server.token,
                folder=tmp_path / "devices",
                learner="simulation.learners:mnist_mlp",
                processes=2,
            )
            assert [o.numbers for o in given] == [range(0, 4, 2), range(1, 4, 2)]
            with FleetProcesses(given) as running:
                while (tally := running.watch(Event())) is not None and tally.enrolled < 4:
                    pass
            with OperatorClient(server.url) as operator:
                ids.append({device.device for device in operator.devices()})
                labels = {device.label for device in operator.devices()}
        assert len(ids[0]) == 4
        assert ids[0] == ids[1]
        assert labels == {f"blobs/000{n}" for n in range(4)}
        assert read_history(tmp_path / "devices" / "device-0000") == []
    finally:
        server.stop()
