"""``quorate authority`` makes, serves and operates the authority of a folder on this machine."""

from __future__ import annotations

import os
import re
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from client_sdk.terminal import Json, fail, say, say_json, say_table, show_answer
from coordinator.commands.common import (
    BehindProxy,
    TlsCert,
    TlsKey,
    ending_tls,
    require_new,
    settings_errors,
    write_secret,
)
from coordinator.commands.tables import moment

if TYPE_CHECKING:
    from coordinator.authority.issuer import Issuer
    from coordinator.authority.ledger import Ledger

app = typer.Typer(
    no_args_is_help=True,
    help="Make, serve and operate an authority, which certifies devices and workers apart from any coordinator.",
    epilog="Example: quorate authority init --url https://authority.example:8471",
)
DEFAULT_FOLDER = Path("quorate-authority")
DEFAULT_PORT = 8471

Data = Annotated[Path, typer.Option(help="The authority's folder, on this machine.")]

_SPANS = {"m": 60, "h": 3_600, "d": 86_400}


@app.command(epilog="Example: quorate authority init --url https://authority.example:8471")
def init(
    url: Annotated[str, typer.Option(help="Public URL, which tokens name: https, or http on loopback.")],
    data: Data = DEFAULT_FOLDER,
    certificate_days: Annotated[int, typer.Option(min=1, max=825, help="How long certificates are valid.")] = 90,
    list_hours: Annotated[
        int, typer.Option(min=1, max=168, help="How long a revocation list is current; secure rounds stop then.")
    ] = 24,
    as_json: Json = False,
) -> None:
    """Make an authority: a folder with its key, which is drawn here and never leaves it."""
    from coordinator.authority.folder import make_authority
    from coordinator.authority.issuer import AuthorityPolicy

    policy = AuthorityPolicy(url=url, certificate_days=certificate_days, list_hours=list_hours)
    issuer = make_authority(data, policy, at=time.time())
    if as_json:
        say_json(_shown(issuer))
        return
    say(f"The authority is in {data}. Back the folder up, encrypted: who has authority.pem can make devices up.")
    _say_key(issuer)
    say(f"Next: quorate authority serve --data {data}")


