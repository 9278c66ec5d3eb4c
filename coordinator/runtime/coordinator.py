"""The Coordinator: it makes events durable and performs their effects. One object per process, synchronous, safe from
any thread.

It is composed of a core (ports, logs, the queue of actions) and collaborators over it that answer devices, operators
and workers, handle the passing of time, and perform actions. ``RunLog`` makes an event durable; the collaborators
translate requests to events. They raise ``ProblemError`` for an error of the peer; ``StoreError`` and ``BlobError``
pass through them where the database or the disk failed.

The caller decides when ``tick`` and ``perform`` run: the service has a ``Driver`` with threads, the simulator a virtual
clock, the fault explorer makes one call at a time with crashes in between.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

from client_sdk.credentials.request_signature import RequestSignature
from client_sdk.secagg.masks import Masker
from coordinator.access import Grant, OperatorAccess
from coordinator.runtime.actions import Actions
from coordinator.runtime.commits import Commits
from coordinator.runtime.core import Core, Task
from coordinator.runtime.devices import DeviceRequests
from coordinator.runtime.fleet import Fleet
from coordinator.runtime.flower.flower_runs import FlowerRuns
from coordinator.runtime.identities import Identities, PinnedAuthority, SignedRequests, Verify
from coordinator.runtime.insight.insight import Insight
from coordinator.runtime.insight.ledgers import PrivacyLedgers
from coordinator.runtime.operators import OperatorRequests
from coordinator.runtime.secure_rounds import PresentAuthority, SecureRuns
from coordinator.runtime.standstill import Standstill
from coordinator.runtime.timekeeping import Timekeeping
from coordinator.runtime.uncertain_updates import UncertainUpdates
from coordinator.runtime.workers import WorkerRequests
from coordinator.secure.opening import MakeMasker
from coordinator.settings import Settings
from coordinator.store.port import StoreError

if TYPE_CHECKING:
    from coordinator.access.code_flow import CodeFlow
    from coordinator.access.issuer import TokenIssuer


def issuer_of(settings: Settings, now: Callable[[], float]) -> tuple[TokenIssuer | None, CodeFlow | None]:
    """The issuer, and how browsers log in there; None where the settings have none. PyJWT is loaded for it alone.
    ``now``: Unix seconds."""
    if settings.oidc_issuer is None:
        return None, None
    from coordinator.access.code_flow import CodeFlow, IssuerClient
    from coordinator.access.issuer import IssuerKeys, IssuerSettings, TokenIssuer

    keys = IssuerKeys(settings.oidc_issuer)
    issuer = TokenIssuer(
        IssuerSettings(
            url=settings.oidc_issuer,
            audience=settings.oidc_audience or "",
            claim=settings.oidc_claim,
            grants={value: Grant.parse(text) for value, text in settings.oidc_grants.items()},
        ),
        keys,
    )
    if settings.oidc_client is None:
        return issuer, None
    client = IssuerClient(id=settings.oidc_client, secret_file=settings.oidc_client_secret, scope=settings.oidc_scope)
    return issuer, CodeFlow(issuer, keys, client, now)


__all__ = ["Coordinator", "Task"]


class Coordinator:
    """``devices``, ``secure``, ``operators``, ``workers``, ``ledgers`` and ``insight`` answer requests; ``access`` says
    who operators are, ``identities`` and ``signed`` who devices and workers are; the methods serve the process
    itself."""

    def __init__(
        self,
        core: Core,
        *,
        authority: PinnedAuthority | None = None,
        verify: Verify = RequestSignature.require_signed,
        masker: MakeMasker = Masker,
    ) -> None:
        """``authority``: whose certificates are taken; None: nobody can register. ``verify``: how signatures of
        requests are verified; ``masker``: what sums are unmasked with."""
        self.core = core
        clock, known = core.clock, core.settings
        self.access = OperatorAccess(core.store, clock.now, core.entropy, *issuer_of(known, clock.now))
        self.identities = Identities(core, self.access.audit, authority)
        self.signed = SignedRequests(self.identities, clock.now, core.process.nonces, verify)
        self.fleet = Fleet(core)
        uncertain = UncertainUpdates(core)
        self.devices = DeviceRequests(core, self.fleet, uncertain)
        self._standstill = Standstill(core, self.fleet, self.identities)
        self.flower = FlowerRuns(core)
        self.operators = OperatorRequests(core, self._standstill, self.flower)
        self.insight = Insight(core, self.fleet, self.identities)
        self.ledgers = PrivacyLedgers(core)
        self.workers = WorkerRequests(core, self.fleet, self.identities)
        commits = Commits(core)
        self.secure = SecureRuns(core, PresentAuthority(self.identities, clock), commits, masker)
        self._actions = Actions(core, self.fleet, commits, self.secure)
        self._time = Timekeeping(core, self.identities, self.fleet, commits, uncertain)

    def recover(self) -> None:
        """After a start: issues pending actions again. MissingExtension where a run of the store cannot continue on
        this installation. A run whose log cannot be read is noted in ``core.process.run_errors``; the others are
        recovered."""
        self.core.require_extensions()
        self.identities.record_authority()
        self._time.recover()

    def tick(self) -> float | None:
        """Handles deadlines that have passed. Returns the next deadline in the clock's time, None where there is
        none. A run for which that fails is noted in ``core.process.run_errors``; the deadlines of the others are
        handled."""
        try:
            self.secure.free()
            self.identities.list()  # whom a list revokes that another replica has taken leaves the pool
            return min((at for at in (self._time.tick(), self.flower.tick()) if at is not None), default=None)
        except StoreError as error:
            self.core.process.storage_errors.note(error)
            raise

    def perform(self, task: Task) -> None:
        """Performs one action.

        Raises StoreError or BlobError where the database or the disk failed, and SecureRoundsWait where a secure round
        waits for the authority; the action may then be performed again.
        """
        traces = self.core.traces
        try:
            with nullcontext() if traces is None else traces.performing(*task):
                self._actions.perform(task)
        except Exception as error:
            self.core.process.storage_errors.note(error)
            raise

    def healthy(self) -> dict[str, object]:
        """Returns what the readiness check reads. StoreError where the database does not answer."""
        waiting = sum(self.fleet.counts().by_offer.values())
        found: dict[str, object] = {"runs": len(self.operators.run_ids()), "tasks": len(self.core.tasks())}
        errors = self.core.process.run_errors.all()
        found |= {"waiting": waiting, **({"run_errors": errors} if errors else {})}
        damaged = self.core.blobs.damaged()
        found |= {"damaged": damaged} if damaged else {}
        authority = self.identities.trouble()
        return {**found, **({"authority": authority} if authority else {})}

    def stalled(self) -> dict[str, str]:
        """Returns why runs stand still, by run; without those that nothing is known to be in the way of."""
        found = {log.run: self._standstill.of_run(log.state) for log in self.core.process.going()}
        return {run: why for run, why in sorted(found.items()) if why}
