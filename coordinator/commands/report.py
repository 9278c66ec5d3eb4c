"""``quorate report``: the privacy report of a run, signed by its coordinator, and whether one is unaltered."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from client_sdk.terminal import DEFAULT_URL, Json, KeyFile, Url, fail, note, say, say_json
from coordinator.commands.common import asking


class _MakesByDefault(TyperGroup):
    """``quorate report RUN`` is ``quorate report make RUN``."""

    default_command = "make"

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        return super().resolve_command(ctx, args if args[0] in self.commands else [self.default_command, *args])


app = typer.Typer(
    cls=_MakesByDefault,
    no_args_is_help=True,
    help="The privacy report of a run: 'quorate report RUN' is 'quorate report make RUN'.",
    epilog="Example: quorate report mnist --out report.html",
)


@app.command(epilog="Example: quorate report mnist --out report.html")
def make(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's id, as 'quorate run list' shows it.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write it there: .md, .html or .json (default: Markdown, on the terminal)."),
    ] = None,
    coordinator: Url = DEFAULT_URL,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Report what the models of a private run tell of one device, whom one has to trust for it, and what it does not
    cover. The coordinator signs the report with the key of its audit."""
    from coordinator.commands.report_pages import PAGES, markdown

    if out is not None and out.suffix not in PAGES:
        fail(f"{out}: a report's file ends with {', '.join(PAGES)}.")
    with asking(coordinator, key_file) as client:
        signed = client.privacy_report(run)
    if out is not None:
        out.write_text(PAGES[out.suffix](signed), "utf-8")
        note(f"Wrote {out}. Whoever gets it checks it by: quorate report verify {out}")
    if as_json:
        say_json(signed)
    elif out is None:
        say(markdown(signed).rstrip("\n"))


@app.command(epilog="Example: quorate report verify report.html --key audit-key.pem")
def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A report: Markdown, HTML or JSON.")],
    key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", help="The coordinator's key, audit-key.pem or the public key in hexadecimal, if you know it."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check that nobody has altered a report since the coordinator signed it. Exit code 1 if somebody has."""
    from client_sdk.extensions import installed_version
    from coordinator.commands.report_pages import BadReport, read
    from coordinator.key_file import KeyFileError, public_key
    from coordinator.runtime.insight.privacy_report import code_digest

    try:
        known = None if key is None else public_key(key)
        signed = read(file.read_text("utf-8"))
    except KeyFileError as error:
        fail(str(error))
    except UnicodeDecodeError:
        fail(f"{file} is no privacy report: it is no text.")
    except BadReport as error:
        fail(f"{file}: {error}")
    if known not in (None, signed.key):
        fail(f"{file} is signed by another key: {signed.key}.")
    report, same_code = signed.report, code_digest() == signed.report.code
    if as_json:
        say_json({"run": report.run, "key": signed.key, "key_is_known": known is not None, "same_code": same_code})
        return
    say(f"{file} is unaltered: the report on run {report.run}, signed by {signed.key}.")
    if known is None:
        say("Whose key that is, it cannot tell: 'quorate audit --head' shows the coordinator's; give it by --key.")
    if not same_code:
        say(f"Version {report.version} has made it, of other code than this installation ({installed_version()}).")
