"""Which device may serve a Flower run: it has the run's app, with equal name, version and hash, and its policy lets it
take part in plain runs. The reason is a sentence for the device's owner."""

from __future__ import annotations

from collections.abc import Iterable

from client_sdk.protocol.flower import FlowerApp, FlowerPoll
from coordinator.store.declared import Json
from coordinator.store.flower_rows import FlowerRunRow
from coordinator.store.rows import DeviceRow

SECURE_ONLY = (
    "its policy is 'secure only', and Flower runs are plain: the coordinator and the ServerApp see its replies"
)
_SHORT = 12
"""Digits of a hash that people are shown."""


def app_of(run: FlowerRunRow) -> FlowerApp:
    return FlowerApp(name=run.app, version=run.version, digest=run.digest)


def facts_of(poll: FlowerPoll) -> Json:
    """What a device's row has of its poll. The same apps in any order are the same facts."""
    apps = sorted(poll.apps, key=lambda app: (app.name, app.version, app.digest))
    return {"apps": [app.model_dump() for app in apps], "secure_only": poll.secure_only}


def said_by(node: DeviceRow) -> FlowerPoll:
    """What a node said of itself when it polled last."""
    return FlowerPoll.model_validate(node.facts)


def ineligible(wanted: FlowerApp, said: FlowerPoll) -> str:
    """Why a device that says this of itself cannot serve a run of the ``wanted`` app; empty: it can."""
    if said.secure_only:
        return SECURE_ONLY
    named = [app for app in said.apps if app.name == wanted.name]
    if not named:
        has = ", ".join(sorted({app.name for app in said.apps}))
        return f"the app is {has}, and the run needs {wanted.name}"
    versions = [app for app in named if app.version == wanted.version]
    if not versions:
        return f"{wanted.name} has version {named[0].version}, and the run needs {wanted.version}"
    if all(app.digest != wanted.digest for app in versions):
        has, needs = versions[0].digest[:_SHORT], wanted.digest[:_SHORT]
        return f"the files of {wanted.name} {wanted.version} have the hash {has}, and the run needs {needs}"
    return ""


def serves_no_run(running: Iterable[FlowerRunRow], said: FlowerPoll) -> str:
    """Why a device that says this of itself can serve none of these runs that go on; empty: it can serve one, or there
    is none."""
    reasons = []
    for row in running:
        why = ineligible(app_of(row), said)
        if not why:
            return ""
        reasons.append(f"run {row.run}: {why}")
    return "; ".join(reasons)
