"""A Flower app in a folder: what its pyproject.toml says, its digest, its run's configuration and its components.

Layouts: ``fab-format-version = 1``; the older one without a format version; and the one before it, which has
``[tool.flwr.federations]`` in the pyproject.toml too. That section says where Flower runs the app, so it is left out
here, and out of the digest.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from client_sdk.flower import flwr_private
from client_sdk.protocol.flower import ConfigValue, FlowerApp

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

PROJECT = "pyproject.toml"
T = TypeVar("T")
_OVERRIDE = re.compile(r"\S+?=('[^']*'|\"[^\"]*\"|\S+)")


class AppError(ValueError):
    """An app that cannot be run, or overrides of its configuration that it does not have: what is wrong, and what to
    do, in a sentence."""


@dataclass(frozen=True)
class AppFolder:
    """An app as its folder has it."""

    folder: Path
    app: FlowerApp
    defaults: dict[str, ConfigValue]
    """Its run-config: dotted keys, as ``Context.run_config`` has them."""
    serverapp: str
    """The reference of its ServerApp, ``module:attribute``."""
    clientapp: str

    def run_config(self, overrides: Sequence[str] = ()) -> dict[str, ConfigValue]:
        """The run's configuration, with overrides such as ``lr=0.1 epochs=2`` or the path of a TOML file. Their types
        are those of TOML. Raises AppError for a key that the app does not have."""
        given = _overrides(list(overrides))
        unknown = sorted(set(given) - set(self.defaults))
        if unknown:
            has = ", ".join(sorted(self.defaults)) or "none at all"
            raise AppError(
                f"The app's run-config has no key {unknown[0]!r} (it has {has}): correct the name, or add the key to "
                f"[tool.flwr.app.config] in {PROJECT}."
            )
        return {**self.defaults, **given}


def read_app(folder: Path | str) -> AppFolder:
    """Read the app in ``folder``, without importing it. Raises AppError where it is none."""
    folder = Path(folder)
    config = _project(folder)
    app, project = config["tool"]["flwr"]["app"], config["project"]
    components = app["components"]
    for name in ("serverapp", "clientapp"):
        if name not in components:
            raise AppError(
                f"The app in {folder} has no {name}, and Quorate runs apps that have a serverapp and a clientapp: name "
                f"it in [tool.flwr.app.components] of {PROJECT}."
            )
    name, version = f"{app['publisher']}/{project['name']}", str(project["version"])
    identity = FlowerApp(name=name, version=version, digest=_digest(folder, config))
    return AppFolder(folder, identity, _finite(app.get("config", {})), components["serverapp"], components["clientapp"])


def load_server_app(app: AppFolder) -> ServerApp:
    """Import the app's ServerApp. Raises AppError where it cannot be imported or is something else."""
    from flwr.serverapp import ServerApp

    return _component(app.folder, app.serverapp, ServerApp)


def load_client_app(folder: Path, reference: str) -> ClientApp:
    """Import an app's ClientApp, which ``AppFolder.clientapp`` names, without reading its pyproject.toml: processes of
    nodes load it, and reading takes longer. Raises AppError where it cannot be imported or is something else."""
    from flwr.clientapp import ClientApp

    return _component(folder, reference, ClientApp)


def _project(folder: Path) -> dict[str, Any]:
    path = folder / PROJECT
    if not path.is_file():
        raise AppError(f"There is no {PROJECT} in {folder}: name the folder of a Flower app, such as 'flwr new' makes.")
    try:
        if (text := path.read_text("utf-8")).startswith("\ufeff"):
            raise AppError(f"{path} begins with a byte-order mark: save it as UTF-8 without one.")
        config = tomllib.loads(text)
    except UnicodeDecodeError:
        raise AppError(f"{path} is not in UTF-8: save it as UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        raise AppError(f"{path} cannot be read as TOML: {error}.") from None
    if "flower" in config and "flwr" not in config.get("tool", {}):
        raise AppError(
            f"{path} has the sections of flwr 1.10 and older ([flower]), which newer versions do not read: rename them "
            "to [tool.flwr.app] and [tool.flwr.app.components]."
        )
    try:
        problems = flwr_private.problems_of_config(config)
    except (TypeError, AttributeError, KeyError) as error:  # a table where flwr expects a text, or the reverse
        problems = [f"flwr cannot read it ({type(error).__name__}: {error})"]
    if problems:
        found = "; ".join(" ".join(problem.split()).rstrip(".") for problem in problems)
        raise AppError(f"{path} is not that of a Flower app: {found}.")
    return config


def _digest(folder: Path, config: dict[str, Any]) -> str:
    """SHA-256 over the files that Flower packs. Times, comments of the pyproject.toml and federations do not count."""
    flwr = {key: value for key, value in config["tool"]["flwr"].items() if key != "federations"}
    project = {**config, "tool": {**config["tool"], "flwr": flwr}}
    digest = hashlib.sha256(json.dumps(project, sort_keys=True, default=str).encode())
    try:
        for path, data in flwr_private.packed_files(folder, project):
            digest.update(f"\n{len(path)} {path} {hashlib.sha256(data).hexdigest()}".encode())
    except ValueError as error:
        raise AppError(
            f"flwr would not pack the app in {folder}: {' '.join(str(error).split()).rstrip('.')}."
        ) from None
    return digest.hexdigest()


def _overrides(given: list[str]) -> dict[str, ConfigValue]:
    given = [text for text in given if text.strip()]
    if len(given) != 1 or not given[0].endswith(".toml"):
        for text in given:
            rest = _OVERRIDE.sub("", text).split()
            if rest:
                raise AppError(
                    f"--run-config {text!r}: {rest[0]!r} is not understood; write key=value pairs, as in "
                    "'lr=0.1 name=\"a b\"', or the path of one TOML file."
                )
    try:
        return _finite(flwr_private.parse_overrides(given))
    except FileNotFoundError as error:
        raise AppError(f"--run-config: there is no file {error.filename}.") from None
    except AppError:
        raise
    except ValueError as error:
        raise AppError(f"--run-config: {' '.join(str(error).split())}") from None


def _finite(config: dict[str, Any]) -> dict[str, ConfigValue]:
    flat: dict[str, ConfigValue] = flwr_private.flat_config(config)
    for key, value in flat.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise AppError(f"The run-config's {key} is {value}, which cannot travel: write a finite number.")
    return flat


def _component(folder: Path, reference: str, kind: type[T]) -> T:
    what = f"The app's {kind.__name__} ({reference}, of {folder})"
    try:
        found = flwr_private.load_component(reference, folder, AppError)
    except AppError:
        raise AppError(f"{what} does not exist: correct [tool.flwr.app.components] in {PROJECT}.") from None
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        install = f": install what the app needs (pip install {folder})" if isinstance(error, ImportError) else ""
        raise AppError(f"{what} cannot be imported ({why}){install}.") from error
    if not isinstance(found, kind):
        raise AppError(f"{what} is a {type(found).__name__}: name a {kind.__name__}, or correct {PROJECT}.")
    return found
