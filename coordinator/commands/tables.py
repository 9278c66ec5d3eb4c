"""The views of runs and rounds as tables and lines, and times as text."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Sequence

from client_sdk.protocol.operators import FlowerSummary, RoundView, RunView
from client_sdk.terminal import say
from coordinator.commands.text_tables import TextTable, show_table

COULD_FORGE = "this coordinator has the authority's key itself (--dev-authority), so it could make devices up"


def print_runs(runs: Iterable[RunView]) -> None:
    """One line for each run."""
    runs = list(runs)
    show_table(runs_table(runs))
    _say_who_could_forge([f"run {view.run}" for view in runs if view.authority == "inside"])


def runs_table(runs: Iterable[RunView]) -> TextTable:
    """One row for each run."""
    columns = ("run", "status", "phase", "round", "committed", "selected", "reported", "version", "why")
    rows = [
        (
            view.title,
            view.status,
            view.phase,
            view.round,
            None if view.flower is not None else f"{view.rounds_committed} of {view.rounds_wanted}",
            view.funnel.selected,
            view.funnel.reported,
            None if view.flower is not None else view.version,
            f"not handled: {view.trouble}"
            if view.trouble
            else "; ".join(filter(None, (view.reason, view.stalled))) or None,
        )
        for view in runs
    ]
    empty = "No runs yet. Start one: quorate run create plan.toml --init model.safetensors"
    return TextTable(columns, rows, empty, words="why", least=("version", "selected", "reported", "phase"))


def print_run(view: RunView, *, plan: bool = False) -> None:
    """A run in a few lines. ``plan``: with its plan as JSON."""
    funnel = view.funnel
    say(f"{view.title} is {view.status}" + (f": {view.reason}" if view.reason else ""))
    if view.trouble:
        say(f"  not handled {view.trouble}")
    if view.exhausted:
        say(f"  exhausted   {view.exhausted}")
    if view.devices_spent:
        say(f"  spent       {who_is_spent(view)}")
    for device, until in view.barred.items():
        say(f"  barred      {device}, until round {until}")
    if view.stalled:
        say(f"  stalled     {view.stalled}")
    for digest in view.damaged:
        say(f"  damaged     {digest}: store its right bytes again")
    for digest in view.repaired:
        say(f"  repaired    {digest} was damaged; its right bytes are stored again")
    if view.flower is not None:
        _print_flower(view, view.flower)
        return
    for device in view.shared_identities:
        say(f"  identity    two processes use that of {device}: its folder was copied")
    where = ", in the datacenter" if view.kind == "datacenter" and view.phase != "idle" else ""
    say(
        f"  rounds      {view.rounds_committed} of {view.rounds_wanted} committed; "
        f"round {view.round} is {view.phase}{where}"
    )
    say(
        f"  devices     {funnel.waiting} waited, {funnel.selected} selected, {funnel.training} training, "
        f"{funnel.reported} reported, {funnel.late} late, {funnel.dropped} dropped, {funnel.withdrawn} withdrawn, "
        f"{funnel.refused} refused"
    )
    say(f"  checkpoint  version {view.version}, {view.checkpoint}")
    say(f"  created     {moment(view.created_at)}" + (f", from {view.origin}" if view.origin else ""))
    if view.authority == "inside":
        say(f"  authority   inside: {COULD_FORGE}")
    if plan:
        say(f"  plan        {view.plan_digest}")
        say(json.dumps(view.plan, indent=2))


def _print_flower(view: RunView, flower: FlowerSummary) -> None:
    funnel = view.funnel
    say(f"  app         {flower.app} {flower.version}, a Flower app: its ServerApp decides about rounds and models")
    say(f"  messages    {flower.messages} pushed, {flower.replies} replies, {flower.errors} errors")
    say(
        f"  round       {view.round} ({view.phase}): {funnel.selected} messages, {funnel.training} delivered, "
        f"{funnel.reported} replies, {funnel.refused} errors, {funnel.dropped} expired"
    )
    say(f"  created     {moment(view.created_at)}")


def who_is_spent(view: RunView) -> str:
    """How many devices can contribute to the run's checkpoint no more, as a clause."""
    return (
        f"{view.devices_spent} of {view.devices_registered} registered devices have signed on this checkpoint or have "
        "declined it, and contribute to it no more"
    )


def print_rounds(rounds: Iterable[RoundView]) -> None:
    """One line for each round."""
    rounds = list(rounds)
    show_table(rounds_table(rounds))
    _say_who_could_forge([f"round {view.round}" for view in rounds if view.authority == "inside"])


def rounds_table(rounds: Iterable[RoundView]) -> TextTable:
    """One row for each round."""
    columns = (
        "round", "kind", "status", "selected", "reported", "late", "dropped", "withdrawn", "refused",
        "seconds", "MB in", "why",
    )  # fmt: skip
    rows = [
        (
            view.round,
            view.kind,
            view.status,
            view.funnel.selected,
            view.funnel.reported,
            view.funnel.late,
            view.funnel.dropped,
            view.funnel.withdrawn,
            view.funnel.refused,
            None if view.closed_at is None else f"{view.closed_at - view.opened_at:.1f}",
            f"{view.bytes_in / 1e6:.1f}",
            _why(view),
        )
        for view in rounds
    ]
    empty = "No rounds yet: a round opens when the run is created, and selects devices when they check in."
    least = ("refused", "withdrawn", "late", "kind", "MB in", "dropped", "seconds")
    return TextTable(columns, rows, empty, words="why", least=least)


def _say_who_could_forge(where: Sequence[str]) -> None:
    if where:
        names = where[0] if len(where) == 1 else f"{where[0]} and {len(where) - 1} more"
        say(f"In {names} {COULD_FORGE}.")


def _why(view: RoundView) -> str | None:
    """Why a round has its kind, the progress of its worker, why it ended, and why devices left it."""
    parts = [view.because, f"group {view.group}" if view.group else ""]
    if view.lease is not None:
        metrics = "".join(f", {name} {_number(value)}" for name, value in view.lease.metrics.items())
        parts.append(f"{view.lease.worker} (lease {view.lease.attempt}): step {view.lease.step}{metrics}")
    elif view.kind == "datacenter" and view.status == "open":
        parts.append("no worker has it yet: 'quorate worker list' shows the workers; each one logs what it lacks")
    if view.missed > (view.status == "open"):  # of an open round's first one the reason tells
        often = "once" if view.missed == 1 else f"{view.missed} times, the last time"
        parts.append(f"too few devices {often} at {moment(view.missed_at)}")
    treated = [] if view.treatment is None else view.treatment.words(view.funnel.reported)
    return "; ".join(part for part in (*parts, view.reason, *treated, view.departures) if part) or None


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def moment(at: float | None) -> str:
    """Unix seconds as this machine's local time; ``never`` for None."""
    if at is None:
        return "never"
    return datetime.datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
