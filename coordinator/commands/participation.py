"""``quorate devices --run RUN``: who takes part in a run, and who is not heard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from client_sdk.terminal import say, say_json
from coordinator.commands.sheets import Sheet, show_sheet

if TYPE_CHECKING:
    from client_sdk.http.operator import OperatorClient

_PAGE = 1000


def show_participation(client: OperatorClient, run: str, *, as_json: bool) -> None:
    """A line for each device, the least counted first; then in which lateness is concentrated."""
    found = client.participation(run, limit=_PAGE)
    devices = list(found.page)
    while len(devices) < found.devices and (more := client.participation(run, skip=len(devices), limit=_PAGE).page):
        devices += more
    if as_json:
        say_json(found.changed(page=devices))
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
    show_sheet(Sheet(columns, rows, "No device yet.", least=("refused", "withdrawn", "reported")))
    say(f"From round {found.from_round} on, {found.never_counted} of {found.devices} devices never counted.")
    if found.lateness:
        say(f"{found.lateness}: see docs/selection.md.")
