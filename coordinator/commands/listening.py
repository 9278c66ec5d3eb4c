"""The options of every command that listens on a network: who ends TLS; and errors of settings as one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from client_sdk.terminal import fail

TlsCert = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Its certificate and the chain (PEM); read again when changed.")
]
TlsKey = Annotated[Path | None, typer.Option(metavar="FILE", help="The certificate's private key (PEM).")]
BehindProxy = Annotated[
    list[str] | None,
    typer.Option(metavar="CIDR", help="Network of the proxy that ends TLS, in place of a certificate; repeatable."),
]


def ending_tls(tls_cert: Path | None, tls_key: Path | None, behind_proxy: list[str] | None) -> dict[str, Any]:
    """The settings of the options that were given."""
    options = {"tls_cert": tls_cert, "tls_key": tls_key, "behind_proxy": behind_proxy or None}
    return {name: value for name, value in options.items() if value is not None}


@contextmanager
def settings_errors() -> Iterator[None]:
    """Failure, in a sentence, where the settings made inside the block are not valid."""
    from pydantic import ValidationError

    try:
        yield
    except ValidationError as error:
        invalid = "; ".join(
            ": ".join([*filter(None, [".".join(map(str, row["loc"]))]), str(row["msg"]).removeprefix("Value error, ")])
            for row in error.errors(include_url=False)
        )
        fail(f"These settings are not valid: {invalid}.")
