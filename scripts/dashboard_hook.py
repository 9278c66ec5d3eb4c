"""The hook of hatchling: wheel and sdist carry the dashboard's page, which is built here where it is not current.

Without Node.js they are made without the page, with a notice, also where the page of older sources lies there: it may
not go with the API. An editable install takes the page from the checkout.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class DashboardHook(BuildHookInterface[Any]):
    """Builds the page before files are collected."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        builder = _builder(Path(self.root))
        try:
            if builder.Dashboard(Path(self.root)).build(builder.find_node()):
                self.app.display_info("built the dashboard's page")
            build_data["artifacts"].append("/dashboards/built")
        except builder.CannotBuild as error:
            self.app.display_warning(f"{error}\nThis package is made without the dashboard's page.")


def _builder(root: Path) -> Any:
    """The module ``dashboard.py`` beside this file: hatchling loads hooks by their path, not from a package."""
    spec = importlib.util.spec_from_file_location("quorate_dashboard_builder", root / "scripts" / "dashboard.py")
    if spec is None or spec.loader is None:
        raise ImportError("scripts/dashboard.py is not there")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
