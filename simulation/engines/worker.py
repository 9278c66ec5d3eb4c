"""One process of the engine ``processes``: it trains and scores clients, and holds the sum of its part.

Messages and answers, one JSON object each:

======================== =============================================== ============================================
message                  action                                          answer
======================== =============================================== ============================================
do: tasks, tasks, each
- task, do: train, job   trains the client; its update is in the sum     task, and report, weight (and slot), or
                                                                         reason and trace
- task, do: score,       scores the model for scoring                    task, and score, or raised
  device
do: drop                 drops the tasks that it has not begun           task, dropped, for each of them
do: begin                the next round, from the model in memory        nothing
do: restrict, weights    keeps only these devices in the sum             state of the sum, or refused
======================== =============================================== ============================================

Answers to tasks are collected for a moment and sent together, ``answers``: a short task is no reason to wake the
reader.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from client_sdk.tensors import TensorError
from simulation.engines.frames import Channel, JsonObject
from simulation.engines.kernel import Kernel
from simulation.engines.memory import SharedTensors, VectorFile
from simulation.engines.partial import Partial
from simulation.engines.port import CannotTrain, Job
from simulation.engines.process_pool import flush_output
from simulation.errors import not_scored

_TOGETHER_S = 0.02
"""Seconds for which an answer may wait for others. All are sent before the last task in the queue begins, so that the
next tasks arrive while it runs."""


@dataclass(frozen=True, slots=True)
class SharedState:
    """The memory that a worker shares with its parent."""

    model: SharedTensors
    """The model of the round."""
    scored: SharedTensors
    """The model to be scored."""
    lanes: NDArray[np.int64]
    """The memory of the sum."""
    vectors: VectorFile | None
    """The files of updates, for rules that need all of them."""


class EngineWorker:
    """``serve`` runs until the channel is closed."""

    def __init__(self, kernel: Kernel, shared: SharedState, channel: Channel) -> None:
        self._kernel = kernel
        self._shared = shared
        self._channel = channel
        self._partial = Partial(kernel, shared.lanes)
        self._slots: dict[str, int] = {}
        self._tasks: deque[JsonObject] = deque()
        self._answers: list[JsonObject] = []
        self._sent_at = 0.0

    def serve(self) -> None:
        """OSError where the parent has ended."""
        _one_thread()
        while True:
            while (message := self._next()) is not None:
                self._handle(message)
            if self._channel.ended:
                return
            task = self._tasks.popleft()
            if self._channel.at is not None:
                self._channel.at[0] = task["task"]
            answer = self._trained(task) if task["do"] == "train" else self._scored(task)
            flush_output()
            self._answers.append({"task": task["task"], **answer})

    def _next(self) -> JsonObject | None:
        """Returns the next message; waits for one only where there is no other work."""
        if len(self._tasks) < 2 or time.monotonic() - self._sent_at > _TOGETHER_S:
            self._flush()
        message = self._channel.arrived()
        if message is not None or self._tasks:
            return message
        return self._channel.receive()

    def _flush(self) -> None:
        if self._answers:
            self._channel.send({"answers": self._answers})
            self._answers = []
        self._sent_at = time.monotonic()

    def _handle(self, message: JsonObject) -> None:
        match message["do"]:
            case "tasks":
                self._tasks.extend(message["tasks"])
            case "drop":
                self._answers += [{"task": task["task"], "dropped": True} for task in self._tasks]
                self._tasks.clear()
            case "begin":
                self._slots.clear()
                self._partial.begin(self._shared.model.view())
            case "restrict":
                self._channel.send(self._restricted(message))
            case unknown:
                raise AssertionError(f"the engine sent a message that its worker does not know: {unknown!r}")

    def _trained(self, task: JsonObject) -> JsonObject:
        job = Job(**task["job"])
        result = self._partial.work(job)
        if isinstance(result, CannotTrain):
            return {"reason": result.reason, "trace": result.trace, "bad_values": result.bad_values}
        answer: JsonObject = {
            "report": result.report.model_dump_json(),
            "weight": result.weight,
            "treated": asdict(result.treated),
            "digest": result.digest,
        }
        if self._shared.vectors is not None:
            if job.device not in self._slots:
                self._slots[job.device] = len(self._slots)
                self._shared.vectors.put(self._slots[job.device], self._partial.take(job.device))
            answer["slot"] = self._slots[job.device]
        return answer

    def _scored(self, task: JsonObject) -> JsonObject:
        try:
            score = self._kernel.score(self._shared.scored.view(), task["device"])
        except Exception as error:  # noqa: BLE001 - a user's learner may raise anything
            return {"raised": not_scored(f"client {task['device']!r}", error)}
        return {"score": None if score is None else score.model_dump_json()}

    def _restricted(self, message: JsonObject) -> JsonObject:
        try:
            self._partial.restrict(message["weights"])
            return {"state": self._partial.sum.state, "weights": self._partial.weights}
        except TensorError as error:
            return {"refused": str(error)}


def _one_thread() -> None:
    """One thread for numerical libraries, of this process: the others have the other cores. It also makes
    torch safe in a fork of a process that has used it: torch does not look for a thread pool that the fork lacks."""
    os.environ["OMP_NUM_THREADS"] = "1"
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
