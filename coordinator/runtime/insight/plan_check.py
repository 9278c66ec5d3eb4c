"""Whether a run could be created from a plan, what it would cost, and what is likely to keep its rounds from being
committed. Creates nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from client_sdk import codecs
from client_sdk.protocol.insight import CheckPlan, CostLine, PlanView
from client_sdk.protocol.names import size_text
from client_sdk.tensors.manifest import told
from coordinator.engine.aggregation.weights import said_of_cap
from coordinator.engine.plan import Plan
from coordinator.engine.secure import plan as secure_plan
from coordinator.runtime.core import Core
from coordinator.runtime.insight.plan_cost import RoundCost, longest_s, time_text
from coordinator.runtime.marks import kinds_against, tensors_of
from coordinator.runtime.run_creation import Sees, checked_initial, checked_plan, free_id

_PAGE = 1000


class PlanCheck:
    """Safe from any thread."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def check(self, request: CheckPlan, *, permitted: Callable[[str], bool], sees: Sees = None) -> PlanView:
        """ProblemError as for a run that is created: where the plan or the checkpoint is refused, or the run's id would
        not be ``permitted``."""
        plan = checked_plan(self._core, request.plan)
        cost, spent, warnings = None, 0, []
        registered = self._core.store.registered_devices()
        if request.init is None:
            warnings.append("The costs in bytes are not known without an initial checkpoint.")
        else:
            header, roles = checked_initial(self._core, plan, request, sees)
            cost = RoundCost.of(plan, header, roles)
            if request.roles is None and roles:
                warnings.append(told(roles, "Since nobody says otherwise,"))
            tensors = tensors_of(self._core.blobs, plan, request.init)
            spent = self._core.store.marked_devices(tensors, kinds_against(plan)) if tensors else 0
        if registered - spent < plan.cohort.quorum_count:
            warnings.append(_too_few(plan, registered, spent))
        warnings += self._capped(plan)
        return PlanView(
            plan=plan.written_out,
            plan_digest=plan.digest,
            run=free_id(self._core, plan.name, set(self._core.store.flower_run_ids()), permitted),
            cost=_lines(plan, cost),
            devices_spent=spent,
            devices_registered=registered,
            warnings=warnings,
        )

    def _capped(self, plan: Plan) -> list[str]:
        """What is known of the sizes of registered devices. Those that told none may claim as many as any."""
        sizes, after, most = list[int](), "", self._core.settings.examples_cap
        with self._core.store.reading() as reader:
            while page := reader.devices(_PAGE, after):
                sizes += [row.examples_cap for row in page if row.left_at is None and row.examples_cap < most]
                after = page[-1].device
        said = said_of_plan(plan, sizes, whose="registered devices that told their size")
        return [f"{said}."] if said else []


def said_of_plan(plan: Plan, sizes: Sequence[int], *, whose: str = "clients") -> str:
    """Who of these weighs less than its examples under the plan, or that they use few bits under masks, in a sentence;
    else empty."""
    own = None if plan.secure is None else plan.secure.weight_cap
    cap, field = (own, "secure.weight_cap") if own is not None else (plan.aggregation.weight_cap, "weight_cap")
    capped = said_of_cap(plan.aggregation.weighting, cap, sizes, field=field, whose=whose)
    if capped or plan.secure is None or not sizes:
        return capped
    usual = sum(min(size, cap) for size in sizes) / len(sizes)
    return secure_plan.said_of_bits(plan.secure, plan.aggregation, usual, plan.cohort.goal)


def cannot_learn(plan: Plan, values: int) -> str:
    """Why a secure plan that averages so many values of its model can learn nothing, in a sentence; else empty."""
    if plan.secure is None:
        return ""
    sent = codecs.linear(plan.task.codec).count(values)
    return secure_plan.cannot_learn(plan.secure, plan.aggregation, sent, plan.cohort.goal)


def rounding_of(plan: Plan, values: int, weighs: float | None = None) -> str:
    """How large the rounding of a secure plan is, in a sentence; empty for a plain one. ``weighs``: of a device; None:
    the plan's usual one."""
    if plan.secure is None:
        return ""
    weight = plan.usual_weight if weighs is None else weighs
    used, sent = secure_plan.quantizer(plan.secure, plan.aggregation), codecs.linear(plan.task.codec).count(values)
    return (
        f"moves the mean of {plan.cohort.goal} devices that weigh {weight:,.0f} of weight_cap = {used.weight_cap:,} by "
        f"up to {used.rounding_error(sent, plan.cohort.goal, weight):.2g} of max_norm"
    )


def _too_few(plan: Plan, registered: int, spent: int) -> str:
    found = f"{registered} devices are registered here"
    if spent:
        found += f", of which {spent} have signed on this checkpoint or have declined it"
    return f"{found}; a round needs {plan.cohort.quorum_count} reports."


def _lines(plan: Plan, cost: RoundCost | None) -> list[CostLine]:
    rounds = plan.finish.rounds
    one_s, all_s = longest_s(plan), rounds * longest_s(plan)
    times = [
        CostLine(name="round_longest_s", value=one_s, text=f"a round lasts at most {time_text(one_s)}"),
        CostLine(name="run_longest_s", value=all_s, text=f"{rounds} rounds last at most {time_text(all_s)}"),
    ]
    if cost is None:
        return times
    both = rounds * (cost.download_bytes + cost.upload_bytes)
    sizes = [
        ("device_download_bytes", cost.fetch_bytes, "a device fetches {} a round"),
        ("device_upload_bytes", cost.update_bytes, "a device sends about {} a round"),
        ("round_download_bytes", cost.download_bytes, "the coordinator sends {} a round to all that are selected"),
        ("round_upload_bytes", cost.upload_bytes, "the coordinator receives about {} a round where all report"),
        ("run_bytes", both, f"about {{}} cross the network in {rounds} rounds"),
        ("server_memory_bytes", cost.memory_bytes, "a round takes about {} of the coordinator's memory"),
        ("server_disk_bytes", cost.disk_bytes, "updates take about {} of the coordinator's disk"),
    ]
    lines = [CostLine(name=name, value=size, text=text.format(size_text(size))) for name, size, text in sizes]
    return [*lines, *times]
