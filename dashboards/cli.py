"""The command of ``quorate`` that shows the dashboard of a coordinator somewhere else. ``client_sdk.cli`` finds ``app``
by its entry point."""

from __future__ import annotations

from typing import Annotated

import typer

from client_sdk.terminal import DEFAULT_URL, ErrorsAsSentences, Json, KeyFile, Url, fail, note, show_answer

app = typer.Typer(cls=ErrorsAsSentences, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def _commands() -> None:
    """The dashboard."""


@app.command(epilog="Example: quorate dashboard --coordinator https://fl.example.org")
def dashboard(
    coordinator: Url = DEFAULT_URL,
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port on this machine; 0: any free one.")] = 8471,
    login: Annotated[
        bool, typer.Option("--login", help="Print a one-time link to a coordinator on this machine, and serve nothing.")
    ] = False,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Serve the dashboard on this machine, for a coordinator that is somewhere else. Ctrl-C ends it.

    It answers on 127.0.0.1 only, passes requests on to that one coordinator, and verifies its certificate. You log in
    with an API key of the coordinator. `quorate serve` has the same page at its own address; `--login` prints a link
    that logs one browser in there, within five minutes.
    """
    if login:
        from client_sdk.http.operator import OperatorClient

        with OperatorClient(coordinator, key_file=key_file) as operator:
            link = operator.login_link()
        show_answer({"kind": "login", "link": link}, link, as_json=as_json)
        return
    from client_sdk.http.transport import trust
    from coordinator.service.process import bind
    from dashboards.proxy import PageServer, create_proxy, why_silent
    from dashboards.site import page

    shown = page()
    if shown is None:
        fail(
            "This installation has no page: there was no Node.js when it was made. Install Node.js, then Quorate again."
        )
    listener = bind("127.0.0.1", port)
    taken = listener.getsockname()[1]
    tls = trust()
    proxied = create_proxy(coordinator, taken, shown, tls)
    silence = why_silent(coordinator, tls)
    if silence:
        note(f"{coordinator} does not answer now: {silence}. The page works as soon as it does.")
    url = f"http://127.0.0.1:{taken}/"

    def tell() -> None:
        text = f"The dashboard of {coordinator} is at {url}. Ctrl-C ends it."
        show_answer({"kind": "serving", "url": url, "coordinator": coordinator}, text, as_json=as_json)

    PageServer(proxied, listener, tell).run()


if __name__ == "__main__":
    app()
