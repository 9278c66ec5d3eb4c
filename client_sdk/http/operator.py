"""An operator's requests to the coordinator: runs, rounds, metrics, checkpoints and the stream of events.

Commands, evaluators and notebooks use it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import httpx2

from client_sdk.http.operator_transport import OperatorTransport
from client_sdk.protocol.access import AuditHeadView, AuditView, CreateKey, KeyCreated, KeyView, LinkCreated
from client_sdk.protocol.insight import (
    CheckPlan,
    DeviceDetail,
    FleetView,
    LanesView,
    PlanView,
    RunParticipation,
    SystemView,
)
from client_sdk.protocol.names import (
    DIGEST_HEADER,
    TENSORS_MEDIA_TYPE,
    Digest,
    Page,
    Route,
    StatisticRole,
    content_digest,
)
from client_sdk.protocol.operators import (
    AdvanceRun,
    CheckpointStored,
    CheckpointView,
    CreateRun,
    DeviceView,
    EventView,
    MetricReport,
    MetricView,
    Possession,
    RenameRun,
    RoundView,
    RunView,
    SignRun,
    UnbarDevice,
)
from client_sdk.protocol.privacy import AllowSpending, CreateLedger, LedgerView, RunPrivacy
from client_sdk.protocol.privacy_report import SignedReport
from client_sdk.protocol.problems import ProblemError, problem
from client_sdk.protocol.workers import WorkerView
from client_sdk.tensors import canonical_bytes
from client_sdk.tensors import digest as digest_of
from client_sdk.tensors.safetensors_file import CanonicalFile


def _nothing(size: int) -> None:
    """Nobody wants to know."""


class OperatorClient:
    """All requests of an operator. Raises ProblemError for what the coordinator refuses; where it cannot be reached the
    problem is ``busy``, with a sentence. ValueError where ``coordinator`` is no URL.

    ``key``: the API key, or a token of the coordinator's issuer. None: the one in ``key_file``, or the one that is
    found for this coordinator (``operator_key``)."""

    def __init__(
        self,
        coordinator: str,
        *,
        key: str | None = None,
        key_file: Path | str | None = None,
        http: httpx2.Client | None = None,
    ) -> None:
        self._transport = OperatorTransport(coordinator, key=key, key_file=key_file, http=http)
        self.coordinator = self._transport.coordinator
        self._proofs: dict[str, str] = {}
        """Of the checkpoints that this client has uploaded, by their digests."""
        self.repaired: set[str] = set()
        """Digests of uploaded checkpoints that have replaced a damaged file."""
        self.insight = OperatorInsight(self._transport, self._proofs)
        """Lanes, the fleet, one device, the process, what a plan would cost."""

    def create_run(
        self,
        plan: dict[str, object],
        init: str,
        origin: str = "",
        roles: Mapping[str, StatisticRole] | None = None,
    ) -> RunView:
        """Start a run of ``plan`` from the uploaded checkpoint with digest ``init``. ``roles``: its statistics, by
        names or shell patterns; None: those that their names tell."""
        said = None if roles is None else dict(roles)
        asked = CreateRun(plan=plan, init=init, init_proof=self._proofs.get(init), origin=origin, roles=said)
        return self._transport.ask("POST", Route.RUNS, RunView, asked)

    def runs(self, after: str = "", limit: int = 1000) -> Page[RunView]:
        """Runs that were created after this one, oldest first, at most ``limit``."""
        return self._transport.page(Route.RUNS, RunView, after, limit)

    def require_answer(self) -> None:
        """ProblemError where no coordinator answers at the URL. Needs no key."""
        self._transport.send("GET", "/healthz")

    def authority_trouble(self) -> str:
        """Why devices cannot register, or secure rounds wait, in a sentence. Empty: nothing is in their way."""
        found = self._transport.ask("GET", "/readyz", dict[str, Any])
        return str(found.get("authority", ""))

    def run(self, run: str) -> RunView:
        return self._transport.ask("GET", Route.RUN.format(run=run), RunView)

    def pause(self, run: str) -> RunView:
        """Begin no other round; the round under way is still finished."""
        return self._act(run, "pause")

    def resume(self, run: str) -> RunView:
        return self._act(run, "resume")

    def stop(self, run: str) -> RunView:
        """Stop the run permanently."""
        return self._act(run, "stop")

    def rename(self, run: str, name: str) -> RunView:
        """Show the run by another name, of up to 64 characters. Its id stays."""
        return self._transport.ask("PUT", Route.RENAME.format(run=run), RunView, RenameRun(name=name))

    def advance(self, run: str, by: str) -> RunView:
        """Have an exhausted run commit its model with one value moved by one unit of the exact scale, on which no
        device is spent. ``by`` is recorded in the audit. ProblemError ``conflict`` for a run that is not exhausted."""
        return self._transport.ask("POST", Route.ADVANCE.format(run=run), RunView, AdvanceRun(by=by))

    def unbar(self, run: str, device: str, by: str) -> RunView:
        """Let a barred device take part in the run's secure rounds again. ``by`` is recorded in the audit. ProblemError
        ``conflict`` for a device that is not barred."""
        return self._transport.ask("POST", Route.UNBAR.format(run=run, device=device), RunView, UnbarDevice(by=by))

    def create_ledger(self, request: CreateLedger) -> LedgerView:
        """Make a privacy ledger that plans may name. ProblemError ``conflict`` where there is one of this name."""
        return self._transport.ask("POST", Route.LEDGERS, LedgerView, request)

    def allow_spending(self, ledger: str, request: AllowSpending) -> LedgerView:
        """Let devices that have lost something by another ledger take part in runs of this one. Audited."""
        return self._transport.ask("POST", Route.ALLOW_SPENDING.format(ledger=ledger), LedgerView, request)

    def ledgers(self, after: str = "", limit: int = 1000) -> Page[LedgerView]:
        """Privacy ledgers after this one: those with a name, then those of runs that have one of their own."""
        return self._transport.page(Route.LEDGERS, LedgerView, after, limit)

    def ledger(self, ledger: str) -> LedgerView:
        return self._transport.ask("GET", Route.LEDGER.format(ledger=ledger), LedgerView)

    def run_privacy(self, run: str) -> RunPrivacy:
        """What a run's rounds have cost its devices, and its ledger."""
        return self._transport.ask("GET", Route.RUN_PRIVACY.format(run=run), RunPrivacy)

    def sign(self, run: str, version: int, signature: str) -> RunView:
        """Give devices the signature under this version of the run's model, its newest one. ProblemError ``conflict``
        for another version, and where the rounds are plain."""
        message = SignRun(version=version, signature=signature)
        return self._transport.ask("POST", Route.SIGN_RUN.format(run=run), RunView, message)

    def rounds(self, run: str, after: int = 0, limit: int = 1000) -> Page[RoundView]:
        """The run's rounds with a number above ``after``, in order, at most ``limit``."""
        return self._transport.page(Route.ROUNDS.format(run=run), RoundView, after, limit)

    def round(self, run: str, number: int) -> RoundView:
        return self._transport.ask("GET", Route.ROUND.format(run=run, round=number), RoundView)

    def metrics(self, run: str, after: int = -1, limit: int = 1000) -> Page[MetricView]:
        """The metrics of versions above ``after``, in order of version, at most ``limit`` and the others of the last
        one's version."""
        return self._transport.page(Route.METRICS.format(run=run), MetricView, after, limit)

    def report_metrics(self, run: str, report: MetricReport) -> list[MetricView]:
        """Scores of one checkpoint; reported again they replace the earlier ones."""
        return self._transport.ask("POST", Route.METRICS.format(run=run), list[MetricView], report)

    def devices(self, after: str = "", limit: int = 1000, **wanted: str) -> Page[DeviceView]:
        """Devices whose id sorts after ``after``, at most ``limit``. ``wanted``: only those of this ``state`` or
        ``device_class``, or with ``q`` in their id or label: fewer may come, with a ``next``, where few are so."""
        return self._transport.page(Route.DEVICES, DeviceView, after, limit, **wanted)

    def participation(self, run: str, after: str = "", limit: int = 1000) -> RunParticipation:
        """Who takes part in a run, the least counted first, ``after`` the ``next`` of an earlier page."""
        route = Route.PARTICIPATION.format(run=run)
        return self._transport.ask("GET", route, RunParticipation, params={"after": after, "limit": limit})

    def privacy_report(self, run: str) -> SignedReport:
        """What the models of a private run tell of one device, signed by the coordinator."""
        return self._transport.ask("GET", Route.PRIVACY_REPORT.format(run=run), SignedReport)

    def workers(self, after: str = "", limit: int = 1000) -> Page[WorkerView]:
        """Workers whose id sorts after ``after``, at most ``limit``."""
        return self._transport.page(Route.WORKERS, WorkerView, after, limit)

    def revoke_worker(self, worker: str) -> WorkerView:
        """Give a worker no more rounds, permanently."""
        return self._transport.ask("POST", Route.REVOKE_WORKER.format(worker=worker), WorkerView)

    def create_key(self, request: CreateKey) -> KeyCreated:
        """Create an API key. Its text is in the answer, and nowhere else."""
        return self._transport.ask("POST", Route.KEYS, KeyCreated, request)

    def keys(self, after: str = "", limit: int = 1000) -> Page[KeyView]:
        """API keys within the scope of the own one, whose id sorts after ``after``, at most ``limit``."""
        return self._transport.page(Route.KEYS, KeyView, after, limit)

    def revoke_key(self, key: str) -> KeyView:
        """Make an API key invalid, permanently."""
        return self._transport.ask("POST", Route.REVOKE_KEY.format(key=key), KeyView)

    def login_link(self) -> str:
        """A link with which a browser on the coordinator's machine logs in as the owner of this key, once and within
        five minutes."""
        return self._transport.ask("POST", Route.SESSION_LINKS, LinkCreated).url(self.coordinator)

    def audit(self, after: int = 0, limit: int = 1000) -> Page[AuditView]:
        """Rows of the audit with a number above ``after``, in order, at most ``limit``."""
        return self._transport.page(Route.AUDIT, AuditView, after, limit)

    def audit_head(self) -> AuditHeadView:
        """Where the audit ends, signed: to be written down elsewhere, for ``quorate verify --head``."""
        return self._transport.ask("GET", Route.AUDIT_HEAD, AuditHeadView)

    def checkpoints(self, run: str, after: int = -1, limit: int = 1000) -> Page[CheckpointView]:
        """The run's checkpoints of versions above ``after``, oldest first, at most ``limit``."""
        return self._transport.page(Route.RUN_CHECKPOINTS.format(run=run), CheckpointView, after, limit)

    # ------------------------------------------------------------ checkpoints' bytes

    def checkpoint(self, digest: str) -> bytes:
        """A checkpoint's bytes in memory, checked against its digest. ProblemError ``digest-mismatch`` where they
        differ."""
        parts: list[bytes] = []
        self._receive(digest, parts.append)
        return b"".join(parts)

    def download(self, digest: str, path: Path | str, on_bytes: Callable[[int], object] = _nothing) -> int:
        """A checkpoint into a file, checked before the file appears. Returns its length in bytes. ``on_bytes`` gets the
        number of bytes of each block, as they come."""
        target = Path(path)
        with NamedTemporaryFile(dir=target.parent, prefix=target.name, suffix=".part", delete=False) as file:
            part = Path(file.name)
            try:
                size = self._receive(digest, lambda block: on_bytes(file.write(block)))
                file.flush()
                part.replace(target)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
        return size

    def upload_checkpoint(self, source: Path | str | bytes, on_bytes: Callable[[int], object] = _nothing) -> str:
        """A safetensors file, or its bytes, as a checkpoint: without its metadata, under its digest, which is returned.

        A file is read twice, in blocks; ``on_bytes`` gets the number of bytes of each as it is sent. TensorError (a
        ValueError) where it is no safetensors file.
        """
        blocks: Iterator[bytes]
        if isinstance(source, bytes):
            whole = canonical_bytes(source)
            found, size, blocks = digest_of(whole), len(whole), iter((whole,))
        else:
            file = CanonicalFile(Path(source))
            found, size, blocks = file.digest(), file.size, file.blocks()
        extra = {
            "Content-Type": TENSORS_MEDIA_TYPE,
            "Content-Length": str(size),
            DIGEST_HEADER: content_digest(found),
        }
        proof = Possession()
        sent = _told(blocks, proof, on_bytes)
        answer = self._transport.send("PUT", Route.CHECKPOINT.format(digest=found), content=sent, extra=extra)
        if CheckpointStored.model_validate_json(answer).repaired:
            self.repaired.add(found)
        self._proofs[found] = proof.proof
        return found

    # ------------------------------------------------------------ events

    def events(self, run: str, after: int = 0, *, patience_s: float = 60.0) -> Iterator[EventView]:
        """The run's events with a sequence number above ``after``, as they happen; ends when the run has ended.

        A lost connection is taken up again after the last event seen; ProblemError once the coordinator has been silent
        for ``patience_s``.
        """
        last_event_at = time.monotonic()
        while True:
            wait_s = 1.0
            try:
                for event in self._stream(run, after):
                    last_event_at = time.monotonic()
                    after = event.seq
                    yield event
                if self.run(run).over and self.run(run).seq <= after:
                    return
                last_event_at = time.monotonic()
            except httpx2.HTTPError as error:
                if time.monotonic() - last_event_at > patience_s:
                    raise self._transport.silent(error) from error
            except ProblemError as error:
                if error.problem.advice != "retry" or time.monotonic() - last_event_at > patience_s:
                    raise
                wait_s = max(wait_s, min(error.problem.retry_after_s or 0.0, patience_s))
            time.sleep(wait_s)

    def _stream(self, run: str, after: int) -> Iterator[EventView]:
        sent = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        timeout = httpx2.Timeout(connect=5.0, read=60.0, write=30.0, pool=30.0)
        with self._transport.streamed(Route.EVENTS.format(run=run), sent, timeout) as response:
            if response.status_code == 204:
                return
            for event in httpx2.EventSource(response):
                if event.data:
                    yield EventView.model_validate_json(event.data)

    # ------------------------------------------------------------ asking

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> OperatorClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _act(self, run: str, action: str) -> RunView:
        return self._transport.ask("POST", Route.RUN_ACTION.format(run=run, action=action), RunView)

    def _receive(self, digest: str, take: Callable[[bytes], object]) -> int:
        sha256 = hashlib.sha256()
        size = 0
        try:
            url = Route.CHECKPOINT.format(digest=digest)
            with self._transport.streamed(url, {"Accept-Encoding": "identity"}) as response:
                for chunk in response.iter_bytes():
                    sha256.update(chunk)
                    size += len(chunk)
                    take(chunk)
        except httpx2.HTTPError as error:
            raise self._transport.silent(error) from error
        if sha256.hexdigest() != digest:
            raise problem("digest-mismatch", f"The checkpoint received is not {digest[:12]}; ask again.")
        return size


