"""Whether a run could be created from a plan, what it would cost (devices, bytes on the network, disk, memory, time),
and what is likely to keep its rounds from being committed; and the schema of plans. Creates nothing.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel

from client_sdk import codecs
from client_sdk.credentials.certificate import Certificate
from client_sdk.credentials.identity_keys import AUTHORITY_ID_BYTES, KEY_BYTES
from client_sdk.device.policy import work_refusal
from client_sdk.protocol.devices import UpdateReport, Work, rounded_size
from client_sdk.protocol.field_docs import field_docs
from client_sdk.protocol.insight import CheckPlan, CostLine, PlanView
from client_sdk.protocol.names import REPORT_KEY, size_text
from client_sdk.protocol.operators import STILL_READ
from client_sdk.secagg.consent import SecurePolicy, nearest, refused_terms
from client_sdk.secagg.graph import NONCE_BYTES
from client_sdk.secagg.header import share_of
from client_sdk.secagg.lanes import packed_bytes
from client_sdk.secagg.masks import MaskedInput
from client_sdk.secagg.parameters import Parameters
from client_sdk.secagg.roster import Advertisement, Roster, RosterEntry
from client_sdk.secagg.shamir import SHARE_BYTES
from client_sdk.secagg.shares import DIGESTS_BYTES, SEALED_BYTES, Bundle
from client_sdk.secagg.statement import DIGEST_BYTES, SIGNATURE_BYTES
from client_sdk.secagg.survivors import SURVIVED, Proof, RevealedShares, Survivors
from client_sdk.tensors import (
    Layout,
    ManifestMismatch,
    Roles,
    TensorHeader,
    checkpoint_delta,
    header_bytes,
    shown,
    to_bytes,
)
from client_sdk.tensors.manifest import told
from coordinator.engine.aggregation.section import said_of_cap
from coordinator.engine.aggregation.strategy import Algorithm
from coordinator.engine.plan import Plan, algorithm
from coordinator.engine.plan_file import section_of
from coordinator.engine.secure import plan as secure_plan
from coordinator.engine.secure.plan import EXCHANGES
from coordinator.folding.aggregator import coarse
from coordinator.runtime.core import Core
from coordinator.runtime.marks import tensors_of
from coordinator.runtime.privacy_ledgers import warnings_of
from coordinator.runtime.run_creation import Sees, checked_initial, checked_plan, free_id
from coordinator.secure.announcing import statistics_of

_DEVICE = "d" + 16 * "0"
"""An id as an authority draws it."""
_SECONDS = 1.2345678901234567
_REPORT = UpdateReport(
    run="r",
    round=100,
    codec="c",
    examples=1000,
    work=Work(steps=100, steps_planned=100, epochs=_SECONDS, examples_seen=1000),
    fetch_s=_SECONDS,
    train_s=_SECONDS,
    encode_s=_SECONDS,
    metrics={"loss": _SECONDS, "accuracy": _SECONDS},
)


class Traffic(NamedTuple):
    """Bytes of one device's messages in a round, beside the model that it fetches: those of specimens, encoded
    by the code that writes the real messages. HTTP's own headers are not counted: about 1 kB a request."""

    sent: int
    received: int


def of_update(run: str, codec: str, averaged: Layout) -> Traffic:
    """A plain update with two training metrics: the values that the codec sends, and the header with the report."""
    chosen = codecs.beside(codec, averaged.statistics)
    wire = chosen.wire(averaged.whole)
    report = _REPORT.model_copy(update={"run": run, "codec": chosen.name})
    return Traffic(len(header_bytes(wire, {REPORT_KEY: report.model_dump_json()})) + wire.nbytes, 0)


