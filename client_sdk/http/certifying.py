"""Performs ``Certify``: one request to the authority, and its result as a reply of the session."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import assert_never

import httpx2

from client_sdk.credentials.certificate import Certificate
from client_sdk.device.actions import Certified, Certify, Failed, RequestRefused, Unreachable
from client_sdk.http.authority import AuthorityClient
from client_sdk.identity import Entropy, Signer
from client_sdk.protocol.problems import ProblemError

LONGEST_PROOF = 16_384
"""Characters of a proof, as ``CertificateRequest.who`` has it."""

Who = Callable[[], str]
"""What proves who the device is, where its authority asks for that (``CertificateRequest.who``); called for each
enrolment that is sent."""


class Certifier:
    """Asks the authority that an action names. ``now``: Unix seconds by the machine's clock. A connection is made for
    each request, since months lie between two."""

    def __init__(self, now: Callable[[], float], who: Who | str = "", entropy: Entropy = os.urandom) -> None:
        self._now = now
        self._who = who
        self._entropy = entropy

    def perform(
        self, action: Certify, signer: Signer, *, certificate: str = "", following: Signer | None = None
    ) -> Certified | RequestRefused | Unreachable | Failed:
        """Ask once. ``certificate`` (hexadecimal) is the present one and ``following`` the next key: for *rotate*."""
        try:
            return self._ask(action, signer, certificate, following)
        except ProblemError as error:
            if isinstance(error.__cause__, httpx2.HTTPError):
                return Unreachable(str(error), self._now())
            return RequestRefused(error.problem, self._now())
        except _NoProof as error:
            return Failed(str(error), self._now())
        except ValueError as error:  # what is not the pinned authority's, or not a URL that keys may be used for
            return Failed(f"The authority at {action.authority.url} was not believed: {error}", self._now())

    def _ask(self, action: Certify, signer: Signer, certificate: str, following: Signer | None) -> Certified:
        authority = action.authority
        with AuthorityClient(
            authority.url, bytes.fromhex(authority.digest), clock=self._now, entropy=self._entropy
        ) as client:
            found = self._certificate(client, action, signer, certificate, following)
            return Certified(found, self._now(), client.trusted().public_key.hex())

    def _certificate(
        self, client: AuthorityClient, action: Certify, signer: Signer, certificate: str, following: Signer | None
    ) -> Certificate:
        match action.what:
            case "enrol":
                if action.token is None:
                    raise TypeError("an enrolment has no token")
                client.trusted()
                return client.enrol(action.token, signer, label=action.label, who=self._proof())
            case "renew":
                return client.renew(signer)
            case "rotate":
                if following is None:
                    raise TypeError("a rotation has no next key")
                return client.rotate(Certificate.parse(bytes.fromhex(certificate)), signer, following)
            case _:
                assert_never(action.what)

    def _proof(self) -> str:
        if isinstance(self._who, str):
            proof = self._who
        else:
            try:
                proof = self._who()
            except Exception as error:
                raise _NoProof(
                    f"What proves who this device is cannot be had: {str(error) or type(error).__name__}"
                ) from error
        if len(proof) > LONGEST_PROOF:
            raise _NoProof(f"What proves who this device is may have {LONGEST_PROOF} characters, not {len(proof)}.")
        return proof


class _NoProof(Exception):
    """There is nothing to send: one sentence."""
