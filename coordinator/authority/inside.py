"""An authority inside a coordinator's process: ``quorate serve --dev-authority``, for trials on one machine.

Its folder is one of an authority like any other, with the tokens of this start beside it. It is the one exception to
what an authority is for: this coordinator has the key, so it could make devices up, and says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from client_sdk.credentials.certificate import HolderClass
from client_sdk.credentials.enrolment_token import EnrolmentToken
from client_sdk.credentials.errors import BadCredential
from client_sdk.credentials.identity_keys import TrustedAuthority
from coordinator.authority.answering import AuthorityAnswers
from coordinator.authority.app import holders_routes
from coordinator.authority.folder import KEY_FILE, make_authority, opened, write_policy
from coordinator.authority.issuer import Issuer
from coordinator.authority.ledger import LedgerRows
from coordinator.authority.policy import DAY_S, AuthorityPolicy
from coordinator.authority.tokens import make_token
from coordinator.datafolder import locked, write_private
from coordinator.service.route import LeanRoute
from coordinator.service.serving import Serving

_LASTS_S = 3_650 * DAY_S
_USES = 1_000_000
_LEFT_S = 30 * DAY_S
"""A token that lasts less long is replaced at the next start."""


@dataclass(frozen=True)
class InsideAuthority:
    """The authority of one start of a coordinator."""

    answers: AuthorityAnswers
    clock: Callable[[], float]
    device_token_file: Path
    """With a token by which a device enrols; mode 0600."""
    worker_token_file: Path
    """With a token by which a worker enrols; mode 0600."""

    @property
    def trusted(self) -> TrustedAuthority:
        return self.answers.issuer.trusted

    def revocations(self) -> bytes:
        """The bytes of its current list."""
        return self.answers.revocations(self.clock())

    def routes(self, service: Serving) -> list[LeanRoute]:
        """What it serves beside the coordinator's routes. The coordinator serves the list."""
        return holders_routes(service, self.answers, self.clock)


@contextlib.contextmanager
def inside_authority(folder: Path, url: str, clock: Callable[[], float]) -> Iterator[InsideAuthority]:
    """The authority in this folder, which is made where there is none, under the coordinator's URL of this start.
    ``clock``: Unix seconds. AuthorityFolderError, FolderError."""
    if not (folder / KEY_FILE).exists():
        make_authority(folder, AuthorityPolicy(url=url), at=clock())
    with locked(folder, "authority"), opened(folder) as (issuer, ledger):
        if issuer.policy.url != url:
            issuer = replace(issuer, policy=issuer.policy.model_copy(update={"url": url}))
            write_policy(folder, issuer.policy)
        with ledger.writing() as rows:
            files = [_token_file(folder, rows, issuer, holder, clock()) for holder in ("device", "worker")]
        yield InsideAuthority(AuthorityAnswers(issuer, ledger), clock, *files)


def _token_file(folder: Path, rows: LedgerRows, issuer: Issuer, holder: HolderClass, at: float) -> Path:
    """The file with the token of this class: that of the last start under today's URL, or a new one."""
    path = folder / f"{holder}-token"
    token = _last(path, issuer)
    row = rows.token(token.secret_digest) if token is not None else None
    if token is None or row is None or row.uses_left < 1 or at >= row.expires_at - _LEFT_S:
        token = make_token(
            rows, issuer, holder=holder, uses=_USES, lasts_s=_LASTS_S, label="dev", who="quorate serve", at=at
        )
    write_private(path, token.text.encode() + b"\n")
    return path


def _last(path: Path, issuer: Issuer) -> EnrolmentToken | None:
    try:
        found = EnrolmentToken.parse(path.read_text("ascii").strip())
    except (FileNotFoundError, UnicodeDecodeError, BadCredential):
        return None
    return EnrolmentToken(issuer.policy.url, issuer.trusted.digest, found.secret)
