"""The invariants, each a function of the durable rows, the disk and the devices' own records, and their table.

A new one is a line in ``INVARIANTS`` and a check that raises ``Broken`` with its name, called by ``watch`` where its
state changes. The checks do not read the objects of the engine or the coordinator.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from client_sdk.device.record import Joined
from coordinator.blobs import BlobError
from coordinator.datacenter.worker_session import Ended
from coordinator.engine.named_tensors import called
from coordinator.store.port import RoundRow
from coordinator.verify import verify
from tests.explorer.durable import Durable
from tests.explorer.faults import Broken
from tests.explorer.follow import TrackedRun
from tests.explorer.marks import Made, Register, marks_in, moved, next_model, what_went_wrong
from tests.explorer.private import Streams
from tests.explorer.request import SentRequest
from tests.explorer.round_ending import RoundEnding, means, scores_of

LOG = b"quorate run log 1\0"
"""What each link of a log begins with."""
PLAIN = ("federated", "buffered")
"""The kinds of rounds whose updates come in the clear."""
INVARIANTS: dict[str, str] = {
    "counts-once": "1. A device counts at most once per round and per model version.",
    "line": "2. The checkpoints of a run form a line; no fork, no gap.",
    "named": "3. Every counted update is named in the commit; every acknowledged one counts or has a refusal.",
    "one-end": "4. A round has one terminal state.",
    "whole-blob": "5. No reader sees a checkpoint without its complete blob.",
    "unmasked": "6. Nothing unmasked is stored, and no rebuilt secret.",
    "ledger": "7. The privacy ledger holds what models tell.",
    "noise": "No stream of noise is in two sums, and a sum has one stream of noise.",
    "ack-durable": "8. Acknowledged is durable.",
    "same-bits": "10. The same set of encoded updates gives the same bits.",
    "liveness": "11. With enough live devices some round commits in bounded time.",
    "left-once": "A device whose update is refused as invalid has left the round, and is recorded once, as refused.",
    "quorum": "A round commits with at least its quorum.",
    "spent": "A device signs one list on one model, reveals one share of each dealer, and is drawn on it no more.",
    "groups": "A device is in the one group that the nonces of all give; nothing of one group counts in another.",
    "origin": "Where its owner wants a signature under the model, a device is in no round of a run that nobody signed.",
    "barred": "Who is barred has lied; no honest device is, and no message of one is refused as wrong.",
    "late-report": "An update after a round has closed does not count.",
    "receipt": "The same bytes again get the same receipt; a device sends no other bytes in a round.",
    "fence": "A round is committed by the replica that took the commit last.",
    "refusal": "A refused request leaves the state as it was.",
    "lease": "A datacenter round is one worker's at a time; its fence only rises; the last lease's result counts.",
    "offer": "What a device or a worker is offered, or gets as its outcome, is what the log says.",
    "permission": "Who is served has signed, is registered and certified, and on no list that was seen.",
    "replay": "A process takes a signed request once.",
    "list": "A revocation list is replaced by a newer one only.",
    "parent": "An update is made from the checkpoint that its round began with.",
    "draw": "A draw is repeated from its pool, seed and round; the pool has the devices that wait and are free.",
    "deadline": "A phase ends at its deadline, or when it is complete: not before.",
    "public": "The public record and the scores of a round are what its log says.",
    "client-state": "A device trains with the state that belongs to its last update that is in a checkpoint.",
    "claims": "A device works on one round at a time, and each selected device without an answer has its assignment.",
    "retention": "Raw updates are stored until their round's end plus the plan's retention, and no longer.",
    "log": "A run's log follows the rules.",
    "rows": "The rows are those that the log gives.",
    "snapshot": "The snapshot is of the round under way.",
    "fleet": "Who was selected is enrolled; who had a lease is registered.",
    "plan": "The plan is the one of the digest to which the devices agreed.",
    "chain": "Each event and refusal continues the chain of links.",
    "audit": "Each row of the audit has its number and continues the chain.",
    "identity": "Who may ask is who the audit says that it took.",
    "orphan": "No row names a run that is not there.",
    "operator": "What an operator asks for is refused only where the run's log says why; what it shows is the log's.",
    "flower": "A Flower run is what verify requires: replies belong to messages, and contents are there.",
    "no-bug": "No call raises an unexpected error.",
}

NUMBERS = {what.partition(".")[0]: name for name, what in INVARIANTS.items() if what.partition(".")[0].isdigit()}
"""The names by their numbers in docs/invariants.md."""


def begun(durable: Durable, run: TrackedRun) -> None:
    """A visible run has its first checkpoint."""
    first = durable.store.checkpoint(run.run, 0)
    if first is None or first.parent_version is not None:
        raise Broken("line", f"the run {run.run} has no first checkpoint")
    run.digest, run.size = first.digest, first.bytes
    whole(durable, first.digest, first.bytes, "the first checkpoint")


def round_ended(streams: Streams, register: Register, durable: Durable, run: TrackedRun, ending: RoundEnding) -> None:
    """Checks all rows about a round that has ended."""
    store, number = durable.store, ending.round
    row = store.round(run.run, number)
    wanted = "committed" if ending.committed else "abandoned"
    if ending.short and (row is None or (row.status != "abandoned" and not row.reason)):
        have = f"{len(ending.reported)} of {run.quorum} updates"
        raise Broken("quorum", f"round {number} of {run.run} had {have} at its deadline and was not abandoned")
    if row is None or row.status != wanted:
        raise Broken(
            "one-end", f"round {number} of {run.run} was {wanted}, its row says {row.status if row else 'none'}"
        )
    if row.kind != ending.kind:
        raise Broken("one-end", f"round {number} of {run.run} was {ending.kind}, its row says {row.kind}")
    recorded = sorted(item.device for item in store.refusals(run.run, number) if item.kind == "invalid-update")
    if ending.kind != "datacenter" and recorded != sorted(ending.invalid):
        raise Broken("left-once", f"round {number} of {run.run} refused {sorted(ending.invalid)}, recorded {recorded}")
    if ending.kind in PLAIN:
        _shown(durable, run, ending, row)
    rows = {item.device: (item.digest, item.weight) for item in store.contributions(run.run, number)}
    if not ending.committed:
        if rows:
            raise Broken("one-end", f"round {number} of {run.run} was abandoned, and {sorted(rows)} count in it")
        abandoned = [item for item in store.refusals(run.run, number) if item.kind == "abandoned"]
        refused = {(item.device, item.digest) for item in abandoned}
        lost = sorted(device for device, (digest, _) in ending.reported.items() if (device, digest) not in refused)
        if lost:
            raise Broken("named", f"round {number} was abandoned, and no refusal is recorded for {lost}")
        told = {item.reason for item in abandoned} - {f"the round was abandoned: {row.reason}"}
        if told and ending.kind in PLAIN:  # of a secure one, those of an attempt are told why that was given up
            raise Broken("named", f"round {number} was abandoned because {row.reason}; its devices were told {told}")
        return
    if rows != ending.reported:
        extra, missing = sorted(rows.keys() - ending.reported), sorted(ending.reported.keys() - rows)
        raise Broken("named", f"the commit of round {number} names {extra} beyond, and lacks {missing} of, its updates")
    made = store.checkpoint(run.run, ending.version)
    if made is None or (made.parent_version, made.round, made.digest) != (ending.version - 1, number, ending.digest):
        raise Broken("line", f"version {ending.version} of {run.run} is not the child that round {number} committed")
    whole(durable, made.digest, made.bytes, f"version {made.version}")
    whole_state(durable, run)
    if ending.kind == "datacenter":
        trained(register, run, ending)
    elif ending.kind in PLAIN:
        refolded(streams, register, durable, run, ending)


def trained(register: Register, run: TrackedRun, ending: RoundEnding) -> None:
    """The committed model is, byte for byte, what was trained in this round under its last lease."""
    made = register.results.get(ending.digest, set())
    if (run.run, ending.round, ending.lease[2]) not in made:
        raise Broken(
            "lease", f"round {ending.round} of {run.run}, lease {ending.lease}, committed what was made for {made}"
        )


def refolded(streams: Streams, register: Register, durable: Durable, run: TrackedRun, ending: RoundEnding) -> None:
    """The committed model equals the sum of its updates, each once, with its noise, computed here again."""
    rule = run.plan["aggregation"]
    parent = durable.store.checkpoint(run.run, ending.version - 1)
    if parent is None:
        raise Broken("line", f"version {ending.version} of {run.run} has no parent")
    for device, (digest, _) in ending.reported.items():
        made = register.made.get(digest)
        since, begun_with = ending.parents.get(device, (ending.round, parent.digest))
        if made is None or (made.run, made.round) != (run.run, since):
            raise Broken("counts-once", f"{device}'s update in round {ending.round} of {run.run} was made for {made}")
        capped(durable, ending, device, made)
        if made.parent not in ("", begun_with):
            was = f"was made from {made.parent[:8]}, not from {begun_with[:8]}"
            raise Broken("parent", f"{device}'s update in round {ending.round} of {run.run} {was}")
    model, found = marks_in(read(durable, parent.digest)), marks_in(read(durable, ending.digest))
    if run.private is None:
        wanted = next_model(model, ending, register.made, rule, run.moments)
    else:
        updates = [register.made[digest] for digest, _ in ending.reported.values()]
        mean = run.private.mean(streams, ending.round, parent.digest, updates, len(model))
        wanted = moved(model, mean, rule, run.moments)
    if found.tobytes() != wanted.tobytes():
        added = rule["rule"] == "mean" and rule["server_optimizer"] == "average" and run.private is None
        name = what_went_wrong(model, found, ending, register.made) if added else "same-bits"
        wrong = [int(lane) for lane in np.flatnonzero(found != wanted)][:6]
        shown = ", ".join(f"lane {lane}: {found[lane]:.9g}, not {wanted[lane]:.9g}" for lane in wrong)
        raise Broken(name, f"round {ending.round} of {run.run} does not give its checkpoint again: {shown}")


def capped(durable: Durable, ending: RoundEnding, device: str, made: Made) -> None:
    """A device counts with the examples that its report says, as far as the cap of its enrolment allows."""
    row, body = durable.store.device(device), ending.reports[device].body
    most = 0 if row is None else row.examples_cap
    counted, wanted = (body["examples"], body["held_out_examples"]), (min(made.examples, most), min(made.scored, most))
    if counted != wanted:
        raise Broken("draw", f"{device} counts with {counted} examples in round {ending.round}; its cap is {most}")


def rows_agree(durable: Durable, run: TrackedRun, *, moved: bool = True) -> None:
    """The rows that change with the log: the claims, and, where the run has ``moved`` to another phase, the open round
    and the end of the line."""
    store = durable.store
    claimed = {claim.device: claim.round for claim in store.claims(run.run)}
    awaited = run.awaited
    since = {device: one.since for device, one in run.places.items()} if run.buffered else None
    if claimed != (dict.fromkeys(awaited, run.round) if since is None else since):
        lost, left = sorted(awaited - claimed.keys()), sorted(claimed.keys() - awaited)
        raise Broken("claims", f"{run.run} is {run.phase} round {run.round}: {lost} have no claim, {left} should not")
    if not moved:
        return
    row = store.round(run.run, run.round) if run.round else None
    if run.round and run.phase != "idle" and (row is None or row.status != "open"):
        raise Broken("one-end", f"round {run.round} of {run.run} is {run.phase}, its row says {row and row.status}")
    if store.checkpoint(run.run, run.version) is None or store.checkpoint(run.run, run.version + 1) is not None:
        raise Broken("line", f"the line of {run.run} does not end at version {run.version}")


def paid(durable: Durable, run: TrackedRun) -> None:
    """The ledger has what the log of a private run says; the seed of the round under way is stored, and the keys of the
    rounds before where its noise takes them, as long as the run goes on."""
    private, store = run.private, durable.store
    if private is None:
        return
    private.require_rows(store)
    if private.seed and run.phase == "committing" and private.seed not in store.messages(run.run, [private.seed]):
        raise Broken("noise", f"the seed of round {run.round} of {run.run} is not stored")
    privacy = private.plan.privacy
    wanted = private.noise if privacy is not None and privacy.correlated and not run.over else []
    if store.noise_keys(run.run) != wanted:
        raise Broken("noise", f"{run.run} has not the keys of the noise of its {len(wanted)} rounds")


def spooled(durable: Durable, run: TrackedRun, only: str | None = None) -> None:
    """The bytes of every update that may yet count are on the disk."""
    if run.phase not in ("collecting", "committing"):
        return
    for device, (digest, _) in run.reported.items():
        if only in (None, digest):
            whole(durable, digest, None, f"{device}'s update of round {run.round}", "ack-durable")


def whole_blobs(durable: Durable, run: TrackedRun) -> None:
    line = durable.store.checkpoints(run.run)
    if [(row.version, row.parent_version) for row in line] != [(n, n - 1 if n else None) for n in range(len(line))]:
        raise Broken("line", f"the checkpoints of {run.run} are no line: {[row.version for row in line]}")
    for row in line:
        whole(durable, row.digest, row.bytes, f"version {row.version} of {run.run}")
    whole_state(durable, run)


def whole_state(durable: Durable, run: TrackedRun) -> None:
    """The newest state of the server optimizer, which the next round reads, is on the disk."""
    if run.plan["aggregation"]["server_optimizer"] == "average":
        return
    newest = durable.store.checkpoints(run.run)[-1]
    for name, digest in newest.named_tensors.items():
        whole(durable, digest, None, f"{called(name)} of version {newest.version}")


def whole(durable: Durable, digest: str, size: int | None, what: str, name: str = "whole-blob") -> None:
    data = read(durable, digest, what, name)
    if hashlib.sha256(data).hexdigest() != digest or size not in (None, len(data)):
        raise Broken(name, f"{what} is on the disk with other bytes ({len(data)} of {size})")


def read(durable: Durable, digest: str, what: str = "a checkpoint", name: str = "whole-blob") -> bytes:
    try:
        return durable.read(digest)
    except BlobError as error:
        raise Broken(name, f"{what} is not on the disk: {error}") from None


def fetched(request: SentRequest, body: bytes) -> None:
    send: Any = request.send
    if hashlib.sha256(body).hexdigest() != send.checkpoint.digest:
        raise Broken(
            "whole-blob", f"a device was given {len(body)} bytes that are not version {send.checkpoint.version}"
        )


def record(device: str, history: Iterable[Joined], run_of: Callable[[str], TrackedRun], *, lies: bool) -> None:
    """Checks the record of a device: a receipt in it belongs to a counted or recorded update. What it was refused as
    late does not count, unless it ``lies``: a round that has lost an update is open again, and takes the same bytes
    from a second request."""
    rounds = set()
    for joined in history:
        key = (joined.device, joined.run, joined.round, joined.attempt, joined.update_digest)
        if key in rounds:
            raise Broken("counts-once", f"{device}'s record has round {joined.round} of {joined.run} twice")
        rounds.add(key)
        run = run_of(joined.run)
        known = run.known(joined.round, joined.device)
        counted = run.counted(joined.round, joined.device)
        if not lies and joined.result == "refused" and counted is not None and counted == joined.update_digest:
            raise Broken("receipt", f"{device} recorded that round {joined.round} refused an update that counts")
        kind = run.ended[joined.round].kind if joined.round in run.ended else run.kind
        same = known is not None and (known[0] == joined.update_digest or kind == "secure")
        same = same or joined.update_digest in run.lost_digests
        if joined.result == "receipt" and not same:
            raise Broken("named", f"{device} has a receipt for round {joined.round} that the log does not have")


def kept(device: str, trained_from: Iterable[tuple[str, str, int, int]], run_of: Callable[[str], TrackedRun]) -> None:
    """Checks the states that a device has trained with: each is that of its last update that is in a checkpoint."""
    for name, run, number, began in trained_from:
        ended = run_of(run).ended
        counted = [at for at, one in ended.items() if one.committed and name in one.reported and at < number]
        if began != max(counted, default=0):
            raise Broken(
                "client-state",
                f"{device} trained in round {number} of {run} with its state of round {began or 'none'}; its last "
                f"update that counts is of round {max(counted, default=0) or 'none'}",
            )


def leases(
    worker: str,
    history: Sequence[Ended],
    delivered: dict[tuple[str, int, int], str],
    run_of: Callable[[str], TrackedRun],
) -> None:
    """Checks what a worker was answered about its leases: a result with a receipt is committed."""
    for ended in history:
        lease = ended.lease
        ending = run_of(lease.run).ended.get(lease.round)
        ours = (lease.worker, lease.attempt, lease.fence)
        committed = ending is not None and ending.committed and ending.lease == ours
        if ended.result == "committed" and not committed:
            raise Broken("ack-durable", f"{worker} got an answer that round {lease.round} committed its result")
        sent = delivered.get((lease.run, lease.round, lease.fence))
        if ended.result == "lost" and committed and ending is not None and ending.digest == sent:
            raise Broken("receipt", f"{worker} got an answer that its result of round {lease.round} does not count")


def retained(register: Register, durable: Durable, run: TrackedRun, ended: int) -> None:
    """No raw update lies on the disk longer than its round and the plan's retention. ``ended``: the last round that
    ended long enough ago.
    """
    oldest = ended - int(run.plan["retention"]["rounds"]) + 1
    may_stay: set[str] = {digest for digest, _ in run.reported.values()} if run.phase != "idle" else set()
    for number, ending in run.ended.items():
        if number >= oldest:
            may_stay |= {digest for digest, _ in ending.reported.values()}
            may_stay |= {item.digest or "" for item in durable.store.refusals(run.run, number)}
    for digest in durable.digests():
        made = register.made.get(digest)
        if made is not None and made.round == run.round and run.phase != "idle" and digest in run.lost_digests:
            continue  # asked for again: deleted with its round
        if made is not None and made.run == run.run and digest not in may_stay:
            raise Broken(
                "retention", f"an update made for round {made.round} of {run.run} is stored after round {ended}"
            )
    for number in durable.store.message_rounds(run.run).values():
        if run.private is not None and 0 < number < oldest:
            raise Broken("retention", f"the seed of round {number} of {run.run} is stored after round {ended}")


def optimizer_states(durable: Durable, run: TrackedRun, ended: int) -> None:
    """The server optimizer's states with which updates were folded are deleted with these."""
    if run.plan["aggregation"]["server_optimizer"] == "average":
        return
    line = durable.store.checkpoints(run.run)
    oldest = ended - int(run.plan["retention"]["rounds"]) + 1
    readable = [line[-1], *(before for before, row in pairwise(line) if (row.round or 0) >= oldest)]
    needed = {digest for row in readable for digest in row.named_tensors.values()}
    for row in line:
        for name, digest in row.named_tensors.items():
            if digest not in needed and durable.has(digest):
                what = f"{called(name)} of version {row.version} of {run.run}"
                raise Broken("retention", f"{what} is stored after round {ended}")


