"""What people hear about a ServerApp that was started before: how much of it is served again, and where it ends."""

from __future__ import annotations

from threading import Lock

from client_sdk.protocol.flower import FlowerRunView
from coordinator.flower.happenings import Happening, MessagesPushed, OnHappening, Remark, ReplyTaken


class EarlierStart:
    """Follows what is pushed until the first message that no earlier start had pushed."""

    def __init__(self, run: FlowerRunView, tell: OnHappening) -> None:
        """``run``: as it was found when this start began."""
        self._earlier, self._tell = run.messages, tell
        self._known = self._served = 0
        self._over = not self._earlier
        self._lock = Lock()
        if self._earlier:
            tell(
                Remark(
                    f"The run {run.run} was started before and has {self._earlier} messages. As long as the ServerApp "
                    "sends the same ones again, their replies are served, and nobody trains twice."
                )
            )

    def happened(self, happening: Happening) -> None:
        """Take in what the Grid tells."""
        text = None
        with self._lock:
            if self._over:
                return
            if isinstance(happening, ReplyTaken):
                self._served += happening.known
            elif isinstance(happening, MessagesPushed):
                self._known += happening.known
                self._over = happening.known < happening.messages
                text = self._ended(happening) if self._over else None
        if text is not None:
            self._tell(Remark(text))

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
