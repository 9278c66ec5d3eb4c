"""An Ed25519 private key in a PEM file (PKCS #8, without a passphrase) that only its owner can read."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from tempfile import mkstemp

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from client_sdk.identity import DeviceKey
from coordinator.datafolder import sync_folder

_HEX_DIGITS = 64


class KeyFileError(Exception):
    """The file has no key that can be used. One sentence with the fix."""


def pem_of(key: DeviceKey) -> bytes:
    """The private key as PEM."""
    private = Ed25519PrivateKey.from_private_bytes(key.seed)
    return private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def key_of(pem: bytes, name: str) -> DeviceKey:
    """The private key of a PEM text. ValueError, in one sentence, where it has none; ``name``: what it is called."""
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(f"{name} has no Ed25519 key.")
    return DeviceKey(key.private_bytes_raw())


def others_can_read(path: Path) -> bool:
    """Whether anybody but the file's owner can read or write it. OSError."""
    return bool(stat.S_IMODE(path.stat().st_mode) & 0o077)


def made_or_read(path: Path) -> DeviceKey:
    """The key in this file; draws it where there is no such file. Of several processes that draw one at the same time,
    all get the same. KeyFileError."""
    try:
        if not path.exists():
            _make(path)
        if others_can_read(path):
            raise KeyFileError(f"Others can read {path}: make it its owner's only, by chmod 600.")
        return key_of(path.read_bytes(), str(path))
    except ValueError as error:
        raise KeyFileError(f"{error} Restore it from a backup, or move it away: a new one is made.") from None
    except OSError as error:
        raise KeyFileError(f"The key file {path} cannot be used: {error.strerror or error}.") from error


def public_key(text: str) -> str:
    """The public key that is named, in hexadecimal: by its 64 digits, or by a PEM file with it or with its private
    half. KeyFileError."""
    if len(text) == _HEX_DIGITS and all(letter in "0123456789abcdef" for letter in text.lower()):
        return text.lower()
    try:
        pem = Path(text).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise KeyFileError(f"{text[:200]!r} is no key of 64 hexadecimal digits, and no file ({reason}).") from None
    with contextlib.suppress(ValueError, TypeError, UnsupportedAlgorithm):
        public = load_pem_public_key(pem)
        if isinstance(public, Ed25519PublicKey):
            return public.public_bytes_raw().hex()
    try:
        return key_of(pem, text[:200]).public_hex
    except ValueError as error:
        raise KeyFileError(str(error)) from None


def _make(path: Path) -> None:
    """Writes a new key, unless another process was faster. OSError."""
    descriptor, draft = mkstemp(prefix=f"{path.name}.", dir=path.parent)  # of mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(pem_of(DeviceKey.create()))
            file.flush()
            os.fsync(descriptor)
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        Path(draft).unlink()
    sync_folder(path.parent)
