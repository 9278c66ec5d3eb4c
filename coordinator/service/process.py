"""One server process: its folder, its lock on it, its authority, its keys, its socket, and how it stops.

::

    lock the folder -> bind the port -> open store, authority and blobs -> start the driver -> ready
                                         -> SIGINT or SIGTERM -> answer held requests -> close

An error before *ready* is one sentence (``CannotServe``).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import logging
import resource
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog
from starlette.routing import BaseRoute

from client_sdk.credentials.identity_keys import TrustedAuthority
from client_sdk.http.operator_key import forget_key, note_key, read_key
from client_sdk.protocol.problems import ProblemError
from coordinator.access import OperatorAccess
from coordinator.blobs import BlobError, FileBlobs
from coordinator.datafolder import FolderError, locked, write_private
from coordinator.key_file import KeyFileError, made_or_read
from coordinator.network_settings import NetworkSettings
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.core import Core
from coordinator.runtime.extensions import MissingExtension
from coordinator.runtime.identities import PinnedAuthority
from coordinator.runtime.sweeping import sweep
from coordinator.service.app import create_app
from coordinator.service.core import Serving
from coordinator.service.revocations import fetch_from
from coordinator.service.sockets import HttpServer
from coordinator.service.sockets.tls import TlsCertificate, Unusable
from coordinator.service.tracing import traces_of_process
from coordinator.settings import Settings
from coordinator.store import open_store
from coordinator.store.port import StoreError

_M_ARENA_MAX, _M_MMAP_THRESHOLD = -8, -3
NEW_OBJECTS = 50_000
"""A garbage collection comes after so many new objects: what some hundred requests make that wait for each other. In a
round of hundreds of devices, of 100 CPU seconds nine go to collections that find nothing where they come after 5,000,
and more by Python's 700."""


class CannotServe(Exception):
    """The server did not start; the message is one sentence with the fix."""


@dataclass(frozen=True, slots=True)
class Inside:
    """An authority in this process (``authority.app.inside_authority``)."""

    trusted: TrustedAuthority
    revocations: Callable[[], bytes]
    """The bytes of its current list."""
    routes: Callable[[Serving], Sequence[BaseRoute]]
    """What it serves beside the coordinator's routes. The coordinator serves the list."""
    device_token_file: Path
    """With a token by which a device enrols; mode 0600."""
    worker_token_file: Path
    """With a token by which a worker enrols; mode 0600."""


MakeInside = Callable[[Path, str, Callable[[], float]], AbstractContextManager[Inside]]
"""(folder, the coordinator's URL, the clock in Unix seconds): the authority, until the block ends."""


@dataclass(frozen=True, slots=True)
class Ready:
    """What a server that answers requests says of itself."""

    url: str
    key_file: Path
    """Has an owner's key."""
    settings: Settings
    inside: Inside | None
    """The authority in this process, where there is one."""
    page: str | None
    """The path of the installed page; None where there is none."""
    login_link: Callable[[], str]
    """Makes a link with which a browser on this machine logs in as the owner, once."""