def _told(blocks: Iterator[bytes], proof: Possession, on_bytes: Callable[[int], object]) -> Iterator[bytes]:
    """The blocks, each told by its length once the next one is asked for."""
    for block in blocks:
        proof.add(block)
        yield block
        on_bytes(len(block))


class OperatorInsight:
    """``OperatorClient.insight``: what an operator looks at closely. That is a round's lanes, one device, the fleet,
    the process, a plan's cost. Raises as the client does. All but ``check_plan`` need the role of a viewer."""

    def __init__(self, transport: OperatorTransport, proofs: Mapping[str, str]) -> None:
        """``proofs``: that checkpoints were uploaded by this client (``CreateRun.init_proof``), by their digests."""
        self._transport = transport
        self._proofs = proofs

    def lanes(self, run: str, round: int, after: str = "", limit: int = 1000) -> LanesView:
        """What each selected device did in a round, with a lane for each whose id sorts after ``after``, at most
        ``limit`` (up to 1,000). Of a secure round ``LanesView.secure`` says why there are no lanes."""
        params = {"after": after, "limit": limit}
        return self._transport.ask("GET", Route.LANES.format(run=run, round=round), LanesView, params=params)

    def device(self, device: str) -> DeviceDetail:
        """One device, with the newest of its rounds. ProblemError ``unknown-device`` where there is none."""
        return self._transport.ask("GET", Route.DEVICE.format(device=device), DeviceDetail)

    def fleet(self) -> FleetView:
        """Devices by state, by class, and seen in each of the last 24 hours."""
        return self._transport.ask("GET", Route.FLEET, FleetView)

    def system(self) -> SystemView:
        """The process that answers: its replicas, its storage in bytes, its requests with their times in seconds."""
        return self._transport.ask("GET", Route.SYSTEM, SystemView)

    def check_plan(self, plan: dict[str, object], init: Digest | None = None) -> PlanView:
        """Whether a run could be created from ``plan``, and what it would cost; nothing is created. ``init``: the
        digest of an uploaded checkpoint, without which costs in bytes are not known. ProblemError for what would be
        refused. Needs the role of an operator."""
        return self._transport.ask(
            "POST", Route.CHECK_PLAN, PlanView, CheckPlan(plan=plan, init=init, init_proof=self._proofs.get(init or ""))
        )
