"""Which device may serve a Flower run: it has the run's app, with equal name, version and hash, and its policy lets it
take part in plain runs. The reason is a sentence for the device's owner."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from client_sdk.protocol.flower import FlowerApp
from coordinator.store.flower_rows import FlowerRunRow

SECURE_ONLY = (
    "its policy is 'secure only', and Flower runs are plain: the coordinator and the ServerApp see its replies"
)
_SHORT = 12
"""Digits of a hash that people are shown."""


def app_of(run: FlowerRunRow) -> FlowerApp:
    return FlowerApp(name=run.app, version=run.version, digest=run.digest)


def apps_as_text(apps: Sequence[FlowerApp]) -> str:
    """Canonical JSON: the same apps in any order are the same text."""
    rows = sorted([app.name, app.version, app.digest] for app in apps)
    return json.dumps(rows, separators=(",", ":"))


def apps_of_text(text: str) -> list[FlowerApp]:
    return [FlowerApp(name=name, version=version, digest=digest) for name, version, digest in json.loads(text)]


def ineligible(wanted: FlowerApp, apps: Sequence[FlowerApp], *, secure_only: bool) -> str:
    """Why a device with these apps cannot serve a run of the ``wanted`` one; empty: it can."""
    if secure_only:
        return SECURE_ONLY
    named = [app for app in apps if app.name == wanted.name]
    if not named:
        has = ", ".join(sorted({app.name for app in apps}))
        return f"the app is {has}, and the run needs {wanted.name}"
    versions = [app for app in named if app.version == wanted.version]
    if not versions:
        return f"{wanted.name} has version {named[0].version}, and the run needs {wanted.version}"
    if all(app.digest != wanted.digest for app in versions):
        has, needs = versions[0].digest[:_SHORT], wanted.digest[:_SHORT]
        return f"the files of {wanted.name} {wanted.version} have the hash {has}, and the run needs {needs}"
    return ""


def serves_no_run(running: Iterable[FlowerRunRow], apps: Sequence[FlowerApp], *, secure_only: bool) -> str:
    """Why a device can serve none of these runs that go on; empty: it can serve one, or there is none."""
    reasons = []
    for row in running:
        why = ineligible(app_of(row), apps, secure_only=secure_only)
        if not why:
            return ""
        reasons.append(f"run {row.run}: {why}")
    return "; ".join(reasons)
