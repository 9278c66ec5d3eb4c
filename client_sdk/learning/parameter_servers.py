"""Parameter servers: ranks send gradients to those that hold the parameters, and get weights back.

All ranks are workers. The first ``count`` also hold the parameters, in threads beside their own training, over send and
receive. Each tensor is whole on one of them, so an optimizer that looks at its norm does what it does in one process::

    worker      its gradient of server 0's tensors   ->   server 0 waits as its rule says, and moves them
                its gradient of server 1's tensors   ->   server 1
                <-  the weights, and the step that comes next

When the weights of a step move:

- *Synchronous*: all gradients of the step have come. Their mean is that of one process.
- ``backup`` = b: all but b have come (Chen et al. 2016, arXiv:1604.00981). One that comes later is told by its step's
  number and discarded, and its worker goes on at the current step.
- ``staleness`` = s: the workers of a group (of one, or ``groups``) have sent theirs, whatever the others do (Downpour:
  Dean et al. 2012). It moves the weights with the group's part of the learning rate, n/B for n of the batch's B
  examples. A worker that is more than s steps ahead of the slowest waits (Ho et al. 2013, stale synchronous parallel):
  with g groups a gradient is at most (g - 1)(2s + 1) steps of the model old.
- ``sparse`` = *async*: rows of embeddings with sparse gradients move when they come, by plain SGD, and the rest
  synchronously. Only rows cross the link: those of the batch, and those that others have moved.

Each pair of a worker and a server has a process group of its own, which a death breaks and no other. Where gradients of
one worker are dispensable (``backup``, ``staleness``) its death stops nobody; that of a server ends the job. What goes
wrong with a worker's learner stops all of them at their next exchange. Nothing is pickled.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from threading import Condition, Thread
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from client_sdk.learning import state
from client_sdk.learning.data import TensorExamples
from client_sdk.learning.errors import LearnerFailed, LearningError
from client_sdk.learning.group import Group, sentence, with_sparse_gradients
from client_sdk.learning.local_sgd import dense_gradient
from client_sdk.learning.sharding import balanced, clip_parts
from client_sdk.learning.sync_sgd import GlobalGradient, Taken, own_buffers, require_no_statistics
from client_sdk.protocol.workers import Server

PUSH, SETTLE, FAILED, BYE = range(4)
"""What a worker sends."""
GOOD, STILL, STOPPED, BROKEN = range(4)
"""How a server answers: with weights; not yet; a rank has failed; a worker was lost that cannot be."""

Rows = tuple[torch.Tensor, torch.Tensor]
"""Places [n] and values [n, width] of an embedding's rows."""


class Head(NamedTuple):
    """What a worker says of its gradient."""

    kind: int
    step: int = 0
    total: float = 0.0
    weight: float = 0.0
    """Of the loss of its examples: (sum, weight)."""
    examples: int = 0
    batch: int = 0
    """Examples of the whole batch."""


@dataclass
class Answer:
    status: int
    next: int
    """The step that the worker takes next."""
    total: float
    weight: float
    """Of the losses that were heard last from each worker."""
    examples: int
    """Of all gradients that have moved the weights."""
    left: list[int]
    """The workers that were not lost, where all have settled."""
    weights: list[torch.Tensor]
    rows: list[Rows]


