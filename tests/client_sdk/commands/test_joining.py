"""What ``quorate device`` and a torchrun group take alike: the same options, the same word to the coordinator."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import typer

from client_sdk.commands.device import app as device_app
from client_sdk.commands.joining import Joining
from client_sdk.device.data_ledger import DataLedger
from client_sdk.device.storage import FileStorage, read_history
from client_sdk.learning.collective import app as group_app
from client_sdk.protocol.devices import CheckIn, Policy, PrivacyBounds, SecureBounds, Task
from client_sdk.secagg.memory import Answered
from client_sdk.secagg.nearness import SKETCH_BYTES
from tests.client_sdk.commands.run_cli import quorate
from tests.client_sdk.commands.token_files import token_file
from tests.client_sdk.http.http_script import script, serving

LEARNER = "my_learner_of_tests:train"


def group(*arguments: str) -> int:
    """Exit code of the group's command in this process, which is a group of one."""
    with pytest.raises(SystemExit) as end:
        group_app(list(arguments))
    return int(end.value.code or 0)


def device(*arguments: str) -> int:
    return quorate("device", *arguments)


@pytest.fixture(autouse=True)
def _without_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def options(app: typer.Typer) -> dict[str, dict[str, Any]]:
    command = typer.main.get_command(app)
    return {parameter.name or "": parameter.to_info_dict() for parameter in command.params}


def test_a_group_takes_every_option_of_a_device() -> None:
    of_group, of_device = options(group_app), options(device_app)
    for name in ("flower", "node_config"):  # a Flower app's work is not a group's
        del of_device[name]
    for name, found in of_device.items():
        assert of_group.pop(name) == found
    assert set(of_group) == {"device", "hang_s", "shard_model"}


@pytest.mark.parametrize("join", [device, group])
def test_bounds_on_secure_rounds_are_sent_where_they_are_set(
    join: Any, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Policy] = []
    offered: list[set[str]] = []
    coordinator = script(2, task=Task(learner=LEARNER))
    genuine = coordinator.handle

    def listening(method: str, path: str, signer: str, body: bytes) -> tuple[int, bytes]:
        if path == "/v1/checkins":
            asked.append(CheckIn.model_validate_json(body).policy)
            offered.append(set(CheckIn.model_validate_json(body).learners))
        return genuine(method, path, signer, body)

    coordinator.handle = listening  # type: ignore[method-assign]
    with serving(coordinator) as server:
        mine = ["--url", server.url, "--data", "mine.npz", "--learner", LEARNER, "--folder", "d1", "--rounds", "1"]
        assert join(*mine, "--token-file", token_file()) == 0
        monkeypatch.setenv("QUORATE_SECURE_ONLY", "1")
        more = [
            "--smallest-cohort",
            "100",
            "--largest-norm",
            "2.5",
            "--smallest-norm",
            "0.5",
            "--largest-weight-cap",
            "50",
            "--strict-only",
        ]
        more += ["--fewest-examples", "30", "--fewest-steps", "5", "--largest-batch", "0.25", "--part-passes"]
        more += ["--sums-a-day", "7", "--nearest-model", "0.1", "--near-repeats", "1"]
        more += ["--most-epsilon", "8", "--delta", "1e-7", "--apart", "3", "--private-only", "2.5"]
        more += ["--origins", "signed", "--model-key", "ab" * 32, "--largest-move", "0", "--late-moves", "4"]
        assert join(*mine, *more, "--most-colluding", "9", "--largest-range", "4", "--allow", LEARNER) == 0
    assert asked[0] == Policy()
    assert all(learners == {LEARNER} for learners in offered)
    bounds = SecureBounds(
        smallest_cohort=100,
        most_colluding=9,
        largest_norm=2.5,
        smallest_norm=0.5,
        largest_range=4,
        largest_weight_cap=50,
        strict_only=True,
        fewest_examples=30,
        fewest_steps=5,
        largest_batch=0.25,
        whole_passes=False,
        sums_a_day=7,
        nearest_model=0.1,
        near_repeats=1,
        origins="signed",
        model_keys=("ab" * 32,),
        largest_move=None,
        late_moves=4,
    )
    noise = PrivacyBounds(most_epsilon=8, delta=1e-7, apart=3, private_only=2.5)
    assert noise.model_fields_set == set(PrivacyBounds.model_fields), "each is an option"
    assert asked[-1] == Policy(secure_only=True, secure=bounds, learners=(LEARNER,), privacy=noise)
    assert len(read_history(workplace / "d1")) == 2


