"""One server process: its folder, its lock on it, its token and keys, its socket, and how it stops.

::

    lock the folder -> open store and blobs -> bind the port -> start the driver -> ready -> SIGINT or SIGTERM
                                                                    -> answer held requests -> close

An error before *ready* is one sentence (``CannotServe``).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import resource
import secrets
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from coordinator.blobs import BlobError, FileBlobs
from coordinator.datafolder import FolderError, locked
from coordinator.key_file import KeyFileError, made_or_read
from coordinator.network_settings import NetworkSettings
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.extensions import MissingExtension
from coordinator.runtime.sweeping import sweep
from coordinator.service.app import create_app
from coordinator.service.owner_key import noted, owner_key, write_secret
from coordinator.service.sockets import HttpServer
from coordinator.service.sockets.tls import TlsCertificate, Unusable
from coordinator.settings import Settings
from coordinator.store import open_store
from coordinator.store.port import StoreError

TOKEN_FILE = "enrolment-token"  # noqa: S105 - a file's name
_M_ARENA_MAX, _M_MMAP_THRESHOLD = -8, -3


class CannotServe(Exception):
    """The server did not start; the message is one sentence with the fix."""


def serve(settings: Settings, on_ready: Callable[[str, Path, Settings], None]) -> None:
    """Serves until SIGINT or SIGTERM. ``on_ready(url, key_file, settings)`` is called when requests are answered;
    the file has an owner's key.

    Must run in the process's main thread. CannotServe when it could not start.
    """
    certificate = certificate_of(settings)
    raise_file_limit()
    _give_memory_back()
    with _folder(settings.data):
        settings = settings.model_copy(update={"enrolment_token": settings.enrolment_token or _token(settings.data)})
        listener = bind(settings.host, settings.port)
        try:
            audit_key = made_or_read(settings.audit_key_file)
            store = open_store(settings.database_url, audit_signer=audit_key)
        except KeyFileError as error:
            listener.close()
            raise CannotServe(f"The audit cannot be signed. {error}") from error
        except (StoreError, OSError) as error:
            listener.close()
            raise CannotServe(f"The database cannot be opened: {error}") from error
        try:
            coordinator = Coordinator(store, FileBlobs(settings.blobs_folder), settings=settings)
            coordinator.core.require_extensions()
            sweep(coordinator.core)
            coordinator.access.audit.begin(audit_key.public_hex)
            url = settings.public_url or local_url(settings, listener)
            key_file = owner_key(settings.data, coordinator.access)
            app = create_app(coordinator, settings)

            def ready() -> None:
                collect_only_what_is_new()
                on_ready(url, key_file, settings)

            with noted(url, key_file):
                HttpServer(app, listener, ready, certificate).run()
        except MissingExtension as error:
            raise CannotServe(f"{str(error)[:1].upper()}{str(error)[1:]}.") from None
        except (BlobError, StoreError) as error:
            raise CannotServe(f"The data folder cannot be used: {error}") from error
        finally:
            listener.close()
            store.close()


@contextlib.contextmanager
def _folder(folder: Path) -> Iterator[None]:
    """Makes the folder and locks it: one server at a time writes to it. The lock ends with the process."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(folder))
        except FolderError as error:
            raise CannotServe(f"{str(error).removesuffix('.')} by --data.") from error
        yield


def _token(folder: Path) -> str:
    """Returns the enrolment token of this folder: drawn once, in a file that only its owner can read."""
    path = folder / TOKEN_FILE
    with contextlib.suppress(FileNotFoundError):
        token = path.read_text("ascii").strip()
        if token:
            return token
    token = secrets.token_hex(32)
    write_secret(path, token)
    return token


def bind(host: str, port: int) -> socket.socket:
    """A socket on this address, not listening yet. CannotServe."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host.strip("[]"), port))
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            reason = f"Port {port} is in use by another program; choose another by --port (0 takes any free one)."
        else:
            reason = f"Port {port} of {host} cannot be opened ({error.strerror}); choose another by --port."
        raise CannotServe(reason) from error
    listener.setblocking(False)
    return listener


def local_url(settings: NetworkSettings, listener: socket.socket) -> str:
    """The URL of a server that has no public one: the address that it listens on."""
    host, port = settings.host.strip("[]"), listener.getsockname()[1]
    return f"{'https' if settings.tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def certificate_of(settings: NetworkSettings) -> TlsCertificate | None:
    """Returns the certificate with which this process ends TLS; None where it does not."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    try:
        return TlsCertificate(settings.tls_cert, settings.tls_key)
    except Unusable as error:
        raise CannotServe(f"{error} Give others by --tls-cert and --tls-key.") from error


def collect_only_what_is_new() -> None:
    """Leaves the modules, schemas and routes, which stay until the end, out of garbage collections. A full collection
    would walk through some 200,000 objects and stop every request for 50 to 150 ms; connections that come and go cause
    one every few seconds."""
    gc.collect()
    gc.freeze()


def _give_memory_back() -> None:
    """glibc caches freed memory for each thread. Our threads take turns (by Python's lock), so one heap is enough for
    all, and its larger blocks return to the system as soon as they are free.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, 128 * 1024)


def raise_file_limit() -> None:
    """Each held check-in is an open file; the usual soft limit of 1024 would refuse devices."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1 << 20
    if soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
