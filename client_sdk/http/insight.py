"""What an operator looks at closely: a round's lanes, one device, the fleet, the process, a plan's cost."""

from __future__ import annotations

from collections.abc import Mapping

from client_sdk.http.operator_transport import OperatorTransport
from client_sdk.protocol.insight import CheckPlan, DeviceDetail, FleetView, LanesView, PlanView, SystemView
from client_sdk.protocol.names import Digest, Route


class OperatorInsight:
    """``OperatorClient.insight``. Raises as the client does. All but ``check_plan`` need the role of a viewer."""

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
