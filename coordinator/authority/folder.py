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
from collections.abc import Iterator
from pathlib import Path

from client_sdk.identity import DeviceKey
from coordinator.authority.issuer import AuthorityPolicy, Issuer, current_list
from coordinator.authority.ledger import Ledger
from coordinator.datafolder import make_folder, write_private
from coordinator.key_file import key_of, others_can_read, pem_of

KEY_FILE, POLICY_FILE, LEDGER_FILE = "authority.pem", "authority.toml", "authority.sqlite3"


class AuthorityFolderError(Exception):
    """The folder is no authority's, or cannot be used. One sentence with the fix."""


def make_authority(folder: Path, policy: AuthorityPolicy, *, at: float) -> Issuer:
    """Makes the folder of a new authority, with its first list. AuthorityFolderError where there is one.

    The key is written last: a folder that was made by half has none, and is made anew."""
    key = DeviceKey.create()
    issuer = Issuer(key, policy)
    try:
        make_folder(folder)
        if (folder / KEY_FILE).exists():
            raise AuthorityFolderError(f"The folder {folder} has an authority already; give another one.")
        for leftover in folder.glob(f"{LEDGER_FILE}*"):
            leftover.unlink()
        write_policy(folder, policy)
        with _private_files(), contextlib.closing(Ledger(folder / LEDGER_FILE)) as ledger:
            with ledger.writing() as rows:
                current_list(rows, issuer, at)
        write_private(folder / KEY_FILE, pem_of(key))
    except OSError as error:
        raise _unusable(folder, error) from error
    return issuer


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[tuple[Issuer, Ledger]]:
    """The authority in this folder, until the block ends. AuthorityFolderError."""
    try:
        _require_private(folder / KEY_FILE)
        key = key_of((folder / KEY_FILE).read_bytes(), KEY_FILE)
        policy = AuthorityPolicy.from_toml((folder / POLICY_FILE).read_text("utf-8"))
        if not (folder / LEDGER_FILE).exists():
            raise AuthorityFolderError(
                f"The authority in {folder} has lost its ledger, {LEDGER_FILE}: restore it from a backup. Without "
                "it the authority would forget whom it has revoked."
            )
        ledger = Ledger(folder / LEDGER_FILE)
    except FileNotFoundError as error:
        raise AuthorityFolderError(
            f"There is no authority in {folder}; make one: quorate authority init --data {folder} --url URL."
        ) from error
    except OSError as error:
        raise _unusable(folder, error) from error
    except ValueError as error:
        raise AuthorityFolderError(f"The authority in {folder} cannot be read: {error}") from error
    with contextlib.closing(ledger):
        yield Issuer(key, policy), ledger


def _require_private(path: Path) -> None:
    if others_can_read(path):
        raise AuthorityFolderError(f"Others can read {path}: make it its owner's only, by chmod 600.")


@contextlib.contextmanager
def _private_files() -> Iterator[None]:
    """Files that are made in the block are their owner's only."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def write_policy(folder: Path, policy: AuthorityPolicy) -> None:
    """Replaces the policy of the authority in this folder. OSError."""
    write_private(folder / POLICY_FILE, policy.to_toml().encode())


def _unusable(folder: Path, error: OSError) -> AuthorityFolderError:
    return AuthorityFolderError(f"The authority's folder {folder} cannot be used: {error.strerror or error}.")