@app.command(epilog="Example: quorate authority serve --data quorate-authority --port 8471")
def serve(
    data: Data = DEFAULT_FOLDER,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="TCP port; 0 means any free one.")] = DEFAULT_PORT,
    host: Annotated[str, typer.Option(help="Address to listen on; beyond loopback it needs TLS.")] = "127.0.0.1",
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    behind_proxy: BehindProxy = None,
    proof: Annotated[
        str | None, typer.Option(help="What says who a device is, beside its token: package:name of an entry point.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Serve enrolment, renewal and the revocation list until a signal stops it."""
    from coordinator.authority.app import serve_authority
    from coordinator.authority.proofs import proof_named
    from coordinator.commands.serve import configure_log
    from coordinator.settings import Settings

    def ready(address: str, issuer: Issuer) -> None:
        if as_json:
            say_json({"address": address, **_shown(issuer)})
            return
        say(f"The authority serves {issuer.policy.url} on {address}")
        _say_key(issuer)
        say("Ctrl-C stops it; no data is lost.")

    configure_log(as_json)
    tls = ending_tls(tls_cert, tls_key, behind_proxy)
    if tls:
        with _authority(data) as (issuer, _):
            tls["public_url"] = issuer.policy.url
    with settings_errors():
        settings = Settings(data=data, host=host, port=port, **tls)
    serve_authority(data, settings, proof_named(proof), ready)


@app.command(epilog="Example: quorate authority token --uses 40 --expires 7d --label clinics --output clinics.token")
def token(
    data: Data = DEFAULT_FOLDER,
    worker: Annotated[bool, typer.Option("--worker", help="For a worker of a datacenter, not for devices.")] = False,
    uses: Annotated[int, typer.Option(min=1, max=1_000_000, help="How many may enrol with it.")] = 1,
    expires: Annotated[str, typer.Option(help="How long it may be used: 30m, 12h or 7d.")] = "1d",
    label: Annotated[str, typer.Option(help="A name for it, in the audit.")] = "",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="A new file for the token, readable by you only."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make an enrolment token. It is printed or written only once: the authority stores its hash."""
    from coordinator.authority.issuer import make_token

    lasts_s = _span(expires)
    require_new(output)
    with _authority(data) as (issuer, ledger), ledger.writing() as rows:
        made = make_token(
            rows,
            issuer,
            holder="worker" if worker else "device",
            uses=uses,
            lasts_s=lasts_s,
            label=_label(label),
            who=_operator(),
            at=time.time(),
        )
    if output is not None:
        write_secret(output, made.text)
    shown = {"token": None, "file": str(output)} if output is not None else {"token": made.text}
    text = made.text if output is None else f"The token is in {output}: give it by --token-file."
    show_answer({**shown, "uses": uses, "lasts_s": lasts_s}, text, as_json=as_json)


@app.command(epilog="Example: quorate authority sign model.safetensors --data quorate-authority")
def sign(
    model: Annotated[Path, typer.Argument(metavar="FILE", help="A model, a safetensors file.")],
    run: Annotated[str, typer.Option(help="The id of the run of which it is a later version.")] = "",
    version: Annotated[int, typer.Option(min=0, help="Which version of that run's model it is.")] = 0,
    data: Data = DEFAULT_FOLDER,
    as_json: Json = False,
) -> None:
    """Sign a first model, so that devices take secure runs that begin from it: whoever trusts the authority then trusts
    that nobody made it to read their data out of sums. A plan has the signature as secure.first_signature.

    With --run and --version it is under a later model of that run, such as one that a datacenter has made: 'quorate run
    sign' gives it to the devices."""
    from client_sdk.device.contribution import model_digest
    from client_sdk.secagg.origin import sign_model
    from client_sdk.tensors import TensorError

    if bool(run) != bool(version):
        fail("--run and --version go together: a later model is signed as one version of one run.")
    try:
        digest = model_digest(model.read_bytes())
    except (OSError, TensorError) as error:
        fail(f"{model} is not a safetensors file that can be signed: {error}.")
    with _authority(data) as (issuer, _):
        signature = sign_model(issuer.signer, digest, run, version).hex()
    show_answer({"model": digest.hex(), "signature": signature}, signature, as_json=as_json)


@app.command(epilog="Example: quorate authority devices")
def devices(data: Data = DEFAULT_FOLDER, as_json: Json = False) -> None:
    """List who was enrolled, devices and workers: state, key and until when the certificate is valid."""
    with _authority(data) as (_, ledger), ledger.reading() as rows:
        found = [(holder, rows.key_of(holder.id)) for holder in rows.holders()]
    if as_json:
        for holder, key in found:
            say_json(
                {
                    "id": holder.id,
                    "holder": holder.holder,
                    "state": holder.state,
                    "enrolled_at": holder.enrolled_at,
                    "key": key.key_id.hex() if key else None,
                    "expires_at": key.expires_at if key else None,
                    "label": holder.label,
                    "subject": holder.subject,
                }
            )
        return
    say_table(
        ("id", "class", "state", "enrolled", "valid until", "key", "label", "who"),
        [
            (
                holder.id,
                holder.holder,
                holder.state,
                moment(holder.enrolled_at) if holder.enrolled_at else None,
                moment(key.expires_at) if key else None,
                key.key_id.hex()[:12] if key else None,
                holder.label or None,
                holder.subject or None,
            )
            for holder, key in found
        ],
        "Nobody yet. Hand out a token: quorate authority token",
    )


@app.command(epilog="Example: quorate authority revoke d1f2e3d4c5b6a798")
def revoke(
    id: Annotated[str, typer.Argument(metavar="ID", help="As 'quorate authority devices' lists it.")],
    data: Data = DEFAULT_FOLDER,
    as_json: Json = False,
) -> None:
    """Revoke the key of a device or worker, permanently. The list that names it is served at once."""
    from coordinator.authority.issuer import revoke as revoke_key

    with _authority(data) as (issuer, ledger), ledger.writing() as rows:
        found = revoke_key(rows, issuer, id, who=_operator(), at=time.time())
    done = f"{id} is revoked, by revocation list {found.counter}."
    show_answer({"revoked": id, "list": found.counter}, done, as_json=as_json)


@app.command(epilog="Example: quorate authority audit --last 20")
def audit(
    data: Data = DEFAULT_FOLDER,
    last: Annotated[int, typer.Option(min=1, help="How many of the newest entries.")] = 100,
    as_json: Json = False,
) -> None:
    """Show who enrolled, renewed, rotated, left, was revoked or refused, and which tokens were made; oldest first."""
    with _authority(data) as (_, ledger), ledger.reading() as rows:
        found = rows.audit(last)
    if as_json:
        for entry in found:
            say_json({"at": entry.at, "who": entry.who, "event": entry.event, "what": entry.what})
        return
    say_table(("when", "who", "what", "whom"), [(moment(row.at), row.who, row.event, row.what) for row in found])


@app.command(epilog="Example: quorate authority show --json")
def show(data: Data = DEFAULT_FOLDER, as_json: Json = False) -> None:
    """Show the public key and its hash, which a coordinator and each device's token pin."""
    with _authority(data) as (issuer, _):
        if as_json:
            say_json(_shown(issuer))
        else:
            _say_key(issuer)


def _authority(data: Path) -> AbstractContextManager[tuple[Issuer, Ledger]]:
    from coordinator.authority.folder import opened

    return opened(data)


def _shown(issuer: Issuer) -> dict[str, object]:
    trusted = issuer.trusted
    shown: dict[str, object] = {"public_key": trusted.public_key.hex(), "sha256": trusted.digest.hex()}
    return {**shown, "id": trusted.id.hex(), **issuer.policy.model_dump()}


def _say_key(issuer: Issuer) -> None:
    say(f"  URL:         {issuer.policy.url}")
    say(f"  Public key:  {issuer.trusted.public_key.hex()}")
    say(f"  Its SHA-256: {issuer.trusted.digest.hex()}")


def _operator() -> str:
    """Who acts: by the user's number, which the machine knows and nobody can choose."""
    return f"operator uid {os.getuid()}"


def _span(text: str) -> int:
    """Seconds of ``30m``, ``12h`` or ``7d``."""
    found = re.fullmatch(r"([1-9][0-9]{0,4})([mhd])", text)
    if found is None:
        fail(f"{text!r} is no span of time; give minutes, hours or days, as 30m, 12h or 7d.")
    return int(found[1]) * _SPANS[found[2]]


def _label(text: str) -> str:
    if not (text.isprintable() and len(text) <= 64):
        fail("A label is up to 64 printable characters.")
    return text