def of_secure_round(parameters: Parameters, vector_bytes: int, roster: int) -> Traffic:
    """All five exchanges of a device that stays to the end of an attempt in which nobody vanishes. ``parameters``: of
    its group; ``vector_bytes``: of the masked vector; ``roster``: devices of all groups."""
    places, peers = tuple(range(parameters.n)), tuple(range(1, parameters.neighbours + 1))
    advertisement = Advertisement(_DEVICE, bytes(32), bytes(32), bytes(DIGEST_BYTES), bytes(NONCE_BYTES))
    certificate = Certificate(
        authority=bytes(AUTHORITY_ID_BYTES),
        id=_DEVICE,
        holder="device",
        public_key=bytes(KEY_BYTES),
        not_before=0,
        not_after=1,
        signature=bytes(SIGNATURE_BYTES),
    ).encoded
    entry = RosterEntry(advertisement, bytes(SIGNATURE_BYTES), certificate)
    rows = tuple((place, bytes(SEALED_BYTES), bytes(DIGESTS_BYTES)) for place in peers)
    held = places if parameters.complete else peers
    sent = [
        advertisement.encoded + certificate,
        Bundle(0, rows, bytes(DIGESTS_BYTES) if parameters.complete else b"").encoded,
        MaskedInput(0, 0, 0, bytes(DIGEST_BYTES)).encoded + bytes(vector_bytes),
        b"",
        RevealedShares(0, tuple((place, SURVIVED, bytes(SHARE_BYTES)) for place in held)).encoded,
    ]
    received = [
        Roster(0, 0, (entry,) * roster).encoded,
        Bundle(0, rows).encoded,
        Survivors(places).encoded,
        Proof(tuple((place, bytes(SIGNATURE_BYTES)) for place in places)).encoded,
    ]
    return Traffic(sum(len(message) + SIGNATURE_BYTES for message in sent), sum(map(len, received)))


MEMORY_MODELS = 3
"""Memory of the coordinator for a round, in float32 models. The sum takes two; the rest are buffers of readers,
which do not grow with the model: ``benchmarks/coordinator.py`` measured 3.6 with 1M values, and its round of 48 updates
of 4M values 2.4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCost:
    """One round with devices in which each of those that are selected stays to the end. Bytes are those of files and
    messages, headers of tensor files and signatures included, without the headers of HTTP; those of a device may differ
    by a few hundred, since it reports more metrics, or longer ones."""

    values: int
    """Elements of the model that are averaged, of ``model_values`` in all."""
    statistics: int
    """How many of them are of statistics."""
    model_values: int
    model_bytes: int
    """The file of a checkpoint."""
    fetch_bytes: int
    """What one device receives: the checkpoint; in a secure round also its peers' keys, shares and signatures."""
    delta_bytes: int
    """About the most that it receives where it has the checkpoint of the round before, and gets the difference."""
    update_bytes: int
    """What one device sends: its update, encoded; in a secure round its masked vector with keys and shares."""
    download_bytes: int
    """To all selected devices."""
    upload_bytes: int
    """From all selected devices, also those that come after the round has closed."""
    disk_bytes: int
    """Updates in the coordinator's folder at once: those of a round, and of the rounds that the plan retains."""
    memory_bytes: int
    longest_s: float
    """Seconds from the round's opening to its deadline."""

    @classmethod
    def of(cls, plan: Plan, checkpoint: TensorHeader, roles: Roles) -> RoundCost:
        """The cost for this initial checkpoint, whose tensors have these roles. TensorError where the plan averages
        none of them, or where its codec cannot take them."""
        model = checkpoint.manifest
        averaged = Layout.of(model, plan.task.averaged, roles)
        for pattern in plan.aggregation.unmatched_ranges(averaged.statistics):
            raise ManifestMismatch(f"aggregation.statistics_range: no averaged statistic matches {shown(pattern)}")
        select = plan.cohort.select if plan.buffered is None else plan.cohort.goal
        traffic = _traffic(plan, averaged)
        fetch = checkpoint.total_bytes + traffic.received
        return cls(
            values=averaged.elements,
            statistics=averaged.statistics.elements,
            model_values=model.elements,
            model_bytes=checkpoint.total_bytes,
            fetch_bytes=fetch,
            delta_bytes=int(_difference(plan.aggregation.step_bits) * 4 * averaged.elements) + traffic.received,
            update_bytes=traffic.sent,
            download_bytes=select * fetch,
            upload_bytes=select * traffic.sent,
            disk_bytes=select * traffic.sent * (1 + plan.retention.rounds),
            memory_bytes=MEMORY_MODELS * 4 * averaged.elements,
            longest_s=longest_s(plan),
        )


