"""Deletes blobs without a reference: they remain where a coordinator died between writing a file and its event.

``sweep`` deletes all of them. It runs only where one process has the blobs to itself, before it serves: another replica
could have stored a blob whose event is not written yet.

``sweep_secure`` runs while replicas serve. It deletes what is older than any attempt of a secure round can last, and is
neither a file of tensors nor a list of devices: such a blob is of an attempt that is over, and no event can name it any
more, since a message is bound to its attempt.

The age is the longest ``secure.expires_s`` of the runs and one hour more, by which the disk's clock may differ from
ours. Checkpoints, updates and named tensors may be named long after they were stored, so only the sweep at a
start deletes those.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from client_sdk.tensors import HEADER_LIMIT
from coordinator.blobs import Gone
from coordinator.engine.rounds import kind_of
from coordinator.runtime.commits import needed
from coordinator.runtime.core import Core
from coordinator.store.port import RUN_ROUND, RoundRow

MARGIN_S = 3600.0
"""Seconds by which a blob must be older than an attempt lasts: clocks of replicas and of the disk may differ."""


def sweep(core: Core) -> int:
    """Returns the number of deleted blobs. An initial checkpoint whose run was never created is deleted too. Nothing is
    deleted where a run's log cannot be read, since nobody knows what it needs. Rows of messages are deleted too, of
    rounds before the last one whose deletion a crash has prevented."""
    for run in core.store.run_ids():
        with suppress(ValueError):  # ``delete_unnamed`` notes it
            _drop_messages(core, run)
    return delete_unnamed(core, core.blobs.digests())


def _drop_messages(core: Core, run: str) -> None:
    state, stored = core.state(run), set(core.store.message_rounds(run).values())
    forgotten = state.round_number - 1 - state.plan.retention.rounds
    over = {number for number in stored if RUN_ROUND < number <= forgotten} - state.leftovers.keys()
    if over:
        with core.store.transaction() as tx:
            for number in over:
                tx.drop_messages(run, number)


def sweep_secure(core: Core, at: float) -> int:
    """Deletes what secure rounds have left behind. ``at``: Unix seconds. Returns the number of deleted blobs. Nothing
    is deleted where a run's log cannot be read."""
    secure = (log.state.plan.secure for log in core.logs())
    lasts_s = [section.expires_s for section in secure if section is not None]
    if not lasts_s:
        return 0
    left = [
        digest for digest in core.blobs.stored_before(at - max(lasts_s) - MARGIN_S) if _is_of_an_attempt(core, digest)
    ]
    return delete_unnamed(core, left) if left else 0


def delete_unnamed(core: Core, digests: Iterable[str]) -> int:
    """Deletes those of the blobs that no run of either kind names, and returns their number."""
    named: set[str | None] = set()
    for run in core.store.run_ids():
        try:
            named |= _of_run(core, run)
        except ValueError as error:
            core.process.run_errors.note(run, error)
            return 0
    gone = [digest for digest in digests if digest not in named]
    of_flower = core.store.flower_digests() if gone else set()
    gone = [digest for digest in gone if digest not in of_flower]
    for digest in gone:
        core.blobs.delete(digest)
    return len(gone)


def _is_of_an_attempt(core: Core, digest: str) -> bool:
    """Whether the blob is no file of tensors, and no list or tree of devices."""
    try:
        with core.blobs.open(digest) as file:
            head = file.read(9)
    except Gone:
        return False
    tensors = len(head) == 9 and head[8:] == b"{" and int.from_bytes(head[:8], "little") <= HEADER_LIMIT
    return not tensors and not head.startswith((b"[[", b"[]", b'{"tree"'))


def _of_run(core: Core, run: str) -> set[str | None]:
    """Checkpoints, the named tensors that may be read again, the lists of waiting devices, the blobs of a
    secure round under way, and the raw updates of the open round and of those under retention.

    Of refused updates only those that had been acknowledged: the bytes of others are deleted with the refusal.
    """
    state, store = core.state(run), core.store
    named: set[str | None] = set()
    if state.round is not None:
        named = {
            state.round.pool,
            *state.round.pools,
            *(member.digest for member in state.round.members.values()),
            *kind_of(state.round).blobs(state.round),
        }
    line = store.checkpoints(run)
    named |= {checkpoint.digest for checkpoint in line}
    named |= needed(line, state.round_number - 1 - state.plan.retention.rounds)
    for row in _rounds(core, run):
        pool = row.body.get("pool")
        named.add(pool if isinstance(pool, str) else None)
        pools = row.body.get("pools")
        named |= {one for one in pools if isinstance(one, str)} if isinstance(pools, list) else set()
        if row.round > state.round_number - 1 - state.plan.retention.rounds:
            named |= {item.digest for item in store.contributions(run, row.round)}
            named |= {item.digest for item in store.refusals(run, row.round) if item.kind == "abandoned"}
    return named


def _rounds(core: Core, run: str) -> Iterator[RoundRow]:
    after = 0
    while page := core.store.rounds(run, after):
        yield from page
        after = page[-1].round
