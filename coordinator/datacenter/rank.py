"""One process of a training job: finds its place in the group, loads what the job names, trains, writes the result.

Started by ``job.launch`` or by torchrun by hand. It writes messages (``progress``) and ends with 0 where the job is
done, with 1 where it is not. Torch is imported only once it is clear that the parent still runs.
"""

from __future__ import annotations

import errno
import hashlib
import os
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

from client_sdk.commands.long_running import exit_process
from client_sdk.imports import uncollected
from coordinator.child_processes import when_parent_ends
from coordinator.datacenter.job import ENV_ATTEMPT, ENV_JOB, ENV_RESTARTS
from coordinator.datacenter.progress import OnMessage, write_line
from coordinator.datacenter.spec import JobSpec, training_error_text


def run(spec: JobSpec, on_message: OnMessage, fail: OnMessage | None = None) -> int:
    """Run this process's part of the job. Returns the exit code.

    ``on_message`` gets the messages of rank 0. ``fail`` gets ``failed``, on the one rank that knows why, and ``lost``,
    on each rank that found the group broken. A rank without which the others go on ends well where it is lost: torchrun
    would end them otherwise.
    """
    wrong = fail or on_message
    spare = _is_spare(spec)
    try:
        return _run(spec, on_message, wrong, spare)
    except Exception as error:
        if os.environ.get("QUORATE_DEBUG"):
            raise
        wrong({"event": "failed", "reason": training_error_text(error)})
        return 1


def _run(spec: JobSpec, on_message: OnMessage, wrong: OnMessage, spare: bool) -> int:
    with uncollected():
        from client_sdk.learning.group import GroupLost, RankFailed, joined
        from coordinator.datacenter.training import train

    try:
        with joined(spec.device, spec.hang_s, spec.backend) as group:
            learner, data, model = _loaded(spec, group)
            trained, report = train(
                learner,
                model,
                data,
                spec.recipe,
                group=group,
                name=spec.learner,
                checkpoints=spec.checkpoints,
                checkpoint_every=spec.checkpoint_every,
                resume=spec.resume or _restarted(),
                on_message=on_message,
            )
            error, digest = None, ""
            if group.rank == 0:
                try:
                    digest = _write(trained, spec.out)
                except OSError as found:
                    error = found
            group.agree(error)
            if group.rank == 0:
                out = None if spec.out is None else str(spec.out)
                on_message({"event": "done", "report": report.as_json(), "out": out, "digest": digest})
        return 0
    except RankFailed:
        return 1
    except GroupLost as lost:
        if spare:
            return 0
        wrong({"event": "lost", "reason": str(lost), "attempt": int(os.environ.get(ENV_RESTARTS, "0"))})
        return 1


def main() -> None:
    """The process that ``job.launch`` starts."""
    spec = JobSpec.model_validate_json(os.environ[ENV_JOB])
    outlive_a_kill(spec)
    when_parent_ends(partial(os._exit, 1))
    exit_process(run(spec, write_line))


def outlive_a_kill(spec: JobSpec) -> None:
    """Where the others go on without this rank, run the rest in a child, and wait for it: if that is killed, this
    process ends well. Call it before there are threads."""
    if not _is_spare(spec):
        return
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(reading)
        os._exit(max(0, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
    os.close(writing)

    def end_with_the_parent() -> None:
        os.read(reading, 1)
        os._exit(1)

    Thread(target=end_with_the_parent, name="quorate-twin", daemon=True).start()


def _is_spare(spec: JobSpec) -> bool:
    """Whether the others go on where this rank dies."""
    server = spec.recipe.server
    return server is not None and server.spares and int(os.environ.get("RANK", "0")) >= server.count


def _loaded(spec: JobSpec, group: Any) -> tuple[Any, Any, Any]:
    """Learner, data and first model; an error in any of them is raised on one rank."""
    from client_sdk.data import load_data
    from client_sdk.learners import catalogue_for, untied
    from client_sdk.tensors import TensorError, from_bytes
    from client_sdk.terminal import Failure

    error: Exception | None = None
    found: tuple[Any, Any, Any] = (None, None, None)
    try:
        learner = catalogue_for([spec.learner]).load(spec.learner)
        if not hasattr(learner, "initial"):
            raise Failure(f"The learner {spec.learner} cannot be trained here: only a torch Learner can.")
        data = load_data(spec.data)
        if group.rank == 0 and spec.out is not None:
            _check_writable(spec.out)
        if spec.init is None:
            model = learner.initial(spec.recipe.seed)
        else:
            try:
                content = spec.init.read_bytes()
                if spec.init_digest and hashlib.sha256(content).hexdigest() != spec.init_digest:
                    raise Failure(f"{spec.init} is damaged: it has another SHA-256 than what was received.")
                model = untied(learner, from_bytes(content))
            except TensorError as wrong:
                raise Failure(f"{spec.init} is no checkpoint, which is a safetensors file: {wrong}.") from None
        found = (learner, data, model)
    except Exception as problem:  # noqa: BLE001  (after any error the other ranks must not wait for this one)
        error = problem
    group.agree(error)
    return found


def _write(model: Any, out: Path | None) -> str:
    """Write the model atomically. Returns its digest."""
    from client_sdk.tensors import digest, to_bytes
    from coordinator.datacenter.checkpoints import write_durably

    content = to_bytes(model)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_durably(out, content)
    return digest(content)


def _check_writable(out: Path) -> None:
    """OSError where the result could not be written: checked before hours of training."""
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(out))
    if out.exists() and not out.is_file():
        raise FileExistsError(errno.EEXIST, "Not a regular file, and would be replaced by one", str(out))
    if not os.access(out.parent, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(out.parent))


def _restarted() -> bool:
    """Whether this is a later attempt, which continues from the steps that an earlier one saved."""
    return int(os.environ.get(ENV_RESTARTS, "0")) > 0 or int(os.environ.get(ENV_ATTEMPT, "0")) > 0


if __name__ == "__main__":
    main()
