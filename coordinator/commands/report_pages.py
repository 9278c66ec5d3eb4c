"""A signed privacy report as a page for people, in Markdown and in HTML.

A page ends with a comment that has the signed report whole. The page follows from the report, so whoever reads it can
tell whether anybody has changed a word.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

from client_sdk.protocol.privacy_report import PrivacyReport, SignedReport
from client_sdk.terminal import cell
from coordinator.runtime.insight.privacy_report import is_signed

_COMMENT = re.compile(r"<!-- quorate privacy report ([A-Za-z0-9+/=]+) -->\s*\Z")
_SIMULATED = "A simulation played this run. Its noise follows from a seed that is no secret: it protects nobody."
_CHECKED = (
    "The log of the run holds these figures: 'quorate verify DATABASE --head LOG' tells whether it ends or goes "
    "on as it did here. Digests are SHA-256; the rounds' models are named by their beginnings."
)
_TEMPLATE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a }}
table {{ border-collapse: collapse; margin: 1rem 0 }}
th, td {{ border-bottom: 1px solid #ccc; padding: .25rem .75rem; text-align: left; overflow-wrap: anywhere }}
</style>
"""


class BadReport(ValueError):
    """It is no report, or an altered one. One sentence."""


@dataclass(frozen=True, slots=True)
class _Table:
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


_Block = str | tuple[str, ...] | _Table
"""A paragraph, a list, or a table."""


def markdown(signed: SignedReport) -> str:
    return _page(signed, *_MARKDOWN)


def html(signed: SignedReport) -> str:
    return _page(signed, *_HTML)


