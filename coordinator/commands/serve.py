"""``quorate serve`` runs a coordinator in this terminal until a signal stops it."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from client_sdk.commands.long_running import use_threads
from client_sdk.imports import uncollected
from coordinator.commands.common import BehindProxy, TlsCert, TlsKey, ending_tls, refuse_password, settings_errors

if TYPE_CHECKING:
    from coordinator.service.process import Ready


def serve(
    data: Annotated[Path | None, typer.Option(help="Folder of the database and the blobs.")] = None,
    port: Annotated[int | None, typer.Option(help="TCP port; 0 means any free one. (default 8470)")] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; beyond loopback it needs TLS. (default 127.0.0.1)")
    ] = None,
    public_url: Annotated[
        str | None, typer.Option(metavar="URL", help="How peers reach it: https://fl.example.org, with a path or not.")
    ] = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    behind_proxy: BehindProxy = None,
    authority: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The authority whose certificates of devices and workers are taken."),
    ] = None,
    authority_key: Annotated[
        str | None, typer.Option(metavar="HEX", help="Its public key, as 'quorate authority show' prints it.")
    ] = None,
    dev_authority: Annotated[
        bool, typer.Option("--dev-authority", help="Keep an authority inside, for trials on this machine only.")
    ] = False,
    database: Annotated[
        str | None, typer.Option(help="SQLAlchemy URL without a password. (default: SQLite in the folder)")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON line when ready, and the log as JSON.")
    ] = False,
) -> None:
    """Run a coordinator: the HTTP API, the database and the rounds, in one process.

    All data is stored in one folder; a coordinator that is started again with the same folder continues its runs.
    Further settings come from the environment, for example QUORATE_THREADS=16; coordinator.settings lists them.
    """
    options = {
        "data": data,
        "port": port,
        "host": host,
        "public_url": public_url,
        "database": database,
        "authority": authority,
        "authority_key": authority_key,
        "dev_authority": dev_authority or None,
    }
    refuse_password(database)
    configure_log(as_json)
    use_threads(None)
    with uncollected():
        from coordinator.authority.app import inside_authority
        from coordinator.service.process import serve as serve_until_stopped
        from coordinator.settings import Settings

    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    with settings_errors():
        settings = Settings(**given, **ending_tls(tls_cert, tls_key, behind_proxy))
    serve_until_stopped(settings, _ready_json if as_json else _ready, inside_authority)


def _ready(ready: Ready) -> None:
    url, settings, inside = ready.url, ready.settings, ready.inside
    console = Console(highlight=False)

    def tell(line: str | Text) -> None:
        console.print(line, soft_wrap=True, markup=False, emoji=False)  # a folder's name may hold brackets

    tell(Text.assemble(("Quorate", "bold"), " serves ", (url, "bold"), f" from the folder {settings.data}"))
    if ready.page is not None and settings.on_loopback and sys.stdout.isatty():
        tell(f"  The dashboard:    {ready.login_link()}")
        tell("                    logs one browser in, within five minutes")
    elif ready.page is not None:
        tell(f"  The dashboard:    {url}/")
    tell(f"  The API's page:   {url}/docs")
    tell(f"  Owner's API key:  in the file {ready.key_file}; commands of this user find it there")
    if inside is not None:
        tell("  Authority:        inside, for trials: this coordinator could make devices up")
        tell(f"  A device joins:   quorate device --token-file {quote(str(inside.device_token_file))} --data DATA")
        token = quote(str(inside.worker_token_file))
        tell(f"  A worker joins:   quorate datacenter join --token-file {token} --data NAME")
    elif settings.authority is not None:
        tell(f"  Authority:        {settings.authority}; its operators hand out enrolment tokens")
    else:
        tell("  Authority:        none, so no device can register: give --authority and --authority-key, or")
        tell("                    for trials --dev-authority")
    tell("Ctrl-C stops it; no data is lost.")


def _ready_json(ready: Ready) -> None:
    line: dict[str, object] = {
        "url": ready.url,
        "docs": f"{ready.url}/docs",
        "dashboard": None if ready.page is None else f"{ready.url}/",
        "key_file": str(ready.key_file.resolve()),
        "data": str(ready.settings.data.resolve()),
        "authority": ready.settings.authority,
    }
    if ready.inside is not None:
        line |= {
            "authority": ready.url,
            "device_token_file": str(ready.inside.device_token_file.resolve()),
            "worker_token_file": str(ready.inside.worker_token_file.resolve()),
        }
    print(json.dumps(line), flush=True)


def configure_log(as_json: bool) -> None:
    """Sends the log to stderr: warnings and bugs, one line each, as text or as JSON. Tracebacks show no values of
    variables, which may be tokens or a run's selection seed."""
    import structlog

    from coordinator.runtime import log_context

    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        log_context.merge,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if as_json:
        last: list[Any] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        plain = structlog.dev.plain_traceback
        last = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
