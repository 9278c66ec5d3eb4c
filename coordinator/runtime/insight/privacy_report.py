"""Makes and signs the privacy report of a run, from rows of the store.

The coordinator signs it with the key of its audit (Ed25519). What is signed is ``PRIVACY_REPORT`` and the report as
JSON with sorted keys and no spaces, so a report that is stored in another layout still has its signature.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

import client_sdk
import coordinator
from client_sdk.credentials.canonical import PRIVACY_REPORT
from client_sdk.extensions import installed_version
from client_sdk.identity import verify
from client_sdk.privacy.accounting import epsilon_of
from client_sdk.protocol.names import copied
from client_sdk.protocol.privacy_report import PrivacyReport, PrivateRound, ReportedLedger, SignedReport
from client_sdk.protocol.problems import problem
from coordinator.engine.privacy import Privacy
from coordinator.engine.state import RunState
from coordinator.runtime.core import Core
from coordinator.runtime.insight.ledgers import clips_of, view_of
from coordinator.runtime.views import round_view
from coordinator.store.port import CheckpointRow, ContributionRow, Reader, RefusalRow, RunRow

_MECHANISMS = {
    "gaussian": "discrete Gaussian noise in the exact sum of each round",
    "tree": "discrete Gaussian noise in the exact sums of the nodes of a binary tree over rounds (DP-FTRL)",
    "blt": "discrete Gaussian noise in the exact sums, correlated over rounds by a buffered Toeplitz matrix (DP-FTRL)",
    "distributed": "discrete Gaussian noise of each device, under masks, which every sum that can be opened has",
}
_TRUSTED = (
    "The coordinator, and whoever reads its disk before updates are deleted: they see updates and sums without noise.",
    "The coordinator's operating system, from which the noise has its seeds, and AES-256, which draws it from them.",
)
_TRUSTED_UNDER_MASKS = (
    "Of the devices of a roster or group all but as many as it withstands: colluding ones know their own noise.",
    "The authority that certifies devices: with its help a coordinator fills a roster with devices of its own.",
    "The coordinator, that it counts how often each device takes part.",
    "Devices' operating systems, from which their noise has its keys, and AES-256, which draws it from them.",
)
_NOT_COVERED = (
    "Who took part, in which rounds and how often: adjacency replaces updates by zeros, and places in rounds stay.",
    "How many examples a device has, which it says when it checks in, and when and how fast it answers.",
    "Digests of updates, which stand in the log: they tell whether a guess of a whole update is right.",
    "Metrics that evaluators report of their own data.",
    "A device that enrols again: it counts as another one.",
    "Runs without noise and runs of other coordinators, with the same devices: no ledger here has them.",
)


_AT_ONCE = 200
"""Rounds."""


class PrivacyReports:
    """Safe from any thread."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def of_run(self, run: str, *, everything: bool = True) -> SignedReport:
        """``everything``: for a reader who sees all runs.

        ProblemError where there is no such run, where its plan has no section ``[privacy]``, and where this
        coordinator has no key."""
        log, signer = self._core.log(run), self._core.store.audit_signer
        state, _ = log.caught_up()
        if state.plan.privacy is None:
            raise problem(
                "conflict", f"the plan of run {run} has no section [privacy]: nothing bounds what its models tell"
            )
        if signer is None:
            raise problem("conflict", "this coordinator has no key that signs its audit, and so none for reports")
        simulated = self._core.process.clocks.of(self._core.store, run) == "virtual"
        with self._core.store.reading() as reader:
            report = _report(reader, log.row, state, state.plan.privacy, self._core.clock.now(), simulated=simulated)
        if not everything:
            report = report.changed(ledger=report.ledger.changed(said=()))
        return SignedReport(report=report, key=signer.public_hex, signature=signer.sign(signed_part(report)).hex())


def signed_part(report: PrivacyReport) -> bytes:
    """What is signed."""
    content = report.model_dump(mode="json")
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return PRIVACY_REPORT + text.encode("utf-8", "surrogatepass")


def is_signed(signed: SignedReport) -> bool:
    """Whether the signature is that of its key over this report."""
    return verify(signed.key, signed_part(signed.report), bytes.fromhex(signed.signature))


