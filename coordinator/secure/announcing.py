"""Makes the header of an attempt, from the plan, the state and the authority's revocation list.

A header is made again where a coordinator crashed before the state held it: no device has seen it then.

Runs are told apart by ``run_digest`` and not by name: a device that had joined a run *mnist* refused the first rounds
of any other of that name. The authority's key is shared by coordinators, a URL is the same for a new database behind
it, and a number told at registration is not bound to the header.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Protocol

from client_sdk import codecs
from client_sdk.credentials.certificate import RevocationList
from client_sdk.credentials.identity_keys import TrustedAuthority
from client_sdk.protocol.devices import Task
from client_sdk.protocol.names import copied
from client_sdk.secagg.header import AttemptHeader, Terms, agreed_digest, moves_of
from client_sdk.secagg.quantize import StatisticRange
from client_sdk.secagg.roster import Vouching, vouched_by
from client_sdk.secagg.statement import DOMAIN
from client_sdk.tensors import Layout
from coordinator.engine.state import RunState


class Authorities(Protocol):
    """The authority as it is now."""

    def __call__(self, until: float | None = None) -> Authority:
        """The authority that vouches for certificates that are valid now and ``until`` (Unix seconds). ProblemError
        *busy* where there is none, or its list is out of date: secure rounds wait."""
        ...


@dataclass(frozen=True, kw_only=True)
class Authority:
    """The authority that certifies devices, in its present state."""

    vouched: Vouching
    """Of certificates that are valid until the time for which this was asked."""
    revocations: int
    """Counter of its revocation list."""
    revocations_digest: bytes
    """SHA-256 of the list."""

    @classmethod
    def of(
        cls, trusted: TrustedAuthority, revocations: RevocationList, at: float, *, until: float | None = None
    ) -> Authority:
        """The authority of this key with this list at ``at`` (Unix seconds); see ``vouched_by``. Refusal where the list
        is out of date: secure rounds wait for the next one."""
        return cls(
            vouched=vouched_by(trusted, revocations, at, until=until),
            revocations=revocations.counter,
            revocations_digest=revocations.digest,
        )


def run_digest(run: str, *, created_at: float, init: str, plan_digest: str) -> bytes:
    """``AttemptHeader.run_digest``: SHA-256 of what the run was created with and when (Unix seconds)."""
    # A whole number of seconds is written alike, whether a clock gave it or a database.
    said = json.dumps([run, float(created_at), init, plan_digest], allow_nan=False)
    return hashlib.sha256(DOMAIN + b"run" + said.encode()).digest()


def statistics_of(layout: Layout, terms: Terms) -> tuple[StatisticRange, ...]:
    """The statistics of a model in its headers, in the order of their names, with the ranges of these terms."""
    return tuple(
        StatisticRange(spec.elements, limit, name in layout.non_negative)
        for (name, spec), limit in zip(layout.statistics.items(), terms.statistics, strict=True)
    )


def announce(
    state: RunState, *, run: bytes, task: Task, layout: Layout, authority: Authority, at: float
) -> AttemptHeader:
    """The header of the attempt that ``state`` is in. ``run``: its ``run_digest``; ``task``: the devices' part;
    ``layout``: of an update before it is encoded; ``at``: Unix seconds."""
    plan, secure = state.plan, state.plan.secure
    terms = plan.terms_with(layout.statistics)
    if secure is None or terms is None:
        raise ValueError("the plan has no secure rounds")
    digest, moves = plan.digest, moves_of(terms)
    codec, version = plan.task.codec.rsplit("@", 1)
    return copied(
        AttemptHeader,
        terms,
        run=state.run,
        run_digest=run,
        round=state.current.number,
        attempt=state.current.attempt,
        model=bytes.fromhex(state.checkpoint),
        plan=agreed_digest(digest, task, plan.weighting, state.roles_digest, moves),
        dimension=codecs.linear(plan.task.codec).count(layout.parameters.elements),
        codec=codec,
        codec_version=int(version),
        codec_seed=codecs.seed_for(plan.task.codec, digest, state.current.number),
        clip=0.0 if plan.privacy is None or not terms.highest else plan.privacy.clip_after(state.small),
        revocations=authority.revocations,
        revocations_digest=authority.revocations_digest,
        expires_at=math.ceil(at + secure.expires_s),
        roles=bytes.fromhex(state.roles_digest),
        statistics=statistics_of(layout, terms),
    )
