"""The authority's folder::

    authority.pem        its Ed25519 private key (PKCS #8), mode 0600: who has it can make devices up
    authority.toml       its policy
    authority.sqlite3    its ledger
    serve.lock           locked by the process that serves

The key is made once and never replaced: another key is another authority. Back the folder up as a whole, encrypted.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from client_sdk.identity import DeviceKey
from coordinator.authority.issuer import Issuer
from coordinator.authority.ledger import Ledger
from coordinator.authority.policy import AuthorityPolicy
from coordinator.authority.revoking import current_list
from coordinator.authority.sqlite_ledger import SqliteLedger
from coordinator.datafolder import make_folder, sync_folder

KEY_FILE, POLICY_FILE, LEDGER_FILE = "authority.pem", "authority.toml", "authority.sqlite3"


class AuthorityFolderError(Exception):
    """The folder is no authority's, or cannot be used. One sentence with the fix."""


def make_authority(folder: Path, policy: AuthorityPolicy, *, at: float, key: DeviceKey | None = None) -> Issuer:
    """Makes the folder of a new authority, with its first list. AuthorityFolderError where there is one.

    The key is written last: a folder that was made by half has none, and is made anew."""
    issuer = Issuer(key := key if key is not None else DeviceKey.create(), policy)
    try:
        make_folder(folder)
        if (folder / KEY_FILE).exists():
            raise AuthorityFolderError(f"The folder {folder} has an authority already; give another one.")
        for leftover in folder.glob(f"{LEDGER_FILE}*"):
            leftover.unlink()
        _write(folder / POLICY_FILE, policy.to_toml().encode())
        with _private_files(), contextlib.closing(SqliteLedger(folder / LEDGER_FILE)) as ledger:
            with ledger.writing() as rows:
                current_list(rows, issuer, at)
        private = Ed25519PrivateKey.from_private_bytes(key.seed)
        _write(folder / KEY_FILE, private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    except OSError as error:
        raise _unusable(folder, error) from error
    return issuer


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[tuple[Issuer, Ledger]]:
    """The authority in this folder, until the block ends. AuthorityFolderError."""
    try:
        _require_private(folder / KEY_FILE)
        seed = _seed((folder / KEY_FILE).read_bytes())
        policy = AuthorityPolicy.from_toml((folder / POLICY_FILE).read_text("utf-8"))
        if not (folder / LEDGER_FILE).exists():
            raise AuthorityFolderError(
                f"The authority in {folder} has lost its ledger, {LEDGER_FILE}: restore it from a backup. Without "
                "it the authority would forget whom it has revoked."
            )
        ledger = SqliteLedger(folder / LEDGER_FILE)
    except FileNotFoundError as error:
        raise AuthorityFolderError(
            f"There is no authority in {folder}; make one: quorate authority init --data {folder} --url URL."
        ) from error
    except OSError as error:
        raise _unusable(folder, error) from error
    except ValueError as error:
        raise AuthorityFolderError(f"The authority in {folder} cannot be read: {error}") from error
    with contextlib.closing(ledger):
        yield Issuer(DeviceKey(seed), policy), ledger


def _seed(pem: bytes) -> bytes:
    key = load_pem_private_key(pem, password=None)
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(f"{KEY_FILE} has no Ed25519 key.")
    return key.private_bytes_raw()


def _require_private(path: Path) -> None:
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise AuthorityFolderError(f"Others can read {path}: make it its owner's only, by chmod 600.")


@contextlib.contextmanager
def _private_files() -> Iterator[None]:
    """Files that are made in the block are their owner's only."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _write(path: Path, data: bytes) -> None:
    """Writes a file of mode 0600 whole, or not at all. OSError."""
    draft = path.with_suffix(".new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_folder(path.parent)


def _unusable(folder: Path, error: OSError) -> AuthorityFolderError:
    return AuthorityFolderError(f"The authority's folder {folder} cannot be used: {error.strerror or error}.")
