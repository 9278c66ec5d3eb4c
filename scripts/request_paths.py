"""How many files and functions of ours one request passes: ``python -m scripts.request_paths [--functions]``.

The requests go through the real ASGI application to a coordinator in memory, and the round that they belong to is
performed in between without being counted. Every call of a Python function is seen by ``sys.setprofile``, in all
threads that serve the request. Functions are counted by file and name, those of ``client_sdk`` and ``coordinator``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from client_sdk.flower.work import node_id
from client_sdk.protocol.flower import CreateFlowerRun, FlowerApp, FlowerMessage, FlowerPoll, PushMessages
from client_sdk.protocol.names import Route
from tests.coordinator.served import Served
from tests.coordinator.service.test_replays import UPDATE, Recording, check_in
from tests.coordinator.service.wire import Sent, signed

ROOT = Path(__file__).resolve().parents[1]
OURS = tuple(f"{ROOT / room}/" for room in ("client_sdk", "coordinator"))


class Counter:
    """The functions that were called while ``counting``, as (file, name)."""

    def __init__(self) -> None:
        self.counting = False
        self.seen: set[tuple[str, str]] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if self.counting and event == "call" and code.co_filename.startswith(OURS):
            self.seen.add((code.co_filename, code.co_qualname))

    def of(self, work: Callable[[], Any]) -> set[tuple[str, str]]:
        self.seen, self.counting = set(), True
        try:
            work()
        finally:
            self.counting = False
        return self.seen


def masked_vector(counter: Counter) -> set[tuple[str, str]]:
    """The first vector of a round of six devices."""
    world, found = Served(), set[tuple[str, str]]()
    try:
        tell = world.tell

        def watched(phone: Any, message: Any, **changes: Any) -> Any:
            if message.stage != "mask" or found:
                return tell(phone, message, **changes)
            answers: list[Any] = []
            found.update(counter.of(lambda: answers.append(tell(phone, message, **changes))))
            return answers[0]

        world.tell = watched
        world.secure_run()
        world.begin()
        world.play()
        return found
    finally:
        world.close()


def plain(counter: Counter) -> dict[str, set[tuple[str, str]]]:
    """The check-in of one of four devices, and the first update of their round."""
    made = Recording()
    try:
        made.cohort()
        number = made.world.cohort()[0]
        made.world.settle()
        sent = signed(made.world.keys[number], "PUT", UPDATE, at=made.world.clock.at, body=made.world.body(number))
        update = counter.of(lambda: made.wire.send(sent))
        other = signed(made.world.keys[3], "POST", Route.CHECK_IN, check_in(), at=made.world.clock.at)
        return {"check-in": counter.of(lambda: made.wire.send(other)), "update": update}
    finally:
        made.wire.close()


def flower_reply(counter: Counter) -> set[tuple[str, str]]:
    """The reply to a message of a Flower run."""
    made, content, reply = Recording(), b"a message", b"a reply"
    world, wire, digest = made.world, made.wire, hashlib.sha256(b"a message").hexdigest()
    owner = {"Authorization": f"Bearer {world.coordinator.access.keys.create_owner('a script', '').text}"}
    app = FlowerApp(name="acme/paths", version="1.0.0", digest="d" * 64)
    message = FlowerMessage(
        message="a" * 64, node=node_id(world.rows[0].device), content=digest, kind="train", group="1", ttl_s=60.0
    )

    def operator(method: str, path: str, body: bytes, kind: str = "application/json") -> None:
        answer = wire.send(Sent(method, path, {**owner, "Content-Type": kind}, body))
        if answer.status_code >= 400:
            raise SystemExit(answer.text)

    def device(method: str, path: str, body: bytes) -> Sent:
        return signed(world.keys[0], method, path, at=world.clock.at, body=body)

    run = "paths"
    poll = FlowerPoll(apps=(app,), hold_s=0).model_dump_json().encode()
    try:
        operator("POST", Route.FLOWER_RUNS, CreateFlowerRun(run=run, app=app).model_dump_json().encode())
        wire.send(device("POST", Route.FLOWER_TASKS, poll))
        path = Route.FLOWER_CONTENT.format(run=run, digest=digest)
        operator("PUT", path, content, "application/vnd.quorate.flower-records")
        pushed = PushMessages(messages=(message,)).model_dump_json().encode()
        operator("POST", Route.FLOWER_MESSAGES.format(run=run), pushed)
        wire.send(device("POST", Route.FLOWER_TASKS, poll))
        sent = device("PUT", Route.FLOWER_REPLY.format(run=run, message=message.message), reply)
        answers: list[Any] = []
        found = counter.of(lambda: answers.append(wire.send(sent)))
        if answers[0].status_code >= 400:
            raise SystemExit(answers[0].text)
        return found
    finally:
        wire.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--functions", action="store_true", help="list the files with their functions")
    parser.add_argument("--json", action="store_true")
    chosen, counter = parser.parse_args(), Counter()
    threading.setprofile(counter)
    sys.setprofile(counter)
    found = {**plain(counter), "masked vector": masked_vector(counter), "Flower reply": flower_reply(counter)}
    sys.setprofile(None)
    counts = {name: {"files": len({file for file, _ in one}), "functions": len(one)} for name, one in found.items()}
    if chosen.json:
        print(json.dumps(counts))
        return
    for name, one in found.items():
        print(f"{name:14} {counts[name]['files']:4} files {counts[name]['functions']:5} functions")
        if chosen.functions:
            for file in sorted({file for file, _ in one}):
                names = ", ".join(sorted(function for path, function in one if path == file))
                print(f"    {Path(file).relative_to(ROOT)}: {names}")


if __name__ == "__main__":
    main()
