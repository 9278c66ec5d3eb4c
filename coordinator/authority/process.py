"""One authority process: its folder and the lock on it, its socket, and how it stops.

A coordinator needs no authority to go on with its rounds: only the list's next update, renewals and new devices do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from coordinator.authority.answering import AuthorityAnswers
from coordinator.authority.app import create_authority_app
from coordinator.authority.folder import opened
from coordinator.authority.issuer import Issuer
from coordinator.authority.proofs import EnrolmentProof
from coordinator.service.process import (
    bind,
    certificate_of,
    collect_only_what_is_new,
    local_url,
    locked_folder,
    raise_file_limit,
)
from coordinator.service.sockets import HttpServer
from coordinator.settings import Settings


def serve_authority(
    folder: Path,
    settings: Settings,
    proof: EnrolmentProof,
    on_ready: Callable[[str, Issuer], None],
) -> None:
    """Serves the authority of this folder until SIGINT or SIGTERM, under the limits of ``settings``.
    ``on_ready(url, issuer)`` is called when requests are answered, with the address that is listened on.

    Must run in the process's main thread. CannotServe, AuthorityFolderError.
    """
    certificate = certificate_of(settings)
    raise_file_limit()
    with opened(folder) as (issuer, ledger), locked_folder(folder, "authority"):
        listener = bind(settings.host, settings.port)
        try:
            url = local_url(settings, listener)
            app = create_authority_app(AuthorityAnswers(issuer, ledger, proof), settings, time.time)

            def ready() -> None:
                collect_only_what_is_new()
                on_ready(url, issuer)

            HttpServer(app, listener, ready, certificate).run()
        finally:
            listener.close()
