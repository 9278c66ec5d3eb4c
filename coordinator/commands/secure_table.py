"""Prints the secure rounds of a run, exchange by exchange, and what the coordinator could see of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from client_sdk.protocol.operators import ExchangeView, RoundView, SecureView
from client_sdk.terminal import say
from coordinator.commands.text_tables import TextTable, show_table


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
    summed = came.get("mask", 0)
    if not secure.opened:
        return (
            "the coordinator saw which devices sent which messages, when and how long; it could see no update and no "
            "sum of updates."
        )
    recovered = came.get("share", 0) - summed
    gone = f" {recovered} vanished before they masked, and their masks were removed from the sum." if recovered else ""
    return (
        f"the coordinator saw the sum of {summed} updates, its total weight {view.weight}, and which devices are in "
        f"it; it could see no single update, and no sum of fewer, as long as no more devices collude than the plan "
        f"allows for.{gone}"
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