class Portion:
    """The tensors of one server, as they cross a link: one vector for each number type, and rows of tables."""

    def __init__(self, dense: Sequence[torch.Tensor], tables: Sequence[torch.Tensor]) -> None:
        self.dense, self.tables = dense, tables
        self._kinds = {kind: [one for one in dense if one.dtype is kind] for kind in {one.dtype: 0 for one in dense}}

    def gradients(self) -> list[torch.Tensor]:
        return [
            torch.cat([torch.zeros(w.numel(), dtype=kind) if w.grad is None else w.grad.reshape(-1).cpu() for w in own])
            for kind, own in self._kinds.items()
        ]

    def weights(self) -> list[torch.Tensor]:
        return [torch.cat([w.detach().reshape(-1).cpu() for w in own]) for own in self._kinds.values()]

    def empty(self) -> list[torch.Tensor]:
        return [torch.empty(sum(w.numel() for w in own), dtype=kind) for kind, own in self._kinds.items()]

    def spread(self, vectors: Sequence[torch.Tensor], put: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
        """Give each tensor its part of the vectors, in its shape."""
        for own, vector in zip(self._kinds.values(), vectors, strict=True):
            for weight, part in zip(own, vector.split([w.numel() for w in own]), strict=True):
                put(weight, part.reshape(weight.shape))


class ParameterServer:
    """The rule of one server, for the calls of threads: one for each worker. Knows of no link.

    ``groups``: the ranks of each. ``move(step, part)`` moves ``portion.dense`` by its gradients, at a part of the
    learning rate, which ``rate`` gives. ``spare``: whether a worker may be lost.
    """

    def __init__(
        self,
        portion: Portion,
        groups: Sequence[Sequence[int]],
        *,
        step: int,
        move: Callable[[int, float], None],
        rate: Callable[[int], float],
        backup: int = 0,
        staleness: int = 0,
    ) -> None:
        self._portion, self._groups, self._move, self._rate = portion, groups, move, rate
        self._backup, self._staleness, self._spare = backup, staleness, bool(backup or staleness)
        self._group_of = {rank: at for at, group in enumerate(groups) for rank in group}
        self._clock = [step] * len(groups)
        self._arrived: list[dict[int, dict[int, tuple[Head, list[torch.Tensor]]]]] = [{} for _ in groups]
        self._heard: dict[int, tuple[float, float]] = {}
        self._changed = Condition()
        self._alive = set(self._group_of)
        self._settled: set[int] = set()
        self._meetings, self._left = 0, sorted(self._alive)
        self._version, self._read = 0, dict.fromkeys(self._group_of, 0)
        self._moves, self._seen = 0, dict.fromkeys(self._group_of, 0)
        self._stamps = [torch.zeros(len(table), dtype=torch.int64) for table in portion.tables]
        self._examples = 0
        self.ages: dict[int, int] = {}
        self.late = 0
        """Gradients that came after their step."""
        self.error: LearningError | None = None
        self.failed = False
        self.broken = ""
        self.news: list[str] = []

    def push(
        self, rank: int, head: Head, gradients: list[torch.Tensor], rows: Sequence[Rows] = ()
    ) -> Callable[[], bool]:
        """Take in a worker's gradients. Returns whether its answer is ready, for ``answer``."""
        group = self._group_of[rank]

        def ready() -> bool:
            ahead = self._clock[group] - min(self._clock[self._group_of[one]] for one in self._alive)
            return self.failed or (self._clock[group] > head.step and ahead <= self._staleness)

        with self._changed:
            self._heard[rank] = head.total, head.weight
            self._move_rows(head, rows)
            if head.step < self._clock[group]:
                self.late += 1
            else:
                self._arrived[group].setdefault(head.step, {})[rank] = head, gradients
                self._go_on()
        return ready

    def settle(self, rank: int) -> Callable[[], bool]:
        """A worker sends nothing until all have settled."""
        with self._changed:
            meeting = self._meetings
            self._settled.add(rank)
            self._go_on()
        return lambda: self._meetings > meeting

    def fail(self) -> None:
        """A worker's learner has failed: all others are told at their next exchange."""
        with self._changed:
            self.failed = True
            self._changed.notify_all()

    def lose(self, rank: int, why: str) -> None:
        """A worker is gone: the others go on, or all stop."""
        with self._changed:
            self._alive.discard(rank)
            if not self._spare:
                self.broken = self.broken or f"worker {rank} was lost: {why}"
            self.news.append(f"Worker {rank} was lost ({why}), and {len(self._alive)} go on.")
            self._go_on()

    def answer(self, rank: int, ready: Callable[[], bool], patience_s: float) -> Answer | None:
        """What a worker gets; None where it is not ready in so many seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self.broken) or ready(), patience_s):
                return None
            status = BROKEN if self.broken else STOPPED if self.failed else GOOD
            total, weight = (sum(self._heard.get(one, (0.0, 0.0))[part] for one in self._alive) for part in (0, 1))
            step = self._clock[self._group_of[rank]]
            found = Answer(status, step, total, weight, self._examples, self._left, [], [])
            if status == GOOD:
                self._read[rank] = self._version
                found.weights = self._portion.weights()
                for table, stamps in zip(self._portion.tables, self._stamps, strict=True):
                    places = (stamps > self._seen[rank]).nonzero().reshape(-1)
                    found.rows.append((places, table.detach().cpu()[places]))
                self._seen[rank] = self._moves
            return found

    def _go_on(self) -> None:
        """Take each step whose gradients are there, and let go the workers that have all settled."""
        for group, members in enumerate(self._groups):
            alive = self._alive.intersection(members)
            enough = max(1, min(len(members) - self._backup, len(alive)))
            while alive and len(self._arrived[group].get(self._clock[group], {})) >= enough and not self.failed:
                self._take(group)
        if self._settled >= self._alive:
            self._settled.clear()
            self._meetings, self._left = self._meetings + 1, sorted(self._alive)
        self._changed.notify_all()

    def _take(self, group: int) -> None:
        step = self._clock[group]
        arrived = self._arrived[group].pop(step)
        self._clock[group] += 1
        heads = [head for head, _ in arrived.values()]
        examples, weight = sum(head.examples for head in heads), sum(head.weight for head in heads)
        if not examples:
            return
        for rank in arrived:
            age = self._version - self._read[rank]
            self.ages[age] = self.ages.get(age, 0) + 1
        mean = self._portion.empty()
        for vector in mean:
            vector.zero_()
        for _, (head, gradients) in sorted(arrived.items(), key=lambda one: one[0]):
            for vector, gradient in zip(mean, gradients, strict=True):
                vector.add_(gradient, alpha=head.weight / weight if weight else 0.0)
        self._portion.spread(mean, _set_gradient)
        try:
            self._move(step, examples / heads[0].batch if len(self._groups) > 1 else 1.0)
        except LearningError as error:
            self.error, self.failed = error, True
        except RuntimeError as error:
            self.broken = str(error)
        self._version += 1
        self._examples += examples

    @torch.no_grad()
    def _move_rows(self, head: Head, rows: Sequence[Rows]) -> None:
        """w <- w - lr n/B g, of the rows of a batch alone."""
        self._moves += 1
        for table, stamps, (places, values) in zip(self._portion.tables, self._stamps, rows, strict=False):
            scale = self._rate(head.step) * head.examples / head.batch
            table.index_add_(0, places.to(table.device), values.to(table.device), alpha=-scale)
            stamps[places] = self._moves


class Served(GlobalGradient):
    """A worker, and on the first ranks a server beside it, which has the module that was given; the worker has a copy.

    ``rate``: the learning rate of a step.
    """

    by_itself = True

    def __init__(
        self,
        module: nn.Module,
        params: list[nn.Parameter],
        loss: Any,
        group: Group,
        *,
        server: Server,
        rate: Callable[[int], float],
        **options: Any,
    ) -> None:
        group.same_everywhere(state.named_tensors(module))
        self._ranks, self._rank, self._world = group, group.rank, group.world
        self._settings, self._rate, self._module = server, rate, module
        sparse = with_sparse_gradients(module) if server.sparse == "async" else frozenset()
        self._require(params, sparse)
        self._places = _portions(params, sparse, server.count)
        serves = self._rank < server.count
        self._worker = _copied(module, serves, group)
        twins = dict(zip(map(id, module.parameters()), self._worker.parameters(), strict=True))
        super().__init__(self._worker, [twins[id(one)] for one in params], loss, Group(device=group.device), **options)
        self._portions = [Portion(*parts) for parts in self._divided(self.params)]
        self._held = Portion(*self._divided(params)[self._rank]) if serves else Portion([], [])
        self._server: ParameterServer | None = None
        self._threads: list[Thread] = []
        self._compared, self._bytes, self._examples = False, 0, 0
        self._exchanges, self._waited_s = 0, 0.0
        self._connect()

    @property
    def place(self) -> int:
        return self._rank

    @property
    def owned(self) -> list[nn.Parameter]:
        return list(self._held.dense)  # type: ignore[arg-type]

    @property
    def sent(self) -> int:
        return self._bytes

    @property
    def staleness(self) -> tuple[int, ...]:  # type: ignore[override]
        ages = self._server.ages if self._server is not None else {}
        return tuple(ages.get(age, 0) for age in range(max(ages, default=-1) + 1))

    def begin(self, step: int) -> None:
        self._copy(self._module, self._worker)
        if self._rank < self._settings.count:
            groups = torch.arange(self._world).tensor_split(self._settings.groups_of(self._world))
            self._server = ParameterServer(
                self._held,
                [group.tolist() for group in groups],
                step=step,
                move=lambda at, part: self.move(at, part),
                rate=self._rate,
                backup=self._settings.backup,
                staleness=self._settings.staleness,
            )
            for rank, pair in self._workers.items():
                self._threads.append(Thread(target=self._serve, args=(self._server, rank, pair), daemon=True))
                self._threads[-1].start()

    def step(self, examples: TensorExamples, batch: torch.Tensor, step: int, steps: int) -> Taken:
        own = batch.tensor_split(self._world)[self._rank]
        total = weight = 0.0
        error: LearningError | None = None
        try:
            if len(own):
                total, weight = self.compute(examples, own, step)
            else:
                for trained in self.params:
                    trained.grad = None
        except LearningError as wrong:
            error = wrong
        if not self._compared:
            self._compared = True
            require_no_statistics(own_buffers(self._worker), self._ranks)
        if error is not None:
            self._send(Head(FAILED))
            self._meet(error)
        found = self._exchanged(Head(PUSH, step, total, weight, len(own), len(batch)))
        if found.status == STOPPED:
            self._meet(None)
        moved, self._examples = found.examples - self._examples, found.examples
        if found.next >= steps:
            found = self._meet(None)
            moved, self._examples = moved + found.examples - self._examples, found.examples
        return Taken(found.total, found.weight, moved, found.next)

    def settle(self) -> None:
        self._meet(None)

    @torch.no_grad()
    def clip(self, max_norm: float, step: int) -> None:
        """By the norm of what all servers hold."""
        own = [weight.grad for weight in self.owned if weight.grad is not None]
        clip_parts(own, max_norm, step, self._add_up)

    def communication_s(self) -> float | None:
        waited, self._waited_s, exchanges, self._exchanges = self._waited_s, 0.0, self._exchanges, 0
        return waited / exchanges if exchanges else None

    def news(self) -> list[str]:
        if self._server is None:
            return []
        found, self._server.news = self._server.news, []
        return found

    def close(self) -> None:
        with suppress(RuntimeError):
            self._send(Head(BYE))
        until = time.monotonic() + _END_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _require(self, params: Sequence[nn.Parameter], sparse: frozenset[int]) -> None:
        server, found = self._settings, ""
        if server.sparse == "async" and not any(id(one) in sparse for one in params):
            found = "server.sparse = 'async' needs an embedding with sparse gradients, and the model trains none."
        elif server.count > min(self._world, len(params)):
            found = (
                f"server.count = {server.count} needs as many processes and trained tensors: "
                f"there are {self._world} and {len(params)}."
            )
        elif max(server.backup + 1, server.groups) > self._world:
            found = f"server.backup must be below the {self._world} processes, and server.groups no more than these."
        if found:
            raise LearnerFailed(found)

    def _connect(self) -> None:
        """A process group of two for each worker and server."""
        self._servers: dict[int, Any] = {}
        """The links of this worker."""
        self._workers: dict[int, Any] = {}
        """Those of this server."""
        self._between: Any = None
        count, limit = self._settings.count, timedelta(seconds=self._ranks.hang_s)
        name = self._ranks.hand_out(os.urandom(8) if self._rank == 0 else None).hex()
        if self._ranks.store is None:
            return
        with self._ranks.unbroken():
            store = dist.PrefixStore(f"servers/{name}", self._ranks.store)
            for server in range(count):
                for worker in range(self._world):
                    if server != worker and self._rank in (server, worker):
                        place = dist.PrefixStore(f"{server}/{worker}", store)
                        pair = dist.ProcessGroupGloo(place, int(self._rank == worker), 2, limit)
                        if self._rank == worker:
                            self._servers[server] = pair
                        else:
                            self._workers[worker] = pair
            if self._rank < count > 1:
                self._between = dist.ProcessGroupGloo(dist.PrefixStore("servers", store), self._rank, count, limit)

    def _divided(self, params: Sequence[nn.Parameter]) -> list[tuple[list[nn.Parameter], list[nn.Parameter]]]:
        """Of each server: the tensors that its optimizer moves, and its tables."""
        return [([params[n] for n in dense], [params[n] for n in tables]) for dense, tables in self._places]

    def _exchanged(self, head: Head) -> Answer:
        """Send to all servers; what their answers come to. The worker's copy has the weights then."""
        began = time.monotonic()
        with self._ranks.unbroken():
            ready = self._send(head)
            found = {server: self._heard_from(server) for server in self._servers}
            if self._server is not None and ready is not None:
                found[self._rank] = self._own_answer(self._server, ready)
        self._waited_s, self._exchanges = self._waited_s + time.monotonic() - began, self._exchanges + 1
        answers = [found[server] for server in sorted(found)]
        if any(one.status == BROKEN for one in answers):
            why = self._server.broken if self._server is not None and self._server.broken else "a worker was lost"
            with self._ranks.unbroken():
                raise RuntimeError(why)
        whole = answers[0]
        whole.status = max(one.status for one in answers)
        whole.next = max(one.next for one in answers)
        whole.left = sorted(set.intersection(*(set(one.left) for one in answers)))
        return whole

    def _send(self, head: Head) -> Callable[[], bool] | None:
        """To all servers, that of this rank last: its call may wait for the others."""
        own: Callable[[], bool] | None = None
        portions = list(enumerate(self._portions))
        for server, portion in [*portions[self._rank + 1 :], *portions[: self._rank + 1]]:
            gradients, rows = [], []
            if head.kind == PUSH:
                for weight in portion.dense:
                    dense_gradient(weight)  # type: ignore[arg-type]
                gradients, rows = portion.gradients(), [_rows(table) for table in portion.tables]
                self._bytes += sum(one.numel() * one.element_size() for one in [*gradients, *_flat(rows)])
            if server in self._servers:
                counts = [len(places) for places, _ in rows] or [0] * len(portion.tables)
                _put(self._servers[server], 0, [torch.tensor([*head, *counts], dtype=torch.float64), *gradients])
                _put(self._servers[server], 0, _flat(rows))
            elif self._server is not None:
                own = _received(self._server, self._rank, head, gradients, rows)
        return own

    def _own_answer(self, server: ParameterServer, ready: Callable[[], bool]) -> Answer:
        while (found := server.answer(self._rank, ready, self._ranks.hang_s)) is None:
            continue
        self._take_in(self._rank, found)
        return found

    def _heard_from(self, server: int) -> Answer:
        portion, pair = self._portions[server], self._servers[server]
        fixed = len(_HEAD) + len(portion.tables)
        status = STILL
        while status == STILL:
            head = _get(pair, 0, [torch.empty(fixed + self._world, dtype=torch.float64)])[0].tolist()
            status = int(head[0])
        left = [rank for rank, there in enumerate(head[fixed:]) if there]
        found = Answer(status, int(head[1]), head[2], head[3], int(head[4]), left, [], [])
        if status == GOOD:
            found.weights = _get(pair, 0, portion.empty())
            found.rows = _get_rows(pair, 0, portion, head[len(_HEAD) : fixed])
            self._take_in(server, found)
        return found

    @torch.no_grad()
    def _take_in(self, server: int, found: Answer) -> None:
        if found.status != GOOD:
            return
        self._portions[server].spread(found.weights, _set_weight)
        for table, (places, values) in zip(self._portions[server].tables, found.rows, strict=True):
            table[places.to(table.device)] = values.to(table.device)

    def _meet(self, error: LearningError | None) -> Answer:
        """Wait for all workers that are left. Raises, on all of them, what went wrong on one."""
        found = self._exchanged(Head(SETTLE))
        self._ranks.go_on_with(found.left)
        if found.status == STOPPED:
            self._ranks.agree(error or (self._server.error if self._server is not None else None))
        self._copy(self._worker, self._module)
        return found

    def _serve(self, server: ParameterServer, rank: int, pair: Any) -> None:
        """Answer one worker, until it says that it is done, or is lost."""
        portion, fixed = self._held, len(Head._fields)
        try:
            while True:
                told = _get(pair, 1, [torch.empty(fixed + len(portion.tables), dtype=torch.float64)])[0].tolist()
                head = Head(int(told[0]), int(told[1]), told[2], told[3], int(told[4]), int(told[5]))
                if head.kind == BYE:
                    return
                pushed = head.kind == PUSH
                gradients = _get(pair, 1, portion.empty()) if pushed else []
                rows = _get_rows(pair, 1, portion, told[fixed:]) if pushed else []
                ready = _received(server, rank, head, gradients, rows)
                if ready is None:
                    continue
                while (found := server.answer(rank, ready, self._ranks.hang_s / 4)) is None:
                    _put(pair, 1, [self._told(Answer(STILL, 0, 0.0, 0.0, 0, [], [], []))])
                _put(pair, 1, [self._told(found), *found.weights, *_flat(found.rows)])
        except RuntimeError as lost:
            server.lose(rank, _short(lost))

    def _told(self, found: Answer) -> torch.Tensor:
        head = [found.status, found.next, found.total, found.weight, found.examples]
        counts = [len(places) for places, _ in found.rows] or [0] * len(self._held.tables)
        return torch.tensor(
            [*head, *counts, *(float(rank in found.left) for rank in range(self._world))], dtype=torch.float64
        )

    def _add_up(self, number: torch.Tensor) -> torch.Tensor:
        """Over the servers."""
        if self._between is not None:
            self._between.allreduce([number]).wait()
        return number

    @torch.no_grad()
    def _copy(self, source: nn.Module, target: nn.Module) -> None:
        if source is target:
            return
        pairs = [*zip(source.parameters(), target.parameters(), strict=True)]
        for one, other in [*pairs, *zip(source.buffers(), target.buffers(), strict=True)]:
            other.copy_(one)


_HEAD = ("status", "next", "total", "weight", "examples")
_END_S = 5.0
"""Seconds for which the threads of a server are waited for at the end."""


def _received(
    server: ParameterServer, rank: int, head: Head, gradients: list[torch.Tensor], rows: list[Rows]
) -> Callable[[], bool] | None:
    """Whether the answer is ready, where there will be one."""
    if head.kind == PUSH:
        return server.push(rank, head, gradients, rows)
    if head.kind == SETTLE:
        return server.settle(rank)
    if head.kind == FAILED:
        server.fail()
    return None


def _portions(params: Sequence[nn.Parameter], sparse: frozenset[int], count: int) -> list[tuple[list[int], list[int]]]:
    """The places of each server's tensors and of its tables."""
    tables = [n for n, one in enumerate(params) if id(one) in sparse]
    dense = [n for n, one in enumerate(params) if id(one) not in sparse]
    return [
        (sorted(dense[n] for n in mine), sorted(tables[n] for n in others))
        for mine, others in zip(
            balanced([params[n] for n in dense], count), balanced([params[n] for n in tables], count), strict=True
        )
    ]


def _copied(module: nn.Module, serves: bool, group: Group) -> nn.Module:
    """A copy, on a rank that serves. LearnerFailed, on all ranks, where one cannot be made."""
    copied, found = module, ""
    if serves:
        try:
            copied = copy.deepcopy(module)
        except (RuntimeError, TypeError, ValueError) as error:
            found = f"A server's process needs a copy of the model, which cannot be copied: {sentence(error)}"
    if found := next(filter(None, group.gather(found)), ""):
        raise LearnerFailed(found)
    return copied


def _set_gradient(weight: torch.Tensor, gradient: torch.Tensor) -> None:
    weight.grad = gradient.to(weight.device)


def _set_weight(weight: torch.Tensor, value: torch.Tensor) -> None:
    weight.data.copy_(value)


def _rows(table: torch.Tensor) -> Rows:
    """The rows that a batch has used, each once."""
    if table.grad is None:
        return torch.empty(0, dtype=torch.int64), torch.empty(0, table.shape[1], dtype=table.dtype)
    gradient = table.grad.coalesce()
    return gradient.indices()[0].cpu(), gradient.values().cpu()


def _flat(rows: Sequence[Rows]) -> list[torch.Tensor]:
    return [part for one in rows for part in one if part.numel()]


def _put(pair: Any, peer: int, tensors: Sequence[torch.Tensor]) -> None:
    for tensor in tensors:
        if tensor.numel():
            pair.send([tensor.contiguous()], peer, 0).wait()


def _get(pair: Any, peer: int, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    for tensor in tensors:
        if tensor.numel():
            pair.recv([tensor], peer, 0).wait()
    return tensors


def _get_rows(pair: Any, peer: int, portion: Portion, counts: Sequence[float]) -> list[Rows]:
    found: list[Rows] = []
    for table, count in zip(portion.tables, counts, strict=True):
        places = torch.empty(int(count), dtype=torch.int64)
        values = torch.empty(int(count), table.shape[1], dtype=table.dtype)
        _get(pair, peer, [places, values])
        found.append((places, values))
    return found


def _short(error: RuntimeError) -> str:
    """Gloo's own text, without the place in its source."""
    return (str(error).strip() or type(error).__name__).split("\n", 1)[0].split("] ", 1)[-1].split(" [", 1)[0][:120]
