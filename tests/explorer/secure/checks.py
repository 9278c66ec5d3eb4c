"""The checks of secure rounds against the store's rows, the blobs and what the devices have put in.

``hidden`` and ``hidden_rows`` are invariant 6: no blob, event, snapshot, refusal, row of the audit and line of the
coordinator's log holds a vector without its masks, or a secret of a device, of a device that vanished neither.
``round_ended``: what was committed is the sum of the survivors of the groups that have not fallen, to the last bit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.lanes import packed_bytes, unpack
from client_sdk.secagg.noise import reach
from client_sdk.secagg.roster import Roster
from coordinator.store.port import EventRow
from tests.explorer import invariants
from tests.explorer.durable import Durable
from tests.explorer.faults import Broken
from tests.explorer.follow import TrackedRun
from tests.explorer.marks import Lanes, marks_in, moved, of_columns
from tests.explorer.round_ending import RoundEnding
from tests.explorer.secure.account import EXCHANGES, GroupAccount, SecureAccount
from tests.explorer.secure.vectors import Vectors, codec_of, divided, header_of, lane_bits_of, levels_of

SIGNATURE_BYTES = 64
DIGEST_BYTES = 32
_MOST = 1000
"""Rows of the audit that are read at once."""


def spooled(durable: Durable, run: TrackedRun) -> None:
    """Everything that the round under way needs is on the disk."""
    if run.secure is not None:
        rows, what = durable.store.messages(run.run, run.secure.blobs), f"a message of round {run.round} of {run.run}"
        for digest in run.secure.blobs:
            if digest not in rows:
                invariants.whole(durable, digest, None, what, "ack-durable")
            elif hashlib.sha256(rows[digest]).hexdigest() != digest:
                raise Broken("ack-durable", f"{what} is stored with other bytes")


def hidden(vectors: Vectors, durable: Durable, texts: Iterable[str] = ()) -> None:
    """Neither the blobs and messages that were written since the last look nor these rows hold what only a device may
    know."""
    stored, vectors.stored = vectors.stored, []
    rows, vectors.rows = vectors.rows, []
    for digest in stored:
        if durable.has(digest):
            rows.append((digest, durable.read(digest)))
    for digest, data in rows:
        for secret, whose in vectors.secret.items():
            if secret in data:
                raise Broken("unmasked", f"the stored bytes {digest[:12]} hold {whose}")
    _silent(vectors, texts)


def hidden_rows(vectors: Vectors, durable: Durable, run: str, round: int, audited: int) -> int:
    """Nor do the rows that a round has left: the run's snapshot, its refusals, and the audit after the row ``audited``.
    Returns the last row of the audit."""
    store = durable.store
    row = store.run(run)
    snapshot = [] if row is None or row.snapshot is None else [json.dumps(row.snapshot)]
    audit = store.audit_of_all(audited, _MOST)
    _silent(vectors, [*snapshot, *map(str, store.refusals(run, round)), *(str(entry) for _, entry in audit)])
    return max((number for number, _ in audit), default=audited)


def _silent(vectors: Vectors, texts: Iterable[str]) -> None:
    """No text holds a secret, in hexadecimal or as Python shows bytes."""
    text, spelled = "\n".join(texts), vectors.spelled
    for whose, (digits, shown) in zip(vectors.secret.values(), spelled, strict=True):
        if digits in text or shown in text:
            at = max(text.find(digits), text.find(shown))
            raise Broken("unmasked", f"a text of the coordinator holds {whose}: {text[max(0, at - 200) : at]}...")


def blamed(vectors: Vectors, dishonest: Container[str], run: TrackedRun, event: EventRow) -> None:
    """Who is barred has dealt shares of another secret; who is left out for what it sent does lie."""
    body: dict[str, Any] = event.body
    if event.kind == "OpeningFailed" and not set(body["lost"]) <= vectors.liars:
        raise Broken("barred", f"round {run.round} of {run.run} bars {body['lost']}; {vectors.liars} lied")
    if event.kind == "PairsOpened" and body["digest"] in vectors.wrong_pairs:
        raise Broken("barred", f"round {run.round} of {run.run} takes a wrong pair of {body['device']} for a right one")
    if event.kind == "Faulted" and body["device"] not in dishonest:
        raise Broken("barred", f"round {body['round']} of {run.run} leaves out {body['device']}: {body['reason']}")


def openable(liars: Iterable[str], run: TrackedRun, event: EventRow) -> None:
    """A sum that nobody has spoiled can be opened: an opening fails only where a device of the roster lies."""
    body: dict[str, Any] = event.body
    if event.kind != "OpeningFailed" or body["lost"]:
        return
    number = body["round"]
    account = run.ended[number].secure if number in run.ended else run.secure
    if account is not None and not set(account.groups[body.get("group", 0)].order) & set(liars):
        what = f"a sum of round {number} of {run.run} was not opened, and no device of its group lies"
        raise Broken("liveness", f"{what}: {body['reason']}")


def grouped(durable: Durable, run: TrackedRun) -> None:
    """The roster is divided as the nonces of its devices give it."""
    account = run.secure
    if account is None or len(account.groups) < 2:
        return
    wanted = divided(Roster.parse(invariants.read(durable, account.roster)), len(account.groups))
    found = [group.order for group in account.groups]
    if found != wanted:
        raise Broken("groups", f"round {run.round} of {run.run} has the groups {found}; the nonces give {wanted}")


def _committed(durable: Durable, run: TrackedRun, ending: RoundEnding) -> None:
    """The committed model is the parent and what the plan's rule makes of the survivors' vectors, each once: their
    mean, or one of the means of groups."""
    parent = durable.store.checkpoint(run.run, ending.version - 1)
    if parent is None:
        raise Broken("line", f"version {ending.version} of {run.run} has no parent")
    model = marks_in(invariants.read(durable, parent.digest))
    found = marks_in(invariants.read(durable, ending.digest))
    if ending.advancing:
        changed = np.flatnonzero(found != model)
        if len(changed) != 1 or not 0 < found[changed[0]] - model[changed[0]] <= 2.0**-20:
            raise Broken("line", f"round {ending.round} of {run.run} was advanced by more than one unit: {changed}")
        return
    account = ending.secure
    if account is None:
        raise Broken("named", f"round {ending.round} of {run.run} was committed without an attempt")
    header, rule = header_of(bytes.fromhex(account.header)), run.plan["aggregation"]
    sums = [(_unwrapped(group, header), len(group.among(account.masked))) for group in account.standing]
    if rule["rule"] == "mean":
        sums = [(np.sum([total for total, _ in sums], axis=0), sum(count for _, count in sums))]
    means = [mean_of(total, header, count, len(model)) for total, count in sums]
    mean = means[0] if rule["rule"] == "mean" else of_columns(means, rule)
    wanted = moved(model, mean, rule, run.moments)
    if found.tobytes() != wanted.tobytes():
        wrong = [int(lane) for lane in np.flatnonzero(found != wanted)][:6]
        shown = ", ".join(f"lane {lane}: {found[lane]:.9g}, not {wanted[lane]:.9g}" for lane in wrong)
        raise Broken("same-bits", f"round {ending.round} of {run.run} does not give its checkpoint again: {shown}")


def opened(vectors: Vectors, durable: Durable, run: TrackedRun, event: EventRow) -> None:
    """The sum of a group was opened: it is that of the lanes of the survivors, each counted once, and of enough of
    them."""
    account, body = run.secure, dict[str, Any](event.body)
    if account is None:
        return
    group = account.groups[body.get("group", 0)]
    survivors = sorted(group.among(account.masked))
    if len(survivors) < account.section["minimum_cohort"]:
        raise Broken("unmasked", f"the sum of {survivors} alone was opened in round {run.round} of {run.run}")
    packed = [invariants.read(durable, account.masked[device])[:-SIGNATURE_BYTES] for device in survivors]
    group.total = vectors.sum_of(packed)
    header = header_of(bytes.fromhex(account.header))
    bits = lane_bits_of(header, len(group.order))
    group.total &= np.uint64((1 << bits) - 1)
    stored = invariants.read(durable, group.sum)
    lanes = unpack(stored[: packed_bytes(header.lanes, bits)], header.lanes, bits)
    if lanes.astype(np.uint64).tolist() != group.total.tolist() or len(stored) != len(packed[0]) + DIGEST_BYTES:
        raise Broken("same-bits", f"the sum of round {run.round} of {run.run} is not that of {survivors}")
    if body["weight"] != weight_of(group.total, header):
        raise Broken("same-bits", f"the weight of {survivors} in round {run.round} of {run.run} is {body['weight']}")


def _unwrapped(group: GroupAccount, header: AttemptHeader) -> NDArray[np.int64]:
    """The sum of a group before its lanes wrapped: noise may be below 0."""
    n = len(group.order)
    far, bits = reach(header.spread(n)), lane_bits_of(header, n)
    return ((group.total.astype(np.int64) + far) & ((1 << bits) - 1)) - far


def weight_of(total: NDArray[Any], header: AttemptHeader) -> int:
    """The weight of all survivors together, from the sum of their lanes."""
    digits = total[header.dimension : -1].tolist()
    return sum(int(digit) << header.q * place for place, digit in enumerate(digits))


def mean_of(total: NDArray[np.int64], header: AttemptHeader, survivors: int, elements: int) -> Lanes:
    """sum_k w_k x_k / sum_k w_k, from the sum of lanes, for each of the model's elements; with noise over the plan's
    goal, whoever is in it."""
    weight = header.divisor * header.weight_cap or weight_of(total, header)
    levels = levels_of(header.q)
    middle = total[: header.dimension].astype(np.float64) - survivors * levels / 2
    scale = 2 * header.max_abs / levels * (header.weight_cap / weight)
    sent = (middle * scale).astype(np.float32)
    read = codec_of(header).back(lambda first, count: sent[first : first + count], elements, header.codec_seed)
    return np.array(read(0, elements), np.float32)


def deleted(durable: Durable, run: TrackedRun, ended: int) -> None:
    """No blob and no message of a secure round is stored longer than the round. ``ended``: the last one that ended long
    enough ago."""
    rows = durable.store.message_rounds(run.run)
    for number, ending in run.ended.items():
        account = ending.secure
        if account is None or number > ended:
            continue
        left = [digest for digest in account.blobs if durable.has(digest)]
        left += [digest for digest, of in rows.items() if of == number]
        if left:
            raise Broken("retention", f"{len(left)} messages of round {number} of {run.run} are stored after it")


def round_ended(durable: Durable, run: TrackedRun, ending: RoundEnding) -> None:
    """Checks what a round shows when it has ended, and what it has committed; and that what was acknowledged in vain
    has its refusal."""
    row = durable.store.round(run.run, ending.round)
    if row is not None:
        _shown(run, ending, row.body)
    if ending.secure is not None:
        found = durable.store.refusals(run.run, ending.round)
        refused = {item.digest: item.device for item in found if item.kind == "abandoned"}
        untold = sorted(set(ending.secure.given_up.items()) - refused.items())
        if untold:
            raise Broken("named", f"round {ending.round} of {run.run} has given up {untold}, and refused none of it")
    if ending.committed:
        _committed(durable, run, ending)


def _shown(run: TrackedRun, ending: RoundEnding, body: dict[str, Any]) -> None:
    """The public record of a secure round has its exchanges as counts, and of no device more than that it was there."""
    account = ending.secure
    wanted: dict[str, Any] = {
        "version": ending.version if ending.committed else None,
        "digest": ending.digest if ending.committed else None,
        "pool": run.pools.get(ending.round),
        "cohort": sorted(ending.cohort),
        "metrics": {},
        "partial": 0,
        "weight": 0 if account is None else account.weight,
    }
    found = {name: body.get(name) for name in wanted}
    if found != wanted:
        raise Broken("public", f"round {ending.round} of {run.run} shows {found}, not {wanted}")
    if account is None:
        return
    secure = body["secure"]
    came, mine = [one["came"] for one in secure["exchanges"]], _counts(account)
    if came != mine[: len(came)] or any(mine[len(came) :]):
        raise Broken("public", f"round {ending.round} of {run.run} shows {came} messages, the log has {mine}")
    threshold = max((group.threshold for group in account.groups), default=0)
    sums = [len(group.among(account.masked)) for group in account.groups if group.sum]
    fallen = len(account.groups) - len(account.standing)
    numbers: list[object] = [account.attempt + 1, len(account.order), threshold, bool(sums), len(account.excluded)]
    numbers += [len(account.groups), fallen, sums] if len(account.groups) > 1 else []
    names = ("attempts", "roster", "threshold", "opened", "excluded", "groups", "fallen", "sums")
    shown = [secure[name] for name in names if name in secure]
    if shown != numbers:
        raise Broken("public", f"round {ending.round} of {run.run} shows {shown}, the log has {numbers}")
    if [bool(earlier["reason"]) for earlier in secure["earlier"]] != [True] * account.attempt:
        raise Broken("public", f"round {ending.round} of {run.run} shows not why each of its attempts was given up")
    named = [device for device in ending.cohort if json.dumps(device) in json.dumps(secure)]
    if named:
        raise Broken("unmasked", f"round {ending.round} of {run.run} shows what {named} did")


def _counts(account: SecureAccount) -> list[int]:
    return [len(getattr(account, name)) for name in EXCHANGES]
