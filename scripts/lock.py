"""Write `requirements/lock.txt`: one exact version of everything, resolved together for Python 3.11 and newer.

Run by `make lock` inside `.venv`, where torch already lies: what torch itself needs is resolved with the rest, while
torch and the CUDA libraries of its GPU builds stay out of the lock (see scripts/install.py). Versions in the lock are
reused where they still fit; `make lock UPGRADE=1` takes the newest.

Packages of the lock that ask for torch themselves are resolved as if they did not: an override takes torch away.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from pip_settings import uv_environment

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements" / "lock.txt"
NO_TORCH = 'torch ; python_version < "0"'
OWN_BUILDS = re.compile(r"(torch\b|quorate|nvidia-|cuda-|triton)")


def requirements() -> list[str]:
    """Return what the project, its extras, its build and torch ask for, without torch and the project itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    for extra in project["project"]["optional-dependencies"].values():
        wanted.extend(extra)
    wanted.extend(line for line in importlib.metadata.requires("torch") or [] if "extra ==" not in line)
    return sorted({line for line in wanted if not OWN_BUILDS.match(line)})


def main() -> None:
    """Resolve and write the lock; leave it alone when that fails."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "-", "--universal", "--python-version", "3.11"]
    command += ["--custom-compile-command", "make lock", "--output-file", str(LOCK), "--quiet"]
    if os.environ.get("UPGRADE"):
        command.append("--upgrade")
    wanted = "\n".join(requirements())
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as override:
        override.write(NO_TORCH + "\n")
        override.flush()
        command += ["--override", override.name]
        done = subprocess.run(
            command, input=wanted, text=True, check=False, env=uv_environment(sys.executable), stdout=subprocess.DEVNULL
        )
    if done.returncode:
        sys.exit("The requirements do not resolve together: the lock is as it was, and uv's words above say why.")
    pins = sum("==" in line for line in LOCK.read_text().splitlines())
    print(f"{LOCK.relative_to(ROOT)} pins {pins} packages.")


if __name__ == "__main__":
    main()
