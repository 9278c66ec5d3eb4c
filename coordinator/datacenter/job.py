"""Runs a training job on this machine and returns its result. Starts processes; imports no torch.

``launch`` starts torchrun with one process for each GPU or CPU, forwards their messages, and returns the result. Its
process survives failures of training: killed processes are started again from the last complete saved step. Where the
launcher is killed, the processes end with it. Launched again with the same folder, the job continues. With ``nproc`` 1
there is one plain process and no torchrun. ``multi_machine`` runs the jobs of several machines.
"""

from __future__ import annotations

import tempfile
import threading

from coordinator.datacenter.error_texts import no_torch
from coordinator.datacenter.job_start import start_processes
from coordinator.datacenter.job_watch import JobWatch, broke_off, end_of_process
from coordinator.datacenter.progress import OnMessage
from coordinator.datacenter.spec import JobFailed, JobResult, JobSpec, JobStopped, whole_steps

__all__ = ["JobFailed", "JobResult", "JobSpec", "JobStopped", "launch", "whole_steps"]


def launch(spec: JobSpec, on_progress: OnMessage | None = None, stop: threading.Event | None = None) -> JobResult:
    """Run the job in separate processes, and wait for its end.

    ``on_progress`` gets each message (``progress`` lists them) in this thread. ``stop`` kills all processes at once.
    Raises JobFailed and JobStopped.
    """
    if (lacking := no_torch()) is not None:
        raise JobFailed(lacking)
    watch = JobWatch(on_progress or (lambda message: None), stop or threading.Event())
    with (
        tempfile.TemporaryDirectory(prefix="quorate-job-", ignore_cleanup_errors=True) as scratch,
        tempfile.TemporaryFile("w+", errors="replace") as log,
    ):
        for attempt in range(spec.max_restarts + 1):
            code = watch.follow(start_processes(spec, attempt, log, scratch), spec.hang_s)
            if watch.result is not None:
                return watch.result
            if watch.failed is not None:
                raise JobFailed(watch.failed)
            watch.reason = watch.reason or end_of_process(code)
            if spec.nproc > 1 and code >= 0:  # torchrun was not killed: it has used up the restarts
                break
        log.seek(0)
        raise JobFailed(broke_off(spec, code, log.read()))
