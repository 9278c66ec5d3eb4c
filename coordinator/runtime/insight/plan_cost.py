"""Computes what a run of a plan costs, before it starts: devices, bytes on the network, disk, memory and time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from client_sdk import codecs
from client_sdk.credentials.certificate import Certificate
from client_sdk.credentials.identity_keys import AUTHORITY_ID_BYTES, KEY_BYTES
from client_sdk.protocol.devices import UpdateReport, Work
from client_sdk.protocol.names import REPORT_KEY
from client_sdk.secagg.graph import NONCE_BYTES
from client_sdk.secagg.lanes import lane_bits, packed_bytes
from client_sdk.secagg.masks import MaskedInput
from client_sdk.secagg.parameters import Parameters
from client_sdk.secagg.roster import Advertisement, Roster, RosterEntry
from client_sdk.secagg.shamir import SHARE_BYTES
from client_sdk.secagg.shares import DIGESTS_BYTES, SEALED_BYTES, Bundle
from client_sdk.secagg.statement import DIGEST_BYTES, SIGNATURE_BYTES
from client_sdk.secagg.survivors import SURVIVED, Proof, RevealedShares, Survivors
from client_sdk.tensors import Layout, ManifestMismatch, Roles, TensorHeader, header_bytes, shown
from coordinator.engine.plan import Plan
from coordinator.engine.secure.plan import EXCHANGES, quantizer
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


def of_secure_round(parameters: Parameters, vector_bytes: int) -> Traffic:
    """All five exchanges of a device that stays to the end of an attempt in which nobody vanishes. ``vector_bytes``: of
    the masked vector."""
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
        Roster(0, 0, (entry,) * parameters.n).encoded,
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
            update_bytes=traffic.sent,
            download_bytes=select * fetch,
            upload_bytes=select * traffic.sent,
            disk_bytes=select * traffic.sent * (1 + plan.retention.rounds),
            memory_bytes=MEMORY_MODELS * 4 * averaged.elements,
            longest_s=longest_s(plan),
        )


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
    secure = plan.secure
    if secure is None:
        return of_update(plan.name, plan.task.codec, averaged)
    terms = secure.terms(plan.aggregation, averaged.statistics)
    used = replace(quantizer(secure, plan.aggregation), statistics=statistics_of(averaged, terms))
    lanes = codecs.linear(plan.task.codec).count(averaged.parameters.elements) + used.extra_lanes
    n = secure.most_advertisers(plan.cohort)
    return of_secure_round(secure.rule.parameters(n), packed_bytes(lanes, lane_bits(n, terms.q)))


def time_text(seconds: float) -> str:
    """Seconds in the largest unit of which there are two."""
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"
