"""The coordinator's commands of ``quorate``, by theme in files under ``commands/``.

``client_sdk.cli`` finds ``app`` by entry point. The import is fast: a command imports what it needs when it runs.
"""

from __future__ import annotations

import typer

from client_sdk.terminal import ErrorsAsSentences
from coordinator.commands import authority, keys, plans, report, runs, watch
from coordinator.commands.serve import serve
from coordinator.commands.verify import verify

app = typer.Typer(cls=ErrorsAsSentences, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

app.command(epilog="Example: quorate serve --data quorate-data --port 8470")(serve)
app.add_typer(plans.app, name="plan")
app.add_typer(runs.app, name="run")
app.command(epilog="Example: quorate status mnist")(watch.status)
app.command(epilog="Example: quorate rounds mnist")(watch.rounds)
app.command(epilog="Example: quorate metrics mnist --json")(watch.metrics)
app.command(epilog="Example: quorate plot mnist --out mnist.pdf")(watch.plot)
app.add_typer(report.app, name="report")
app.command(epilog="Example: quorate devices")(watch.devices)
app.command(epilog="Example: quorate events mnist --follow")(watch.events)
app.add_typer(runs.checkpoints, name="checkpoint")
app.add_typer(keys.workers, name="worker")
app.add_typer(authority.app, name="authority")
app.add_typer(keys.app, name="keys")
app.command(epilog="Example: quorate audit")(keys.audit)
app.command(epilog="Example: quorate verify quorate-data")(verify)


@app.callback()
def _commands() -> None:
    """Run a coordinator and operate its runs."""


if __name__ == "__main__":
    app()
