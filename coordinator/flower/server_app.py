"""One start of a ServerApp: its run at the coordinator, its Context with the saved state, and how it ends."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event, Lock

from flwr.app import Context, RecordDict

from client_sdk.flower import flwr_private
from client_sdk.flower.app import AppFolder, load_server_app
from client_sdk.flower.records import decode
from client_sdk.http.flower import FlowerOperator
from client_sdk.protocol.flower import CreateFlowerRun, EndFlowerRun, FlowerRunView, FlowerState
from client_sdk.protocol.problems import ProblemError, problem
from coordinator.flower.grid import OutgoingContents, QuorateGrid, Quorum
from coordinator.flower.patience import Patience, StillAway
from coordinator.flower.tally import MessagesPushed, Notice, OnServerAppEvent, ReplyTaken, ServerAppEvent, first_line

REASON_LIMIT = 2000
START_WAIT_S = 3.0
"""How long a start waits for a coordinator that does not answer."""
END_WAIT_S = 10.0
"""How long a failed start waits to tell a coordinator that is away."""


class ServerAppRaised(Exception):
    """The app's own code raised. ``frames``: its traceback, shortened to the app's files."""

    def __init__(self, sentence: str, frames: str) -> None:
        super().__init__(sentence)
        self.frames = frames


@dataclass(frozen=True)
class Waits:
    """How long ``send_and_receive`` waits, beside what the ServerApp asks for."""

    quorum: Quorum | None = None
    longest_s: float = float("inf")


class SavedState:
    """The ServerApp's Context.state at the coordinator: saved when it has changed."""

    def __init__(self, link: FlowerOperator, run: FlowerRunView, patience: Patience) -> None:
        self._link, self._run, self._patience = link, run.run, patience
        self._contents = OutgoingContents(lambda content: patience.ask(partial(link.upload, run.run, content)))
        self._saved = run.state
        self._lock = Lock()

    def load(self) -> RecordDict:
        """What the newest start has saved; empty where none has."""
        if self._saved is None:
            return RecordDict()
        return decode(self._patience.ask(partial(self._link.download, self._run, self._saved)))

    def save(self, state: RecordDict) -> None:
        """Save the state, where it differs from what is saved."""
        with self._lock:
            if not state and self._saved is None:
                return
            content = self._contents.store(state)
            if content != self._saved:
                self._patience.ask(partial(self._link.save_state, self._run, FlowerState(content=content)))
                self._saved = content


def run_server_app(
    app: AppFolder,
    request: CreateFlowerRun,
    link: FlowerOperator,
    on_event: OnServerAppEvent,
    *,
    waits: Waits | None = None,
    stop: Event | None = None,
) -> FlowerRunView:
    """Run the app's ServerApp from its beginning to its end; returns the run as it ended.

    Raises AppError where it cannot be loaded, ServerAppRaised where it raises, ProblemError where the coordinator
    refuses a request (of a run that an operator has stopped, for example) or does not answer when it starts.
    """
    waits = waits or Waits()
    server_app = load_server_app(app)
    patience = Patience(lambda text: on_event(Notice(text)), stop=stop)
    run = _created(link, request)
    state, earlier = SavedState(link, run, patience), EarlierStart(run, on_event)

    def tell(event: ServerAppEvent) -> None:
        on_event(event)
        earlier.happened(event)

    flwr_private.create_messages_as(flwr_private.SERVER_NODE, run.number)
    context = Context(
        run_id=run.number,
        node_id=flwr_private.SERVER_NODE,
        node_config={},
        state=state.load(),
        run_config=dict(run.config),
    )
    grid = QuorateGrid(
        link,
        run,
        patience,
        tell,
        quorum=waits.quorum,
        longest_wait_s=waits.longest_s,
        after_push=lambda: state.save(context.state),
    )
    try:
        try:
            server_app(grid=grid, context=context)
        except SystemExit as left:
            if left.code:
                raise
        state.save(context.state)
    except (ProblemError, StillAway):
        raise
    except (Exception, SystemExit) as error:
        raised = _shortened(error, app.folder)
        _end(link, run, "failed", str(raised))
        raise raised from error
    return patience.ask(partial(link.end, run.run, EndFlowerRun(status="finished")))


def _created(link: FlowerOperator, request: CreateFlowerRun) -> FlowerRunView:
    """The run. A coordinator that is not there when somebody begins is a fault to hear of, not one to wait out."""
    silent = Patience(lambda text: None)
    try:
        return silent.ask(partial(link.create, request), until=silent.now() + START_WAIT_S)
    except StillAway as away:
        raise problem("busy", str(away)) from None


def _end(link: FlowerOperator, run: FlowerRunView, status: str, reason: str) -> None:
    """Tell the coordinator that the run has failed; where it is away the run stays as it is."""
    waiting = Patience(lambda text: None)
    request = EndFlowerRun.model_validate({"status": status, "reason": reason[:REASON_LIMIT]})
    try:
        waiting.ask(partial(link.end, run.run, request), until=waiting.now() + END_WAIT_S)
    except (StillAway, ProblemError):
        pass


def _shortened(error: BaseException, folder: Path) -> ServerAppRaised:
    """What the app raised, with the frames of its own files; of all, where none is in its folder."""
    frames = traceback.extract_tb(error.__traceback__)
    home = folder.resolve()
    own = [frame for frame in frames if Path(frame.filename).resolve().is_relative_to(home)] or list(frames)[-3:]
    what = "".join(traceback.format_exception_only(error)).strip()
    text = "".join(["Traceback (the app's own frames, most recent call last):\n", *traceback.format_list(own), what])
    last = own[-1] if own else None
    where = f" (at {Path(last.filename).name}:{last.lineno})" if last is not None else ""
    return ServerAppRaised(
        f"The ServerApp raised {first_line(what).rstrip('.')}{where}. Mend it, and start a new run.", text
    )


class EarlierStart:
    """What people hear about a ServerApp that was started before: how much of it is served again, and where it ends. It
    follows what is pushed until the first message that no earlier start had pushed."""

    def __init__(self, run: FlowerRunView, tell: OnServerAppEvent) -> None:
        """``run``: as it was found when this start began."""
        self._earlier, self._tell = run.messages, tell
        self._known = self._served = 0
        self._over = not self._earlier
        self._lock = Lock()
        if self._earlier:
            tell(
                Notice(
                    f"The run {run.run} was started before and has {self._earlier} messages. As long as the ServerApp "
                    "sends the same ones again, their replies are served, and nobody trains twice."
                )
            )

    def happened(self, event: ServerAppEvent) -> None:
        """Take in what the Grid tells."""
        text = None
        with self._lock:
            if self._over:
                return
            if isinstance(event, ReplyTaken):
                self._served += event.known
            elif isinstance(event, MessagesPushed):
                self._known += event.known
                self._over = event.known < event.messages
                text = self._ended(event) if self._over else None
        if text is not None:
            self._tell(Notice(text))

    def _ended(self, at: MessagesPushed) -> str:
        if self._known >= self._earlier:
            return (
                f"All {self._earlier} messages of the earlier start were sent again and {self._served} replies were "
                "served: the run goes on from there."
            )
        where = f"round {at.group} ({at.kind})" if at.group else f"a message of the kind {at.kind}"
        return (
            f"From {where} on the ServerApp sends something else than before: {self._served} replies of the earlier "
            f"start were served, {self._earlier - self._known} of its messages are not used, and the run goes on anew."
        )
