"""Shows the state of a coordinator: ``quorate status``, ``rounds``, ``metrics``, ``devices`` and ``events``. ``plot``
draws a run into a file, for papers and pages: funnel, curves, and lanes or exchanges."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from client_sdk.http.paging import PAGE, every_metric, every_page, every_round
from client_sdk.protocol.operators import (
    NOISED,
    STILL_READ,
    DeviceState,
    DeviceView,
    ExchangeView,
    RoundView,
    SecureView,
)
from client_sdk.protocol.problems import ProblemError
from client_sdk.terminal import DEFAULT_URL, Json, KeyFile, Url, fail, say, say_json, show_answer
from coordinator.commands.common import asking
from coordinator.commands.runs import RunName
from coordinator.commands.tables import TextTable, moment, print_rounds, print_run, print_runs, show_table, terminal
from coordinator.engine.reasons import printable

if TYPE_CHECKING:
    from client_sdk.http.operator import OperatorClient
    from client_sdk.protocol.insight import LanesView
    from client_sdk.protocol.operators import RoundView


def status(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="One run (default: all of them).")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on, redrawn each second, until the run ends or Ctrl-C; lines in a file.")
    ] = False,
    coordinator: Url = DEFAULT_URL,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Show all runs of a coordinator, or the progress of one."""
    with asking(coordinator, key_file) as client:
        if watch:
            from coordinator.commands.watching import watch_all, watch_run

            if run is not None:
                watch_run(client, run, terminal(), as_json=as_json)
            else:
                watch_all(client, terminal(), as_json=as_json)
            return
        if run is not None:
            _print_one(client, run, as_json)
            return
        print_runs(every_page(client.runs), as_json=as_json)
        with suppress(ProblemError):  # the coordinator stops
            if not as_json and (why := client.authority_trouble()):
                say(f"Authority: {why}")


def _print_one(client: OperatorClient, run: str, as_json: bool) -> None:
    console = terminal()
    if as_json:
        say_json(client.run(run))
    elif console is None:
        print_run(client.run(run))
    else:
        from coordinator.commands.watching import RunReader, picture

        console.print(picture(RunReader(client, run)(), console.width, console.height - 2))