@cache
def _difference(bits: int | None) -> float:
    """How much of a checkpoint the difference to the one before takes, with steps of so many bits: of a specimen of
    normal values and steps. Those of models have more that are near zero, and are shorter."""
    rng = np.random.default_rng(0)
    before, step = rng.standard_normal((2, 1 << 16)).astype(np.float32) * np.array([[0.05], [0.002]], np.float32)
    after = before + step if bits is None else coarse(before, before + step, bits, bytes(32), 0)
    files = (io.BytesIO(to_bytes({"w": values})) for values in (before, after))
    return min(1.0, sum(map(len, checkpoint_delta.encode(*files))) / int(before.nbytes))


def longest_s(plan: Plan) -> float:
    """Seconds from a round's opening to its last deadline; of a secure round with all the attempts that it may have. Of
    a buffered one as long as each device may take, since it closes with so many reports, whenever these come."""
    if plan.buffered is not None:
        return plan.cohort.collect_s
    plain_s = plan.cohort.select_s + plan.cohort.collect_s
    if plan.secure is None:
        return plain_s
    again = (plan.secure.attempts - 1) * (EXCHANGES + 1)
    return plain_s + (EXCHANGES + again) * plan.secure.exchange_s


def _traffic(plan: Plan, averaged: Layout) -> Traffic:
    secure, terms = plan.secure, plan.terms_with(averaged.statistics)
    if secure is None or terms is None:
        return of_update(plan.name, plan.task.codec, averaged)
    used = terms.quantizer_of(statistics_of(averaged, terms))
    values = codecs.linear(plan.task.codec).count(averaged.parameters.elements)
    roster = secure.most_advertisers(plan.cohort)
    largest = -(-roster // secure.groups)
    bits = used.lane_bits(largest, largest * share_of(used, secure.rule, values, largest))
    size = packed_bytes(values + used.extra_lanes, bits)
    return of_secure_round(secure.rule.parameters(largest), size, roster)


def time_text(seconds: float) -> str:
    """Seconds in the largest unit of which there are two."""
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


_LOOKED_AT = 1000


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
            spent = self._core.store.marked_devices(tensors) if tensors else 0
        if registered - spent < plan.cohort.quorum_count:
            warnings.append(_too_few(plan, registered, spent))
        warnings += self._capped(plan)
        warnings += warnings_of(self._core.store, plan)
        rule = algorithm(plan, self._core.extensions(plan))
        values = None if cost is None else cost.values - cost.statistics
        said = list(said_of_secure(plan, rule, values, from_file=cost is not None))
        warnings += [f"{one.text[0].upper()}{one.text[1:]}" for one in said if one.warns]
        return PlanView(
            plan=plan.written_out,
            plan_digest=plan.digest,
            run=free_id(self._core, plan.name, set(self._core.store.flower_run_ids()), permitted),
            cost=_lines(plan, cost),
            devices_spent=spent,
            devices_registered=registered,
            warnings=warnings,
            notes=[
                *(str(one) for one in said if not one.warns),
                *(f"Privacy: {text}" for text in (plan.privacy.said(plan, values) if plan.privacy else ())),
            ],
        )

    def _capped(self, plan: Plan) -> list[str]:
        """What people may know of the sizes of registered devices (``rounded_size``): the power of two below each.
        Those that told none may claim as many as any. Of a large fleet the first devices are looked at: chance has
        drawn their ids."""
        rows, most = self._core.store.devices(_LOOKED_AT + 1), self._core.settings.examples_cap
        caps = [row.examples_cap for row in rows[:_LOOKED_AT] if row.left_at is None and row.examples_cap < most]
        sizes = [max(1, rounded_size(cap) // 2) for cap in caps]
        among = f" among the first {_LOOKED_AT:,} by id," if len(rows) > _LOOKED_AT else ""
        said = said_of_plan(plan, sizes, whose=f"registered devices that told their size, rounded down,{among}")
        return [f"{said}."] if said else []


def said_of_plan(plan: Plan, sizes: Sequence[int], *, whose: str = "clients") -> str:
    """Who of these weighs less than its examples under the plan, or that they use few bits under masks, in a sentence;
    else empty."""
    own = None if plan.secure is None else plan.secure.weight_cap
    cap, field = (own, "secure.weight_cap") if own is not None else (plan.aggregation.weight_cap, "weight_cap")
    capped = said_of_cap(plan.weighting, cap, sizes, field=field, whose=whose)
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


class Said(NamedTuple):
    """A sentence on the secure rounds of a plan."""

    about: str
    text: str
    warns: bool = False
    """Whether it is likely to keep rounds from being committed."""

    def __str__(self) -> str:
        return f"{self.about[0].upper()}{self.about[1:]}: {self.text}"


def said_of_secure(
    plan: Plan, rule: Algorithm, values: int | None, *, from_file: bool, examples: int | None = None
) -> Iterator[Said]:
    """What is said of a plan's secure rounds before they begin. ``values``: how many parameters are averaged, where
    that is known; ``from_file``: whether the first model is a file; ``examples``: of a device, where that is known."""
    secure = plan.secure
    if secure is None:
        return
    if plan.privacy is None:
        yield Said("a sum", STILL_READ)
    yield from (Said("sizes", text) for text in secure.said_of_sizes(plan))
    yield from (Said("groups", text) for text in secure.said_of_groups(plan, rule.usual.withstands(secure.groups)))
    if from_file and (first := secure.said_of_first()):
        yield Said("first model", first, warns=True)
    yield from (Said("owners", text, warns=True) for text in declined(plan, values, examples))
    if plan.datacenter is not None:
        yield Said("datacenter", UNSIGNED)


UNSIGNED = (
    "devices whose owners set nothing decline a model that a datacenter has made where it is further than their rounds "
    "lead, and the run waits until it is signed: quorate authority sign FILE --run RUN --version VERSION, then "
    "quorate run sign."
)


def declined(plan: Plan, values: int | None, examples: int | None = None) -> Iterator[str]:
    """Why devices whose owners set nothing take no part in a plan's secure rounds, a sentence each, by the functions by
    which they decide. Of devices whose number of ``examples`` is not known: why none does, whatever its number."""
    terms, bounds = plan.terms, SecurePolicy()
    if terms is None:
        return
    reasons = list(refused_terms(terms, bounds, values or 1))
    # With fewer examples a batch is too large a share of them; the more there are, the fewer tasks are whole passes.
    best = math.ceil(plan.task.batch_size / bounds.largest_batch)
    best = bounds.fewest_examples if best <= bounds.fewest_examples else rounded_size(best - 1) + 1
    if work := work_refusal(plan.task, bounds, best if examples is None else examples):
        reasons.append(work)
    yield from (f"devices whose owners set nothing decline: {reason}" for reason in reasons)
    shortest = plan.shortest_reach
    moves = shortest.of(values) if values else shortest.norm
    if moves <= nearest(terms, bounds) and plan.finish.rounds > 1:
        which = "each moves" if plan.reach == shortest else "some move"
        yield (
            f"devices whose owners set nothing decline the round after one of theirs: {which} the model by at most "
            f"{moves / terms.max_norm:.2g} times max_norm, and models that are nearer than {bounds.nearest_model:g} "
            "times it are too near. Raise aggregation.server_learning_rate."
        )


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
        found += f", of which {spent} have signed on this checkpoint"
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


@cache
def plan_schema() -> dict[str, Any]:
    """The schema (JSON Schema 2020-12) of a plan, for editors and forms: each field with its description. Nobody
    changes it."""
    document: dict[str, Any] = Plan.model_json_schema()
    models: list[type[BaseModel]] = [Plan]
    for model in models:  # it grows by the sections that it has
        own = document if model is Plan else document["$defs"][model.__name__]
        found = [section_of(model, name) for name in own["properties"]]
        models += [section for section in found if section is not None and section not in models]
        for field, text in field_docs(model).items():
            if field in own["properties"]:
                own["properties"][field]["description"] = " ".join(text.split())
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **document}