def recorded_once(durable: Durable, run: TrackedRun, round: int, device: str) -> None:
    """A refused body that was not read is recorded once, however often it is sent."""
    rows = [row for row in durable.store.refusals(run.run, round) if row.device == device and row.digest is None]
    if len(rows) > 1:
        raise Broken("named", f"{device} was refused in round {round} of {run.run}, recorded {len(rows)} times")


def linked(durable: Durable, run: TrackedRun) -> None:
    """Each event has the link of the one before, its number, its time and its content, computed here again."""
    identity = [run.row.run, run.row.name, run.row.plan_digest, run.row.init, run.row.origin, run.row.created_at]
    link = hashlib.sha256(LOG + _text(identity)).digest()
    for event in durable.store.events(run.run, 0, 1_000_000):
        numbers = struct.pack(">32sQd", link, event.seq, event.at)
        link = hashlib.sha256(LOG + numbers + event.kind.encode() + b"\0" + _text(event.body)).digest()
        if event.link != link.hex():
            raise Broken("chain", f"{run.run} #{event.seq} has the link {event.link[:12]}, not {link.hex()[:12]}")


def _text(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


def still_retained(durable: Durable, run: TrackedRun) -> None:
    """The updates of the plan's last rounds are still there: none is deleted early."""
    ended = run.round - (run.phase != "idle")
    for number in range(max(1, ended - int(run.plan["retention"]["rounds"]) + 1), ended + 1):
        ending = run.ended.get(number)
        if ending is None or not ending.committed or ending.kind not in PLAIN:
            continue
        seed = "" if run.private is None else run.private.seeds[number]
        if seed and seed not in durable.store.messages(run.run, [seed]):
            raise Broken("retention", f"the seed of round {number} of {run.run} was deleted early")
        for device, (digest, _) in ending.reported.items():
            if not durable.has(digest):
                raise Broken("retention", f"the update of {device} in round {number} of {run.run} was deleted early")


def verified(durable: Durable) -> None:
    """``quorate verify`` finds no violation at the end."""
    for wrong in verify(durable.store, durable.blobs):
        raise Broken(NUMBERS.get(wrong.invariant, wrong.invariant), f"verify: round {wrong.round}: {wrong.what}")


def _shown(durable: Durable, run: TrackedRun, ending: RoundEnding, row: RoundRow) -> None:
    """The public record of a federated round, and the scores by its devices of the model that they received."""
    reports, body = [event.body for event in ending.reports.values()], row.body
    began = (ending.began | ending.invalid | ending.reported.keys()) - ending.withdrawn
    counts = (ending.waiting, len(ending.cohort), len(began), len(reports), len(ending.withdrawn))
    wanted: dict[str, Any] = {
        "funnel": dict(zip(("waiting", "selected", "training", "reported", "withdrawn"), counts, strict=True)),
        "bytes_in": sum(report["bytes"] for report in reports),
        "weight": sum(weight for _, weight in ending.reported.values()),
        "partial": sum(not report["complete"] for report in reports),
        "version": ending.version if ending.committed else None,
        "digest": ending.digest if ending.committed else None,
        "pool": run.pools.get(ending.round),
        "cohort": sorted(ending.cohort),
    }
    for name, value in wanted.items():
        if body.get(name) != value:
            raise Broken("public", f"round {ending.round} of {run.run}: {name} is {body.get(name)}, not {value}")
    weights = {device: weight for device, (_, weight) in ending.reported.items()}
    _same(run, ending, body["metrics"], means((weights[d], r.body["metrics"]) for d, r in ending.reports.items()))
    if ending.kind == "buffered":
        since = {device: number for device, (number, _) in ending.parents.items() if number < ending.round}
        said: Any = body.get("since", {})
        found = {device: number for device, number in said.items() if device in ending.reported}
        if (body.get("staleness"), found) != (ending.staleness, since):
            shown = f"{body.get('staleness')} and {found}, not {ending.staleness} and {since}"
            raise Broken("public", f"round {ending.round} of {run.run} has reports of {shown}")
    elif ending.committed:
        _scored(durable, run, ending)


def _scored(durable: Durable, run: TrackedRun, ending: RoundEnding) -> None:
    """The devices' scores are of the version that they received, the parent."""
    scored = scores_of(ending)
    found = [row for row in durable.store.metrics(run.run) if row.source == "devices" and row.version >= ending.version]
    if found:
        raise Broken("public", f"version {ending.version} of {run.run} has scores of devices that never had it")
    rows = [
        row for row in durable.store.metrics(run.run) if row.source == "devices" and row.version == ending.version - 1
    ]
    _same(run, ending, {row.name: row.value for row in rows}, means(scored))
    if any(row.examples != sum(examples for examples, _ in scored) for row in rows):
        raise Broken("public", f"the scores of version {ending.version - 1} of {run.run} have other examples")


def _same(run: TrackedRun, ending: RoundEnding, found: Any, wanted: dict[str, float]) -> None:
    close = found.keys() == wanted.keys() and all(math.isclose(found[name], wanted[name]) for name in wanted)
    if not close:
        raise Broken("public", f"round {ending.round} of {run.run}: its metrics are {found}, not {wanted}")
