"""Processes that train together in a test: started once, joined by Gloo on the loopback, each doing one function.

They are forks of one server process, which has imported torch and started no thread: to import torch takes each new
process two to three seconds.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.util
import os
import traceback
from collections.abc import Callable
from typing import Any

from client_sdk.learning.errors import LearningError
from client_sdk.learning.group import Group, joined
from tests.ports import free_port

multiprocessing.util.get_temp_dir()  # that of the fork server, which ends after the folders of the tests are removed
HANG_S = 60.0
IMPORTED = ["torch.distributed.checkpoint", "client_sdk.learning.group_trainer", "coordinator.datacenter.training"]


def together(world: int, work: Callable[..., Any], *arguments: Any, hang_s: float = HANG_S, lost: int = 0) -> list[Any]:
    """What ``work(group, *arguments)`` gives on each of ``world`` ranks, or the error it raised. ``work`` must be at
    the top of its module. So many ranks are ``lost``: they are killed and give nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    answers = context.Queue()
    port = free_port()
    ranks = [
        context.Process(target=_rank, args=(rank, world, port, hang_s, answers, work, arguments), daemon=True)
        for rank in range(world)
    ]
    for process in ranks:
        process.start()
    try:
        found = dict(answers.get(timeout=1200) for _ in range(world - lost))
    finally:
        for process in ranks:
            process.join(timeout=10)
            process.kill()
    return [found[rank] for rank in sorted(found)]


def attempt(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What a call gives, or the learning error that it raises, as (type, sentence)."""
    try:
        return call(*arguments, **options)
    except LearningError as error:
        return (type(error).__name__, str(error))


def _rank(
    rank: int, world: int, port: int, hang_s: float, answers: Any, work: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        GLOO_SOCKET_IFNAME="lo",
        OMP_NUM_THREADS="1",
    )
    import torch

    torch.set_num_threads(1)
    try:
        with joined("cpu", hang_s) as group:
            answers.put((rank, work(group, *arguments)))
    except LearningError as error:
        answers.put((rank, (type(error).__name__, str(error))))
    except BaseException:
        answers.put((rank, ("bug", traceback.format_exc())))
        raise


__all__ = ["HANG_S", "Group", "attempt", "free_port", "together"]
