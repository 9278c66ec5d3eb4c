"""The hook of hatchling: packages carry the dashboard's page, and the wheel the compiled loops; both are made here.

The page (``dashboard.py``) is built where it is not current. Without Node.js wheel and sdist are made without it, with
a notice, also where the page of older sources lies there: it may not go with the API. An editable install takes the
page from the checkout.

The loops (``compiling.py``) are compiled for wheels and editable installs. A wheel with them is for this platform and
any Python (``py3-none-PLATFORM``). Without a compiler, and with QUORATE_PURE_WHEEL=1, it is for all platforms, and
NumPy does the work.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class BuildHook(BuildHookInterface[Any]):
    """Makes what is not in git before files are collected."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":
            self._page(build_data)
        if self.target_name == "wheel" and os.environ.get("QUORATE_PURE_WHEEL", "0") in ("", "0"):
            self._loops(version, build_data)

    def _page(self, build_data: dict[str, Any]) -> None:
        builder = script(Path(self.root), "dashboard")
        try:
            if builder.Dashboard(Path(self.root)).build(builder.find_node()):
                self.app.display_info("built the dashboard's page")
            build_data["artifacts"].append("/dashboards/built")
        except builder.CannotBuild as error:
            self.app.display_warning(f"{error}\nThis package is made without the dashboard's page.")

    def _loops(self, version: str, build_data: dict[str, Any]) -> None:
        compiling = script(Path(self.root), "compiling")
        try:
            library = compiling.compiled(Path(self.root))
        except (compiling.CannotCompile, OSError) as error:
            self.app.display_warning(f"{error}\nThis package is made without compiled loops: NumPy does their work.")
            return
        if version != "editable":
            build_data["artifacts"].append(f"/{library.relative_to(self.root)}")
            build_data["pure_python"] = False
            # Of this machine: what a wheel for older ones is called (manylinux), it must be built for.
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def script(root: Path, name: str) -> Any:
    """A module beside this file: hatchling loads hooks by their path, not from a package."""
    spec = importlib.util.spec_from_file_location(f"quorate_{name}", root / "scripts" / f"{name}.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"scripts/{name}.py is not there")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
