"""The command line of taking part in a federation: the options, their meaning, and the lines that are printed.

One definition for ``quorate device`` and for a torchrun group, which is one device too. This file reads options and
prints lines; ``http.client.Client`` does the work.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from client_sdk.commands.long_running import Threads
from client_sdk.commands.token_file import TokenFile, enrolment_token
from client_sdk.terminal import DEFAULT_URL, Url, fail, say, say_json

if TYPE_CHECKING:
    from client_sdk.data import Shard
    from client_sdk.device.storage import FileStorage
    from client_sdk.http.client import Notice
    from client_sdk.learners import Catalogue, Trainer
    from client_sdk.protocol.devices import Policy

R = TypeVar("R")

DEFAULT_FOLDER = Path("quorate-device")

Folder = Annotated[
    Path,
    typer.Option(help="Folder of this device: its key, its record, its history. One device a folder."),
]
Learners = Annotated[
    list[str] | None,
    typer.Option(
        "--learner",
        metavar="MODULE:ATTRIBUTE",
        help="Only this learner: an installed one, or a module of your own, which is imported. May be given several "
        "times. (default: all installed ones)",
    ),
]
FILES = "NAME|FILE.npz|.csv|.parquet"
"""What ``--data`` takes."""
Target = Annotated[
    str | None,
    typer.Option("--target", metavar="COLUMN", help="Of a .csv or .parquet file: the column to predict."),
]
Share = Annotated[
    str | None,
    typer.Option("--shard", metavar="I/N", help="Use only this share of the data: 3/400 is the third of 400."),
]


SumsFolder = Annotated[
    Path | None,
    typer.Option(
        envvar="QUORATE_SUMS_FOLDER",
        help="Where the devices of this user that have the same --data and --shard count their sums a day, and "
        "what the data lose in rounds with noise (default: ~/.local/state/quorate/sums).",
    ),
]
MostEpsilon = Annotated[
    float | None,
    typer.Option(
        "--most-epsilon",
        min=0,
        envvar="QUORATE_MOST_EPSILON",
        help="The most that the data may lose, over all runs and coordinators. Rounds without noise are then declined.",
    ),
]
Delta = Annotated[
    float,
    typer.Option("--delta", min=0, max=1, envvar="QUORATE_DELTA", help="The chance that --most-epsilon does not hold."),
]


def sums_in(folder: Path | None) -> Path:
    """The folder of ``--sums-folder``."""
    from client_sdk.http.operator_key import state_folder

    return state_folder() / "sums" if folder is None else folder.expanduser()


@dataclass(frozen=True, kw_only=True)
class Joining:
    """The options for joining: each field is one option, by its name."""

    coordinator: Url = DEFAULT_URL
    token_file: TokenFile = None
    who_file: Annotated[
        Path | None,
        typer.Option(
            "--who-file",
            envvar="QUORATE_WHO_FILE",
            metavar="FILE",
            help="What proves who this device is, where its authority asks for that: read when it enrols.",
        ),
    ] = None
    data: Annotated[
        str | None,
        typer.Option(
            "--data", metavar=FILES, help="This device's data: an installed data set, or a file: x and y, or a table."
        ),
    ] = None
    target: Target = None
    shard: Share = None
    learner: Learners = None
    folder: Folder = DEFAULT_FOLDER
    rounds: Annotated[int | None, typer.Option(min=1, help="Stop after so many rounds, however they end.")] = None
    secure_only: Annotated[
        bool,
        typer.Option(
            "--secure-only", envvar="QUORATE_SECURE_ONLY", help="Take part only where updates are added under masks."
        ),
    ] = False
    smallest_cohort: Annotated[
        int | None,
        typer.Option(
            min=2,
            envvar="QUORATE_SMALLEST_COHORT",
            help="In secure rounds, require at least so many devices in the cohort (default: 64).",
        ),
    ] = None
    most_colluding: Annotated[
        int | None,
        typer.Option(min=1, help="In secure rounds, refuse rosters that so many colluding devices could break."),
    ] = None
    strict_only: Annotated[
        bool, typer.Option("--strict-only", envvar="QUORATE_STRICT_ONLY", help="Join no secure rounds of profile fast.")
    ] = False
    largest_norm: Annotated[
        float | None, typer.Option(min=0, help="In secure rounds, refuse an L2 clip above this.")
    ] = None
    smallest_norm: Annotated[
        float | None,
        typer.Option(min=0, help="In secure rounds, refuse an L2 clip below this (default: 0.1)."),
    ] = None
    largest_range: Annotated[
        float | None, typer.Option(min=0, help="In secure rounds, refuse a range of values above this.")
    ] = None
    largest_weight_cap: Annotated[
        int | None, typer.Option(min=1, help="In secure rounds, refuse a weight cap above this.")
    ] = None
    fewest_examples: Annotated[
        int | None,
        typer.Option(min=1, help="In secure rounds, let no update of fewer examples into a sum (default: 20)."),
    ] = None
    fewest_steps: Annotated[
        int | None,
        typer.Option(min=1, help="In secure rounds, let no update of fewer steps into a sum (default: 2)."),
    ] = None
    largest_batch: Annotated[
        float | None,
        typer.Option(
            min=0.0001,
            max=1,
            help="In secure rounds, refuse batches of more than this share of the data (default: 0.5).",
        ),
    ] = None
    part_passes: Annotated[
        bool,
        typer.Option("--part-passes", help="In secure rounds, take tasks whose steps do not reach all of the data."),
    ] = False
    sums_a_day: Annotated[
        int | None,
        typer.Option(min=1, help="In secure rounds, put updates into so many sums a day at most (default: 100)."),
    ] = None
    sums_folder: SumsFolder = None
    most_epsilon: MostEpsilon = None
    delta: Delta = 1e-6
    apart: Annotated[
        int | None,
        typer.Option(
            min=1,
            envvar="QUORATE_APART",
            help="In a run with noise, take part again only after so many committed rounds.",
        ),
    ] = None
    private_only: Annotated[
        float | None,
        typer.Option(
            "--private-only",
            min=0,
            metavar="NOISE",
            envvar="QUORATE_PRIVATE_ONLY",
            help="Take part only where devices add noise themselves under masks, of so many times the clip or more.",
        ),
    ] = None
    nearest_model: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="In secure rounds, refuse a model nearer to one answered before than this share of the plan's clip "
            "(default: 0.002).",
        ),
    ] = None
    near_repeats: Annotated[
        int | None,
        typer.Option(min=0, help="In secure rounds, answer so many of such models a day all the same (default: 0)."),
    ] = None
    origins: Annotated[
        str | None,
        typer.Option(
            help="In secure rounds, take first models that the learner makes of a seed or somebody trusted has signed "
            "('usual', the default; of a learner that makes none, any), such models only ('signed'), or 'any'."
        ),
    ] = None
    model_key: Annotated[
        list[str] | None,
        typer.Option(
            "--model-key",
            metavar="HEX",
            help="A public key, beside the authority's, that signs first models; may be given several times.",
        ),
    ] = None
    largest_move: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="In secure rounds, refuse plans and models by which a round moves the model further than so many "
            "times the plan's clip (default: 3). 0: any distance.",
        ),
    ] = None
    late_moves: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="In secure rounds of a run not seen before, refuse models more than so many of its moves away from "
            "the first one (default: 10).",
        ),
    ] = None
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow",
            metavar="PACKAGE:NAME",
            help="Train only this learner; may be given several times. '*': also all installed ones, beside --learner.",
        ),
    ] = None
    max_epochs: Annotated[int | None, typer.Option(min=1, help="Refuse plans that ask for more epochs a round.")] = None
    state_mb: Annotated[
        int | None,
        typer.Option(min=0, help="What this device keeps for a run whose strategy asks for it, at most; else 1024."),
    ] = None
    state_days: Annotated[
        float, typer.Option(min=0.01, help="Days after which it is deleted where it is not used.")
    ] = 365.0
    threads: Threads = None
    label: Annotated[
        str, typer.Option(help="A name that operators see, such as 'ward 7', or 'phone/ward 7' with its class.")
    ] = ""

    def prepare(self) -> tuple[Catalogue, Any]:
        """The learners and the data that the options name. Failure where an option is wrong."""
        from client_sdk.data import load_data, with_target
        from client_sdk.http.urls import check_url
        from client_sdk.learners import EVERY, catalogue_for
        from client_sdk.protocol.names import LEARNER_PATTERN

        if self.data is None:
            fail(
                "Name this device's data with --data: an installed data set such as mnist, or a file such as mine.npz."
            )
        check_url(self.coordinator)
        if self.origins not in (None, "usual", "signed", "any"):
            fail(f"--origins is usual, signed or any, not {self.origins!r}.")
        for key in self.model_key or []:
            if not re.fullmatch("[0-9a-f]{64}", key):
                fail(f"--model-key {key!r} is no public key: 64 hexadecimal digits in small letters.")
        if not 0 < self.delta < 1:
            fail(f"--delta is above 0 and below 1, not {self.delta:g}.")
        if 0 in (self.most_epsilon, self.private_only):
            fail("--most-epsilon and --private-only are above 0: leave them out to allow anything.")
        if self.who_file is not None and not self.who_file.is_file():
            fail(f"There is no file {self.who_file}: --who-file names what proves who this device is.")
        for name in self.allow or []:
            if name != EVERY and not re.fullmatch(LEARNER_PATTERN, name):
                fail(f"{name!r} is not a learner's name; it looks like package:name.")
        source = with_target(self.data, self.target)
        data = load_data(source, self._share())
        # after the data: learners may import torch, which takes seconds
        catalogue = catalogue_for(self.learner or (), self.allow or ())
        if not catalogue.usable:
            fail(
                "This device has no learner: install a package that has one, or name yours: --learner module:attribute."
            )
        return catalogue, data

    def policy(self) -> Policy:
        """The owner's policy. Bounds on secure rounds are sent only where one is set."""
        from client_sdk.learners import EVERY
        from client_sdk.protocol.devices import Policy, PrivacyBounds, SecureBounds

        given = {name: getattr(self, name, None) for name in SecureBounds.model_fields} | {
            "largest_norm": self.largest_norm or None,
            "largest_range": self.largest_range or None,
            "strict_only": self.strict_only or None,
            "whole_passes": False if self.part_passes else None,
            "model_keys": self.model_key or None,
        }
        bounds = {name: value for name, value in given.items() if value is not None}
        if self.largest_move == 0:
            bounds["largest_move"] = None
        privacy = PrivacyBounds(
            most_epsilon=self.most_epsilon, delta=self.delta, apart=self.apart, private_only=self.private_only
        )
        return Policy(
            learners=tuple(self.allow) if self.allow and EVERY not in self.allow else None,
            secure_only=self.secure_only,
            max_epochs=self.max_epochs,
            max_state_bytes=None if self.state_mb is None else self.state_mb * 1_000_000,
            secure=SecureBounds.model_validate(bounds) if bounds else None,
            privacy=None if privacy == PrivacyBounds(delta=self.delta) else privacy,
        )

    def storage(self) -> FileStorage:
        """The device's folder. Failure as ``prepare``."""
        from client_sdk.data import identity_of
        from client_sdk.device.storage import FileStorage

        data = identity_of(self.data or "", self._share()).replace("\n", " ")
        return FileStorage(self.folder, ledger=self.ledger, data=data)

    @property
    def ledger(self) -> Path:
        """The file in which devices with this data count together: one for each share of a file or of an installed data
        set, however they are written. Failure as ``prepare``."""
        from client_sdk.data import identity_of

        return (
            sums_in(self.sums_folder) / hashlib.sha256(identity_of(self.data or "", self._share()).encode()).hexdigest()
        )

    def _share(self) -> Shard | None:
        from client_sdk.data import Shard

        return Shard.parse(self.shard) if self.shard is not None else None

    @property
    def name(self) -> str:
        """The name of this device in its lines: its label, or else its folder."""
        return self.label or self.folder.name or str(self.folder)

    def take_part(self, who: str, storage: FileStorage, trainer: Trainer, stop: Event, as_json: bool) -> int:
        """Take part until ``stop`` or ``rounds``, and print each event. Returns how many rounds ended here.

        ``who`` is the subject of the first line, as 'This device'. Failure where a new device has no token, or the
        token's file has none. Of a group only rank 0 comes here, and reads it.
        """
        from client_sdk.http.client import Client

        token = self.enrolment_token(storage)
        with Client(
            self.coordinator,
            storage,
            trainer,
            enrolment_token=token,
            who=self.who,
            policy=self.policy(),
            label=self.label,
            state_days=self.state_days,
            on_notice=self._print_json if as_json else lambda notice: say(str(notice)),
        ) as client:
            if not as_json:
                say(f"{who} has {trainer.examples} examples and talks to {client.coordinator}. Ctrl-C stops it.")
            return client.run(self.rounds, stop)

    def enrolment_token(self, storage: FileStorage) -> str | None:
        """The token that the device of ``storage`` enrols with. Failure where it needs one and there is none."""
        from client_sdk.device.enrolling import lacking

        sentence = lacking(storage.load())
        token = enrolment_token(self.token_file, enrolled=not sentence)
        if token is None and sentence:
            fail(sentence)
        return token

    def who(self) -> str:
        """The content of ``who_file``, read afresh for each enrolment: such proofs are short-lived."""
        return self.who_file.read_text("utf-8").strip() if self.who_file is not None else ""

    def _print_json(self, notice: Notice) -> None:
        say_json({"device": self.name, **asdict(notice)})


def takes_options(command: Callable[..., R]) -> Callable[..., R]:
    """A command in which the fields of each parameter that is a dataclass, such as ``Joining``, become options."""
    own = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in own.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name not in groups:
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=own[parameter.name]))
            continue
        hints = get_type_hints(groups[parameter.name], include_extras=True)
        parameters += [
            inspect.Parameter(one.name, parameter.KEYWORD_ONLY, default=one.default, annotation=hints[one.name])
            for one in fields(groups[parameter.name])
        ]

    @wraps(command)
    def taking(**given: Any) -> R:
        taken = {name: kind(**{one.name: given.pop(one.name) for one in fields(kind)}) for name, kind in groups.items()}
        return command(**taken, **given)

    taking.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return taking
