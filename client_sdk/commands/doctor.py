"""``quorate doctor``: what is here, what is missing, and the next command; works with the barest install."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Annotated, Literal

import typer

from client_sdk.commands.joining import FILES, Target
from client_sdk.extensions import installed_version
from client_sdk.imports import extras
from client_sdk.terminal import Json, missing_module, sentence_of, show_answer

ROOM_BYTES = 10**9
"""Free bytes below which a disk is called full: a demo writes some hundred MB."""
_ENABLES = {
    "coordinator": "quorate serve --dev-authority",
    "dashboards": "quorate dashboard",
    "datacenter": "quorate datacenter train --help",
    "datasets": "quorate device --help",
    "flower": "quorate flower run --help",
    "otel": "OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318 quorate serve",
    "plot": "quorate plot --help",
    "ray": "quorate simulate --help",
    "simulation": "quorate demo",
    "testing": "pytest",
    "torch": "quorate new my-project",
}
"""Extra -> a command that needs it."""


@dataclass(frozen=True)
class Check:
    """One line of the answer."""

    check: str
    state: Literal["ok", "missing", "wrong"]
    """``missing``: it is optional. ``wrong``: something that you will need does not work."""
    found: str
    next: str
    """The command that uses what is there, or that mends what is not."""


def doctor(
    data: Annotated[str | None, typer.Option("--data", metavar=FILES, help="Data to load as a device would.")] = None,
    target: Target = None,
    as_json: Json = False,
) -> None:
    """Look whether Quorate can work here: Python, extras, port, data and disk, each with the next command.

    Exit code 1 where something is wrong; an extra that is not installed is none of that.

    Example: quorate doctor --data mine.csv --target outcome
    """
    findings: list[Check] = []
    for finding in _findings(data, target):
        findings.append(finding)
        lines = (f"{finding.state:8} {finding.check:18} {finding.found}", f"{'':24}-> {finding.next}")
        show_answer({"kind": "check", **asdict(finding)}, *lines, as_json=as_json)
    if any(finding.state == "wrong" for finding in findings):
        raise typer.Exit(1)


def _findings(data: str | None, target: str | None) -> Iterator[Check]:
    yield _python()
    yield _on_path()
    yield from _extras()
    yield _loops()
    yield _port()
    yield _data(data, target)
    yield _folder(Path(os.environ.get("QUORATE_DATA", "quorate-data")))
    for folder in dict.fromkeys((Path.cwd(), Path(tempfile.gettempdir()))):
        yield _disk(folder)


def _python() -> Check:
    found = f"{platform.python_version()} in {sys.prefix}"
    if sys.prefix == sys.base_prefix:
        return Check("Python", "ok", f"{found}, which is no environment of its own", "python3 -m venv .venv")
    return Check("Python", "ok", found, "quorate --help")


def _on_path() -> Check:
    """Whether the word ``quorate`` starts the environment in which this runs."""
    bin_ = Path(sys.executable).parent
    there = shutil.which("quorate")
    if there is not None and Path(there).resolve().parent == bin_.resolve():
        return Check("PATH", "ok", there, "quorate --version")
    activate = bin_ / "activate"
    way = f"source {activate}" if activate.exists() else f'export PATH="{bin_}:$PATH"'
    if there is None:
        return Check("PATH", "missing", "quorate is not on the PATH of this shell", way)
    return Check("PATH", "wrong", f"the PATH has another quorate: {there}", way)


def _loops() -> Check:
    """Whether updates are added by compiled loops."""
    from client_sdk.tensors import compiled

    if compiled.loops is not None:
        return Check("exact sum", "ok", "compiled", "quorate device --help")
    found = "NumPy adds, at three times the cost: there was no C compiler when Quorate was installed"
    return Check("exact sum", "missing", found, "pip install --force-reinstall --no-binary quorate quorate")


def _extras() -> Iterator[Check]:
    """What each extra of the installed package asks for, and is not there in that version."""
    try:
        found = {extra: _first(list(extras.lacking(extra).values())) for extra in ("", *extras.extras())}
    except PackageNotFoundError:
        yield Check("quorate", "wrong", "it runs from a folder and is not installed", "pip install .")
        return
    if bare := found.pop(""):
        yield Check("quorate", "wrong", bare, "pip install --upgrade --force-reinstall .")
    else:
        yield Check("quorate", "ok", installed_version(), "quorate device --help")
    for extra, wrong in found.items():
        if wrong:
            yield Check(f"extra {extra}", "missing", wrong, f"pip install '{extras.PACKAGE}[{extra}]'")
        else:
            yield Check(f"extra {extra}", "ok", "installed", _ENABLES.get(extra, "quorate --help"))


def _first(reasons: list[str]) -> str:
    return "; ".join(reasons[:3] + ([f"and {len(reasons) - 3} packages more"] if len(reasons) > 3 else []))


def _port() -> Check:
    """Whether a coordinator can listen, or already does."""
    text = os.environ.get("QUORATE_PORT", "8470")
    port = int(text) if text.isdecimal() else 8470
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as a server that is started again does
        try:
            free.bind(("127.0.0.1", port))
        except OSError as error:
            reason = error.strerror or str(error)
        else:
            return Check("port", "ok", f"{port} is free", "quorate serve --dev-authority")
    if _answers(port):
        url = f"http://127.0.0.1:{port}"
        return Check("port", "ok", f"a coordinator listens on {port}", f"quorate status --url {url}")
    return Check("port", "wrong", f"{port} cannot be had ({reason})", "quorate serve --dev-authority --port 0")


def _answers(port: int) -> bool:
    """Whether a coordinator answers on this port."""
    import httpx2

    try:
        with httpx2.Client(trust_env=False, timeout=3) as http:
            answer = http.get(f"http://127.0.0.1:{port}/healthz")
            return answer.status_code == 200 and isinstance(answer.json(), dict)
    except (httpx2.HTTPError, ValueError):
        return False


def _data(source: str | None, target: str | None) -> Check:
    """The data that was named, loaded; else which data sets are offered."""
    from client_sdk import data

    if source is None:
        names = data.names()
        first = "mnist" if "mnist" in names else names[0] if names else "mine.csv --target COLUMN"
        return Check("data", "ok", f"offered: {', '.join(names) or 'none'}", f"quorate doctor --data {first}")
    named = source if target is None else f"{source} --target {target}"
    try:
        found = data.load_data(data.with_target(source, target))
    except ModuleNotFoundError as error:
        return Check("data", "wrong", missing_module(error.name or ""), f"quorate doctor --data {named}")
    except Exception as error:  # noqa: BLE001  (data sets of packages may raise anything)
        return Check("data", "wrong", sentence_of(error), f"quorate doctor --data {named}")
    x, y = found.train.x, found.train.y
    held = "" if found.test is None else f", {len(found.test)} held out"
    shape = " x ".join(map(str, x.shape[1:])) or "1"
    return Check("data", "ok", f"{source}: {len(x)} examples of {shape} ({x.dtype}), targets {y.dtype}{held}",
                   f"quorate device --data {named}")  # fmt: skip


def _folder(folder: Path) -> Check:
    """The data folder of a coordinator that is started here."""
    if not folder.exists():
        return Check("data folder", "ok", f"{folder} is not there yet", "quorate serve --dev-authority")
    if not folder.is_dir() or not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return Check("data folder", "wrong", f"{folder} is no folder that you can write to", f"ls -ld {folder}")
    return Check("data folder", "ok", f"{folder} is there", f"quorate verify {folder}")


def _disk(folder: Path) -> Check:
    free = shutil.disk_usage(folder).free
    found = f"{folder}: {free / 1e9:.1f} GB are free"
    if not os.access(folder, os.W_OK):
        return Check("disk", "wrong", f"{folder} cannot be written", f"ls -ld {folder}")
    return Check("disk", "ok" if free >= ROOM_BYTES else "wrong", found, f"df -h {folder}")