def rounds(
    run: RunName,
    secure: Annotated[
        bool, typer.Option("--secure", help="The secure rounds, exchange by exchange: counts, seconds, bytes.")
    ] = False,
    coordinator: Url = DEFAULT_URL,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> None:
    """List the rounds of a run: how each ended and why, and how many devices reached each stage."""
    with asking(coordinator, key_file) as client:
        found = every_round(client, run)
    if secure:
        found = [view for view in found if view.kind == "secure"]
    if secure and not as_json:
        print_secure_rounds(found)
    else:
        print_rounds(found, as_json=as_json)


def metrics(run: RunName, coordinator: Url = DEFAULT_URL, key_file: KeyFile = None, as_json: Json = False) -> None:
    """List a run's metrics by checkpoint, with the number of examples of each."""
    with asking(coordinator, key_file) as client:
        found = every_metric(client, run)
    rows = [(row.version, row.source, row.name, row.value, row.examples) for row in found]
    empty = f"No metrics yet. Score the checkpoints: quorate evaluate {run} --data DATA"
    show_table(TextTable(("version", "source", "metric", "value", "examples"), rows, empty), found, as_json=as_json)


def devices(
    state: Annotated[
        DeviceState | None,
        typer.Option(help="Devices in this state: away, waiting, unfit (they fit no run), assigned or left."),
    ] = None,
    device_class: Annotated[
        str, typer.Option("--class", metavar="CLASS", help="Devices whose label begins so, before its first '/'.")
    ] = "",
    match: Annotated[str, typer.Option(metavar="TEXT", help="Devices with this text in their id or label.")] = "",
    run: Annotated[
        str, typer.Option(metavar="RUN", help="How often each was selected and counted in the run's last rounds.")
    ] = "",
    coordinator: Url = DEFAULT_URL,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> None:
    """List the registered devices: what each does now, when it was last seen, and how often it took part."""
    if run:
        if state or device_class or match:
            fail("--run lists all devices of a run: leave out --state, --class and --match.")
        with asking(coordinator, key_file) as client:
            _show_participation(client, run, as_json=as_json)
        return
    given = {"state": state, "device_class": device_class, "q": match}
    wanted = {name: value for name, value in given.items() if value}
    with asking(coordinator, key_file) as client:
        found = every_page(lambda after: client.devices(after, PAGE, **wanted))
    facts = sorted({name for row in found for name in row.facts})
    rows = [
        (
            row.device,
            _state(row),
            row.run,
            row.round,
            row.rounds_joined,
            row.refusals,
            row.examples_cap,
            moment(row.last_seen_at),
            *(row.facts.get(name) for name in facts),
            row.label or None,
        )
        for row in found
    ]
    columns = ("device", "state", "run", "round", "joined", "refused", "examples", "last seen", *facts, "label")
    empty = "No device is so." if wanted else "No devices yet. One joins: quorate device --token-file FILE --data DATA"
    show_table(
        TextTable(columns, rows, empty, words="label", least=(*facts, "examples", "refused", "round", "run")),
        found,
        as_json=as_json,
    )
    lost = [count for row in found if isinstance(count := row.facts.get("states_left_out"), int)]
    if lost and not as_json:
        say(f"{len(lost)} of these devices left out {sum(lost)} states of a strategy.")


def events(
    run: RunName,
    follow: Annotated[bool, typer.Option("--follow", help="Continue with new events until the run ends.")] = False,
    after: Annotated[int, typer.Option(min=0, help="Start after the event with this number.")] = 0,
    coordinator: Url = DEFAULT_URL,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Print a run's log, one event per line."""
    with asking(coordinator, key_file) as client:
        newest = client.run(run).seq
        if after >= newest and not follow:
            return
        for event in client.events(run, after):
            line = f"{event.seq:>6}  {moment(event.at)}  {event.kind:<12} {_brief(event.body)}"
            show_answer(event, line, as_json=as_json)
            if event.seq >= newest and not follow:
                return


def _brief(body: dict[str, object]) -> str:
    text = "  ".join(
        f"{name}={json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else printable(value)}"
        for name, value in body.items()
    )
    return text if len(text) <= 160 else text[:159] + "…"


def _state(row: DeviceView) -> str:
    state = f"waiting, fits no run: {row.unfit}" if row.state == "unfit" else str(row.state)
    return f"{state}; {row.warning}" if row.warning else state


def _show_participation(client: OperatorClient, run: str, *, as_json: bool) -> None:
    """A line for each device, the least counted first; then in which lateness is concentrated."""
    found = page = client.participation(run, limit=PAGE)
    devices = list(page.page)
    while page.next:
        page = client.participation(run, page.next, PAGE)
        devices += page.page
    if as_json:
        say_json(found.changed(page=devices, next=""))
        return
    columns = (
        "device", "class", "selected", "reported", "counted", "late", "dropped", "withdrawn", "refused", "speed s",
    )  # fmt: skip
    rows = [
        (
            one.device, one.device_class, one.selected, one.reported, one.counted, one.late, one.dropped,
            one.withdrawn, one.refused, None if one.speed_s is None else f"{one.speed_s:.1f}",
        )
        for one in devices
    ]  # fmt: skip
    show_table(TextTable(columns, rows, "No device yet.", least=("refused", "withdrawn", "reported")))
    say(f"From round {found.from_round} on, {found.never_counted} of {found.devices} devices never counted.")
    if found.lateness:
        say(f"{found.lateness}: see docs/selection.md.")


# ------------------------------------------------------------ secure rounds


def print_secure_rounds(rounds: Iterable[RoundView]) -> None:
    """A line for each exchange of each attempt of each secure round; then why attempts were given up, and what could be
    seen of each round."""
    found = [(view, view.secure) for view in rounds if view.secure is not None]
    columns = ("round", "attempt", "exchange", "came", "needed", "expected", "gone", "seconds", "kB in")
    rows = [
        _row(view.round, attempt, exchange)
        for view, secure in found
        for attempt, exchanges in enumerate((*(earlier.exchanges for earlier in secure.earlier), secure.exchanges))
        for exchange in exchanges
    ]
    show_table(TextTable(columns, rows, "No secure rounds with a cohort yet.", least=("attempt", "expected")))
    for view, secure in found:
        for attempt, earlier in enumerate(secure.earlier):
            say(f"Round {view.round}: attempt {attempt} was given up: {earlier.reason}.")
        say(f"Round {view.round}: {seen(view, secure)}")


def seen(view: RoundView, secure: SecureView) -> str:
    """What the coordinator could see of a round, and what it could not, in one line."""
    came = {exchange.exchange: exchange.came for exchange in secure.exchanges}
    summed, sums, weight = came.get("mask", 0), secure.sums, f"here {view.weight}, rounded"
    if not secure.opened:
        return (
            "the coordinator saw which devices sent which messages, when and how long; it could see no update and no "
            "sum of updates."
        )
    recovered = came.get("share", 0) - summed
    gone = f" {recovered} vanished before they masked, and their masks were removed from the sum." if recovered else ""
    saw, fewer = f"the sum of {summed} updates, its total weight ({weight}), and which devices are in it", ""
    if sums:
        each = f"{min(sums)}" if min(sums) == max(sums) else f"{min(sums)} to {max(sums)}"
        saw = (
            f"the sums of {len(sums)} of {secure.groups} groups, of {each} updates each, their total weights "
            f"({weight}, together), and which devices are in each"
        )
        fewer = " than one group's"
        if secure.fallen:
            gone += f" Of {secure.fallen} more it may have seen the sum as well, which is not in the model."
    still = NOISED.format(noise=secure.noise) if secure.noise else STILL_READ
    return (
        f"the coordinator saw {saw}; it could see no single update, and no sum of fewer{fewer}, as long as no more "
        f"devices collude than the plan allows for.{gone} {still}"
    )


def _gone(exchange: ExchangeView) -> int | None:
    """How many were awaited in vain; nobody where the exchange ends as soon as enough came. None: it is under way."""
    if exchange.ended_at is None:
        return None
    ends_early = exchange.exchange in ("agree", "unmask") and exchange.came >= exchange.needed
    return 0 if ends_early else exchange.expected - exchange.came


def _row(round: int, attempt: int, exchange: ExchangeView) -> Sequence[object]:
    return (
        round,
        attempt,
        exchange.exchange,
        exchange.came,
        exchange.needed,
        exchange.expected,
        _gone(exchange),
        f"{exchange.ended_at - exchange.began_at:.1f}" if exchange.ended_at is not None else None,
        f"{exchange.bytes / 1000:.1f}",
    )


def plot(
    run: RunName,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="A .svg, .pdf or .png. (default: RUN.svg)")
    ] = None,
    round_: Annotated[
        int | None,
        typer.Option("--round", min=1, metavar="N", help="Whose lanes are drawn. (default: the newest committed one)"),
    ] = None,
    coordinator: Url = DEFAULT_URL,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Draw a run: the funnel of its rounds, its metrics, and what each device did in one round.

    Of a secure run it draws how many devices came to each exchange, since nobody knows what one device did. The same
    data give the same file; text stays text in .svg and .pdf.
    """
    from coordinator.pictures.run_figure import FORMATS, PicturedRun, has_secure_rounds, write

    file = out if out is not None else Path(f"{run}.svg")
    if file.suffix.lower() not in FORMATS:
        fail(f"The picture {file} must end in {', '.join([*FORMATS][:-1])} or {[*FORMATS][-1]}.")
    if not file.absolute().parent.is_dir():
        fail(f"There is no folder {file.parent} for the picture.")
    with asking(coordinator, key_file) as client:
        view = client.run(run)
        rounds = every_round(client, run)
        chosen = _chosen(rounds) if round_ is None else client.round(run, round_)
        lanes = None if chosen is None else _lanes(client, run, chosen)
        if round_ is not None and (lanes is None or lanes.secure):
            fail(f"Round {round_} has no lanes: {lanes.secure if lanes is not None else 'it selected no devices'}")
        found = PicturedRun(view=view, rounds=rounds, metrics=every_metric(client, run), round=chosen, lanes=lanes)
    write(found, file)
    if as_json:
        say_json({"run": run, "file": str(file), "rounds": len(rounds), "lanes_of": chosen.round if chosen else None})
    else:
        shown = "with the exchanges of its secure rounds"
        if chosen is not None:
            shown = f"with the lanes of round {chosen.round}"
        elif not has_secure_rounds(view):
            shown = "without lanes, as no round has selected devices"
        count = f"{len(rounds)} round" + ("" if len(rounds) == 1 else "s")
        say(f"Wrote {count} of {run}, {shown}, to {file}.")


def _chosen(rounds: list[RoundView]) -> RoundView | None:
    """The round whose lanes are drawn: the newest that was committed, else the newest that selected devices; None where
    the newest is secure, or there is none."""
    drawn = [one for one in rounds if one.kind != "datacenter" and one.funnel.selected]
    newest = next((one for one in reversed(drawn) if one.status == "committed"), drawn[-1] if drawn else None)
    return None if newest is None or newest.kind == "secure" else newest


def _lanes(client: OperatorClient, run: str, chosen: RoundView) -> LanesView | None:
    if chosen.kind == "datacenter":
        return None
    return client.insight.lanes(run, chosen.round)