def as_json(signed: SignedReport) -> str:
    return json.dumps(signed.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"


PAGES: Mapping[str, Callable[[SignedReport], str]] = {".md": markdown, ".html": html, ".json": as_json}
"""Ending of a file's name -> what is written into it."""


def read(text: str) -> SignedReport:
    """The report of a page or of JSON, in whichever layout. BadReport where its signature is not valid, or where the
    text says anything else than what is signed."""
    comment = _COMMENT.search(text)
    try:
        content = json.loads(b64decode(comment[1]) if comment else text, object_pairs_hook=_once_each)
        signed = SignedReport.model_validate(content)
        authentic, pages = is_signed(signed), (markdown(signed), html(signed))
    except (ValueError, ArithmeticError, OSError, RecursionError):  # any key signs: also a time that no calendar has
        raise BadReport("It is no privacy report, as 'quorate report' writes it.") from None
    if not authentic:
        raise BadReport("It was altered: the signature is not that of its key over this report.")
    if content != signed.model_dump(mode="json") or (comment and text not in pages):
        raise BadReport(
            "It was altered: it says something else than the report that is signed in it. (A page that version "
            f"{cell(signed.report.version)[:40]} has written is read by that version; its JSON by any.)"
        )
    return signed


def _once_each(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    """An object of JSON. ValueError where a name comes twice: people would read one of the two, and programs the
    other."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name comes twice")
    return found


# ------------------------------------------------------------ what it says


def _sections(signed: SignedReport) -> Iterator[tuple[str, list[_Block]]]:
    of = signed.report
    worst = max(of.rounds_of_a_device, default=0)
    claim = (
        f"Whatever anybody computes from the models of this run, its chances differ by a factor of at most "
        f"e^{of.epsilon:.4g}, but for a chance of {of.delta:g}, from what they were had one device sent zeros. That is "
        f"for the device that has counted most often, in {worst} rounds; nothing is gained by chance in who takes part."
    )
    claims = (
        ("unit", of.unit),
        ("adjacency", of.adjacency),
        ("mechanism", of.mechanism),
        ("clip", "; ".join(f"{one.clip:g} from round {one.round}" for one in of.clips)),
        ("noise", f"{of.noise:.6g} x clip"),
        ("epsilon so far", f"{of.epsilon:.4g} at delta {of.delta:g}, without amplification by sampling"),
        ("zCDP so far", f"{of.rho:.4g}"),
        ("epsilon planned", f"{of.epsilon_planned:.4g}, of a device that counts in {of.most_rounds} rounds"),
        ("separation", _apart(of)),
    )
    yield "What is claimed", [*([_SIMULATED] if of.simulated else []), claim, _Table(("", ""), claims)]
    ledger = of.ledger
    budgets = (
        ("ledger", ledger.name),
        ("budget of a device", f"epsilon {ledger.budget:.4g} at delta {of.delta:g}, over all runs of the ledger"),
        ("lost most", f"epsilon {ledger.spent:.4g}"),
        ("devices that have lost something", ledger.devices),
        ("of these near their limit", f"{ledger.near} have used nine tenths of it, or more"),
        ("runs", ledger.runs),
        ("owners' words", f"{ledger.words} for devices that have lost something by another ledger"),
    )
    yield "Budget over runs", [_Table(("", ""), budgets), *([ledger.said] if ledger.said else [])]
    devices = sum(of.rounds_of_a_device.values())
    taken = _Table(("rounds", "devices"), tuple(of.rounds_of_a_device.items()))
    yield "Who took part", [f"{devices} devices have counted.", taken]
    yield "Who is trusted", [of.trusted]
    yield "What is not covered", [of.not_covered]
    ended = [one.status for one in of.rounds]
    columns = ("round", "kind", "status", "selected", "counted", "late", "dropped", "withdrawn", "refused", "model")
    rounds = [[(value or "")[:16] if name == "checkpoint" else value for name, value in one] for one in of.rounds]
    told = f"{len(ended)} rounds have ended, {ended.count('abandoned')} of them abandoned."
    yield "Rounds", [told, _Table(columns, rounds)]
    if of.refusals:
        yield "Refused updates", [_Table(("reason", "updates"), tuple(of.refusals.items()))]
    models = [of.first_model, *(one.checkpoint for one in of.rounds if one.checkpoint)]
    digests = (
        ("log", of.log),
        ("plan", of.plan),
        ("first model", models[0]),
        ("newest model", models[-1]),
        ("code", of.code),
        ("version", of.version),
        ("signed by", signed.key),
    )
    yield "By what it can be checked", [_CHECKED, _Table(("", ""), digests)]


def _apart(of: PrivacyReport) -> str:
    if of.least_apart is None:
        return "no device has counted twice"
    return f"a device counted again after {of.least_apart} round{'s' * (of.least_apart > 1)} at the earliest"


# ------------------------------------------------------------ how it is written


@dataclass(frozen=True, slots=True)
class _Form:
    """One way to write a page. Texts are escaped before, and have one line each."""

    title: Callable[[str], str]
    heading: Callable[[str], str]
    paragraph: Callable[[str], str]
    items: Callable[[Iterable[str]], str]
    table: Callable[[Sequence[str], Iterable[Sequence[str]]], str]


def _page(signed: SignedReport, form: _Form, escape_markup: Callable[[str], str]) -> str:
    def escaped(text: str) -> str:
        return escape_markup(cell(text))

    report = signed.report
    made = datetime.fromtimestamp(report.made_at, UTC)
    named = report.run if report.name == report.run else f"{report.run} ({report.name})"
    parts = [
        form.title(escaped(f"Privacy report of run {named}")),
        form.paragraph(escaped(f"Made {made:%Y-%m-%d %H:%M:%S} UTC. The run is {report.status}.")),
    ]
    for heading, blocks in _sections(signed):
        parts.append(form.heading(escaped(heading)))
        for block in blocks:
            if isinstance(block, str):
                parts.append(form.paragraph(escaped(block)))
            elif isinstance(block, _Table):
                cells = [[escaped("" if cell is None else str(cell)) for cell in row] for row in block.rows]
                parts.append(form.table([escaped(column) for column in block.columns], cells))
            else:
                parts.append(form.items(escaped(item) for item in block))
    whole = b64encode(json.dumps(signed.model_dump(mode="json")).encode()).decode()
    return "\n".join([*parts, f"<!-- quorate privacy report {whole} -->", ""])


def _markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _html_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{column}</th>" for column in columns) if any(columns) else ""
    body = ["".join(f"<td>{cell}</td>" for cell in row) for row in rows]
    return "\n".join(["<table>", *(f"<tr>{line}</tr>" for line in [head, *body] if line), "</table>"])


_MARKDOWN = (
    _Form(
        title="# {}\n".format,
        heading="## {}\n".format,
        paragraph="{}\n".format,
        items=lambda items: "".join(f"- {item}\n" for item in items),
        table=_markdown_table,
    ),
    lambda text: re.sub(r"([\\`*_\[\]<>|#~])", r"\\\1", text),
)
_HTML = (
    _Form(
        title=lambda text: _TEMPLATE.format(title=text) + f"<h1>{text}</h1>",
        heading="<h2>{}</h2>".format,
        paragraph="<p>{}</p>".format,
        items=lambda items: "\n".join(["<ul>", *(f"<li>{item}</li>" for item in items), "</ul>"]),
        table=_html_table,
    ),
    escape,
)