def test_repro_the_same_data_count_together_however_they_are_written(workplace: Path) -> None:
    for name in ("mine.csv", "mnist", "mnist.npz"):
        (workplace / name).mkdir() if "." not in name else (workplace / name).touch()
    (workplace / "link.csv").symlink_to("mine.csv")
    (workplace / "sub").mkdir()

    def counted(data: str, shard: str | None = None, target: str | None = None) -> Path:
        return Joining(data=data, shard=shard, target=target, sums_folder=Path("sums"), folder=Path("another")).ledger

    table = [("mine.csv", "outcome"), ("mine.csv:outcome", None), ("./mine.csv:outcome", None), ("link.csv", "age")]
    table += [(f"{workplace}/mine.csv:outcome", None), ("sub/../mine.csv:outcome", None)]
    found = [
        {counted(data, shard, target) for data, target in table for shard in (None, "1/1", "01/1")},
        {counted("mnist", shard) for shard in ("1/600", "01/600", " 1/0600")} | {counted("quorate:mnist", "1/600")},
        {counted("mnist", "2/600")},
        {counted("mnist"), counted("quorate:mnist", "1/1")},
        {counted("mnist.npz"), counted("./mnist.npz", "1/1")},
    ]
    assert [len(same) for same in found] == [1] * len(found)
    assert len(set.union(*found)) == len(found)


def test_the_users_state_folder_has_their_ledgers(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(workplace / "state"))
    assert Joining(data="mine.npz").ledger.parent == workplace / "state" / "quorate" / "sums"
    monkeypatch.setenv("XDG_STATE_HOME", "")
    monkeypatch.setenv("HOME", str(workplace))
    assert Joining(data="mine.npz").ledger.parent == workplace / ".local" / "state" / "quorate" / "sums"
    assert Joining(data="mine.npz", sums_folder=Path("~/sums")).ledger.parent == workplace / "sums"


@pytest.mark.parametrize("join", [device, group])
def test_devices_with_the_same_data_count_their_sums_together(
    join: Any, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the file, wherever it is named from, and its share: of two folders with stock commands."""
    monkeypatch.setenv("QUORATE_SUMS_FOLDER", "sums")
    here = Joining(data="mine.npz", sums_folder=Path("sums")).ledger

    def made() -> list[bool]:
        """What a device of another folder says of today's sums, round after round."""
        said: list[bool] = []
        coordinator = script(1, task=Task(learner=LEARNER))
        genuine = coordinator.handle

        def listening(method: str, path: str, signer: str, body: bytes) -> tuple[int, bytes]:
            if path == "/v1/checkins":
                bounds = CheckIn.model_validate_json(body).policy.secure
                said.append(bounds is not None and bounds.sums_made)
            return genuine(method, path, signer, body)

        coordinator.handle = listening  # type: ignore[method-assign]
        with serving(coordinator) as server:
            mine = ["--url", server.url, "--data", "mine.npz", "--learner", LEARNER, "--rounds", "1"]
            assert join(*mine, "--folder", f"of {len(folders)}", "--token-file", token_file()) == 0
        folders.append(server.url)
        return said

    folders: list[str] = []
    assert made() == [False]
    with FileStorage("another", ledger=here) as storage:
        for number in range(100):
            model = Answered(at=time.time() - number, sketch=bytes(SKETCH_BYTES))
            storage.keep(lambda newest, n=number, m=model: newest.answering(bytes([n]) * 32, m))  # type: ignore[misc]
    assert made() == [True]
    here.write_bytes(DataLedger(sums=(time.time() - 86_401,) * 100).encoded)
    assert made() == [False]


def test_the_learner_that_is_named_is_the_only_one_that_is_offered(workplace: Path) -> None:
    def offered(learner: list[str] | None, allow: list[str] | None) -> tuple[set[str], tuple[str, ...] | None]:
        joining = Joining(data="mine.npz", learner=learner, allow=allow)
        return set(joining.prepare()[0].usable), joining.policy().learners

    every = offered(None, None)[0]
    assert "quorate:mnist-mlp" in every
    assert LEARNER not in every
    assert offered([LEARNER], None) == ({LEARNER}, None)
    assert offered(["quorate:mnist-mlp"], None) == ({"quorate:mnist-mlp"}, None)
    assert offered(None, ["quorate:mnist-mlp"]) == ({"quorate:mnist-mlp"}, ("quorate:mnist-mlp",))
    assert offered([LEARNER], ["quorate:mnist-mlp"])[0] == {LEARNER, "quorate:mnist-mlp"}
    assert offered([LEARNER], ["*"]) == (every | {LEARNER}, None)


@pytest.mark.parametrize("join", [device, group])
@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ([], "Name this device's data with --data"),
        (["--data", "mine.npz", "--origins", "mine"], "--origins is usual, signed or any, not 'mine'"),
        (["--data", "mine.npz", "--model-key", "AB"], "--model-key 'AB' is no public key"),
        (["--data", "mine.npz", "--allow", "mine"], "'mine' is not a learner's name"),
        (["--data", "mine.npz", "--allow", "quorate:mnist-mpl"], "did you mean quorate:mnist-mlp"),
        (["--data", "mine.npz", "--url", "nowhere"], "nowhere"),
        (
            ["--data", "mine.npz", "--learner", LEARNER],
            "This device has no certificate; start it with --token-file FILE",
        ),
    ],
)
def test_errors_are_one_sentence(
    join: Any, more: list[str], sentence: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert join("--url", "http://127.0.0.1:9", *more) == 1
    output = capsys.readouterr()
    assert sentence in output.err
    assert output.err.startswith("Error: ")
    assert len(output.err.splitlines()) == 1
    assert not output.out