def _report(
    reader: Reader, row: RunRow, state: RunState, privacy: Privacy, now: float, *, simulated: bool
) -> PrivacyReport:
    plan = state.plan
    seq = reader.head(row.run)
    line = reader.checkpoints(row.run)
    counted, least_apart = _taken_part(reader, row.run, line)
    masked = privacy.mechanism == "distributed"
    if masked:  # lists that were shown, also where no model has come of them
        counted = Counter(lists for _, lists in state.participation.values() if lists)
    rho, of_run = reader.privacy_lost(row.run), {"run": row.run}
    return PrivacyReport(
        run=row.run,
        name=state.name,
        status=state.status,
        made_at=now,
        simulated=simulated,
        log=f"{row.run}:{seq}:{reader.events(row.run, seq - 1, 1)[0].link}",
        unit="device",
        adjacency="zero-out",
        mechanism=_MECHANISMS[privacy.mechanism],
        clips=tuple(clips_of(reader, row.run, privacy)),
        noise=privacy.multiplier(plan),
        delta=privacy.delta,
        epsilon=epsilon_of(rho, privacy.delta),
        rho=rho,
        epsilon_planned=privacy.spent(plan),
        most_rounds=privacy.participations(plan),
        rounds_of_a_device=dict(sorted(counted.items())),
        least_apart=least_apart,
        ledger=_ledger(reader, privacy.ledger_of(row.run)),
        trusted=_TRUSTED_UNDER_MASKS if masked else _TRUSTED,
        not_covered=_NOT_COVERED,
        rounds=_rounds(reader, row.run, {made.round: made.digest for made in line}),
        refusals=dict(sorted(Counter(str(kind) for (kind,) in reader._values(RefusalRow, "kind", of_run)).items())),
        plan=row.plan_digest,
        code=code_digest(),
        version=installed_version(),
        first_model=row.init,
    )


def _ledger(reader: Reader, name: str) -> ReportedLedger:
    found = view_of(reader, name)
    return ReportedLedger(
        name=found.ledger,
        budget=found.epsilon,
        spent=found.spent,
        devices=found.devices,
        near=found.near,
        runs=len(found.runs),
        words=len(found.allowed),
        said=tuple(f"{word.other}: {word.because}" for word in found.allowed),
    )


def _taken_part(reader: Reader, run: str, line: Sequence[CheckpointRow]) -> tuple[Counter[int], int | None]:
    """Rounds -> how many devices have counted in so many of those that made a model; and the fewest versions from one
    to the next in which a device counted. A run may have millions of updates, so some rounds are read at a time."""
    version = {made.round: made.version for made in line if made.round is not None}
    times, last, apart = Counter[str](), dict[str, int](), None
    for start in range(0, max(version, default=0), _AT_ONCE):
        some = {"run": run, "round >": start, "round <=": start + _AT_ONCE}
        for number, device in sorted(map(tuple, reader._values(ContributionRow, "round device", some))):
            if (now := version.get(number)) is not None:
                if device in last:
                    apart = min(now - last[device], apart or now)
                last[device] = now
                times[device] += 1
    return Counter(times.values()), apart


def _rounds(reader: Reader, run: str, made: Mapping[int | None, str]) -> tuple[PrivateRound, ...]:
    authorities, found, last = reader.authorities(), list[PrivateRound](), 0
    while page := reader.rounds(run, last, limit=_AT_ONCE):
        last = page[-1].round
        views = (round_view(reader, row, None, authorities) for row in page if row.status != "open")
        found += [copied(PrivateRound, view.funnel, view, checkpoint=made.get(view.round)) for view in views]
    return tuple(found)


@cache
def code_digest() -> str:
    """SHA-256 over the Python files of ``client_sdk`` and ``coordinator`` as they are installed here: over a line for
    each, in order of their paths, of the SHA-256 of its bytes, two spaces and its path. It is what
    ``sha256sum $(find client_sdk coordinator -name '*.py' | LC_ALL=C sort) | sha256sum`` prints in a folder of the
    sources."""
    folders = [Path(package.__path__[0]) for package in (client_sdk, coordinator)]
    files = {file.relative_to(folder.parent).as_posix(): file for folder in folders for file in folder.rglob("*.py")}
    lines = (f"{sha256(file.read_bytes()).hexdigest()}  {path}\n" for path, file in sorted(files.items()))
    return sha256("".join(lines).encode()).hexdigest()