def serve(settings: Settings, on_ready: Callable[[Ready], None], make_inside: MakeInside) -> None:
    """Serves until SIGINT or SIGTERM. ``on_ready`` is called when requests are answered; ``make_inside`` where the
    settings ask for an authority in this process.

    Must run in the process's main thread. CannotServe when it could not start, CannotTrace where the environment asks
    for traces that cannot be sent.
    """
    certificate = certificate_of(settings)
    raise_file_limit()
    _give_memory_back()
    with contextlib.ExitStack() as stack:
        stack.enter_context(locked_folder(settings.data))
        traces = stack.enter_context(traces_of_process())
        listener = bind(settings.host, settings.port)
        stack.callback(listener.close)
        url = settings.public_url or local_url(settings, listener)
        try:
            audit_key = made_or_read(settings.audit_key_file)
            store = open_store(settings.database_url, audit_signer=audit_key)
        except KeyFileError as error:
            listener.close()
            raise CannotServe(f"The audit cannot be signed. {error}") from error
        except (StoreError, OSError) as error:
            raise CannotServe(f"The database cannot be opened: {error}") from error
        stack.callback(store.close)
        inside = None
        if settings.dev_authority:
            inside = stack.enter_context(make_inside(settings.authority_folder, url, time.time))
        try:
            authority = _pinned(settings, inside, url)
            blobs = FileBlobs(settings.blobs_folder, notice=logging.getLogger("quorate.storage").warning)
            coordinator = Coordinator(Core(store, blobs, settings=settings, traces=traces), authority=authority)
            coordinator.core.require_extensions()
            sweep(coordinator.core)
            coordinator.access.audit.begin(audit_key.public_hex)
            key_file = owner_key(settings.data, coordinator.access)
            if inside is not None:
                coordinator.identities.take_list(inside.revocations())
                app = create_app(coordinator, settings, fetch_list=inside.revocations, more=inside.routes)
            else:
                app = create_app(coordinator, settings, fetch_list=fetch_from(authority) if authority else None)
            if traces is not None:
                app.add_middleware(traces.around)

            def ready() -> None:
                collect_only_what_is_new()
                link = partial(login_link, url, key_file, coordinator.access)
                on_ready(Ready(url, key_file, settings, inside, app.state.page, link))

            with noted(url, key_file):
                HttpServer(app, listener, ready, certificate).run()
        except MissingExtension as error:
            raise CannotServe(f"{str(error)[:1].upper()}{str(error)[1:]}.") from None
        except (BlobError, StoreError) as error:
            raise CannotServe(f"The data folder cannot be used: {error}") from error


def _pinned(settings: Settings, inside: Inside | None, url: str) -> PinnedAuthority | None:
    """The authority whose certificates are taken; None: there is none."""
    if inside is not None:
        return PinnedAuthority(inside.trusted, url, inside=True)
    if settings.authority is None or settings.authority_key is None:
        return None
    return PinnedAuthority(TrustedAuthority(bytes.fromhex(settings.authority_key)), settings.authority)


@contextlib.contextmanager
def locked_folder(folder: Path, by: str = "coordinator or simulation") -> Iterator[None]:
    """Makes the folder and locks it: one server at a time writes to it. The lock ends with the process."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(folder, by))
        except FolderError as error:
            raise CannotServe(f"{str(error).removesuffix('.')} by --data.") from error
        yield


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
    gc.set_threshold(NEW_OBJECTS)


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


# ------------------------------------------------------------ the owner's key
# Of a data folder: it is made when the folder is first served, and again where it was revoked. Whoever can read the
# file is an owner. The commands of the same user on this machine find it by themselves
# (``client_sdk.http.operator_key``).

OWNER_KEY_FILE = "owner-key"
log = structlog.get_logger("coordinator.service")


def owner_key(folder: Path, access: OperatorAccess) -> Path:
    """Returns the file with a valid owner's key of this coordinator; draws one where there is none. OSError,
    StoreError."""
    path = folder / OWNER_KEY_FILE
    with suppress(ValueError, ProblemError):
        access.keys.operator(read_key(path))
        return path
    made = access.keys.create_owner("quorate serve", f"{OWNER_KEY_FILE} of {folder.resolve()}"[:120])
    write_private(path, f"{made.text}\n".encode())
    return path


def login_link(url: str, key_file: Path, access: OperatorAccess) -> str:
    """A link with which a browser logs in as the owner of the file's key, once and within five minutes."""
    owner = access.keys.operator(read_key(key_file))
    access.audit.record("quorate serve", "link.create", owner.id)
    return access.sessions.create_link(owner).url(url)


@contextmanager
def noted(url: str, key_file: Path) -> Iterator[None]:
    """Lets commands of this user find the key while the block runs. Where that cannot be noted, the log says so."""
    try:
        note_key(url, key_file)
    except (OSError, RuntimeError) as error:
        log.warning("commands do not find the owner's key by themselves; give them --key-file", error=str(error))
    try:
        yield
    finally:
        with suppress(OSError, RuntimeError):
            forget_key(url)
