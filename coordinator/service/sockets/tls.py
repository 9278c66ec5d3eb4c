"""The certificate with which this process ends TLS. It is read again when its files change.

The files are looked at when a connection arrives, at most once a second. Connections that are open keep the certificate
that they began with. A pair that cannot be used, such as a certificate whose new key is not written yet, is logged
once, and the pair before it serves on.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import structlog

LOOK_EVERY_S = 1.0

log = structlog.get_logger("coordinator.service")

_Stamp = tuple[tuple[int, int, int], ...]


class Unusable(Exception):
    """The certificate or its key cannot be used; the message is one sentence."""


class TlsCertificate:
    """A certificate and its key in two PEM files. Unusable where they cannot be used from the beginning."""

    def __init__(self, cert: Path, key: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._cert, self._key = cert, key
        self._clock = clock
        self._looked_at = clock()
        self._stamp = self._stat()
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        """The context for a new connection."""
        now = self._clock()
        if now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            self._look()
        return self._context

    def _look(self) -> None:
        stamp = self._stat()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._context = self._load()
        except Unusable as error:
            log.error("the new certificate cannot be used; the one before it serves on", reason=str(error))
        else:
            log.info("the certificate was read again", file=str(self._cert))

    def _stat(self) -> _Stamp:
        """What changes when a file does; of a missing file zeros."""
        found = []
        for path in (self._cert, self._key):
            try:
                at = path.stat()
                found.append((at.st_mtime_ns, at.st_size, at.st_ino))
            except OSError:
                found.append((0, 0, 0))
        return tuple(found)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        for path in (self._cert, self._key):
            if not os.access(path, os.R_OK):
                raise Unusable(f"The file {path} cannot be read.")
        try:
            context.load_cert_chain(self._cert, self._key, password=_no_password)
        except (ssl.SSLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or str(error)
            wrong = f"{self._cert} and {self._key} are no certificate with its private key ({reason})."
            raise Unusable(wrong) from None
        return context


def _no_password() -> str:
    """OpenSSL would ask on the terminal."""
    raise ValueError("the key has a password, and must have none")
