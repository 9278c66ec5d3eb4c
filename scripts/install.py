"""Make `.venv`: torch first, then everything that the lock names, then the project itself.

Run by `make install` with any Python 3.11 or newer; needs nothing but the standard library. A stamp in `.venv` keeps
the digest of the files that decide what is installed, so a second call returns at once.

torch stands outside the lock because its builds differ by machine. On Linux without an NVIDIA GPU this takes the CPU
build: from the user's own package sources where these have it, from the index named by TORCH_INDEX_URL where that is
set, and otherwise from where uv knows the CPU builds to be. Only where none of these can be reached it takes the CUDA
build, which works without a GPU too, and says so.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from pip_settings import uv_environment

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / ".installed"
LOCK = ROOT / "requirements" / "lock.txt"
TORCH = ROOT / "requirements" / "torch.txt"
SCRIPTS = tuple(ROOT / "scripts" / f"{name}.py" for name in ("install", "pip_settings", "build_hook", "compiling"))
INPUTS = (ROOT / "pyproject.toml", LOCK, TORCH, *SCRIPTS, ROOT / "client_sdk" / "tensors" / "compiled.c")
PYTHON = str(VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))


class InstallError(Exception):
    """What went wrong, in a sentence with the fix."""


def main() -> None:
    """Bring `.venv` to what the files ask for; change nothing where it is there already."""
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in INPUTS)).hexdigest()
    if STAMP.exists() and STAMP.read_text() == digest and _runs(PYTHON):
        STAMP.touch()
        return
    started = time.monotonic()
    _make_venv()
    _install_torch()
    _install_rest()
    trouble = _run([PYTHON, "-m", "pip", "check"], check=False)
    if trouble.returncode:
        print(f"Some packages do not fit together on this machine:\n{trouble.stdout.strip()}")
    STAMP.write_text(digest)
    print(f"Installed into {VENV.relative_to(ROOT)} in {time.monotonic() - started:.0f} s.")


def _make_venv() -> None:
    if _runs(PYTHON):
        return
    print(f"Making .venv with Python {platform.python_version()}.")
    shutil.rmtree(VENV, ignore_errors=True)
    venv.create(VENV, with_pip=True)


def _install_torch() -> None:
    """Install the pinned torch, the CPU build where there is no GPU, with its own requirements as locked."""
    wanted = TORCH.read_text().split()[0]
    have = _run([PYTHON, "-c", "import importlib.metadata as m; print(m.version('torch'))"], check=False)
    if have.returncode == 0 and have.stdout.strip().split("+")[0] == wanted.partition("==")[2]:
        return
    print(f"Installing {wanted} ...")
    pip = [PYTHON, "-m", "pip", "install", "--quiet", "-c", str(LOCK)]
    index = os.environ.get("TORCH_INDEX_URL")
    if index:
        # Beside the user's own indexes: what torch needs comes from there, and 2.13.0+cpu counts as newer than 2.13.0.
        _run([*pip, "--extra-index-url", index, wanted])
        return
    if platform.system() == "Linux" and not _has_gpu() and _would_bring_cuda([*pip, wanted]):
        _install_uv()
        uv = [PYTHON, "-m", "uv", "pip", "install", "--quiet", "--python", PYTHON]
        cpu_build = [*uv, "--torch-backend", "cpu", "-c", str(LOCK), wanted]
        if _run(cpu_build, check=False, env=uv_environment(PYTHON)).returncode == 0:
            return
        print(
            "There is no GPU here, and your package index offers torch only with CUDA (some gigabytes, works without a "
            "GPU too). To have the CPU build, set TORCH_INDEX_URL to an index that carries it and install again."
        )
    _run([*pip, wanted])


def _install_rest() -> None:
    """Install what is locked, then the project in place; with uv, and with pip where uv cannot."""
    print("Installing the locked packages ...")
    _install_uv()
    environment = uv_environment(PYTHON)
    uv = [PYTHON, "-m", "uv", "pip", "install", "--quiet", "--python", PYTHON]
    pip = [PYTHON, "-m", "pip", "install", "--quiet"]
    # torch lies there already; the constraint holds it where a locked package asks for it too.
    for request in (["-r", str(LOCK), "-c", str(TORCH)], ["--no-deps", "--no-build-isolation", "-e", str(ROOT)]):
        if _run([*uv, *request], check=False, env=environment).returncode:
            _run([*pip, *request])


def _install_uv() -> None:
    _run([PYTHON, "-m", "pip", "install", "--quiet", "-c", str(LOCK), "uv"])


def _would_bring_cuda(install: list[str]) -> bool:
    """Ask pip, without installing anything, whether this torch comes with NVIDIA's libraries."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        _run([*install, "--dry-run", "--ignore-installed", "--report", str(report)])
        names = [item["metadata"]["name"].lower() for item in json.loads(report.read_text())["install"]]
    return any(name.startswith(("nvidia-", "cuda-")) for name in names)


def _has_gpu() -> bool:
    tool = shutil.which("nvidia-smi")
    return tool is not None and _run([tool, "-L"], check=False).returncode == 0


def _runs(python: str) -> bool:
    """Tell whether this is a Python 3.11 or newer with pip, not a link whose target has gone."""
    probe = "import sys, pip; sys.exit(sys.version_info < (3, 11))"
    return Path(python).exists() and _run([python, "-c", probe], check=False).returncode == 0


def _run(
    command: list[str], *, check: bool = True, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command without a terminal; raise InstallError with its last lines when `check` and it failed."""
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, env=env)
    if check and done.returncode:
        last = "\n".join([line for line in done.stderr.splitlines() if not line.startswith("WARNING")][-12:])
        raise InstallError(
            f"{last}\n\nInstalling stopped at: {' '.join(command[1:])}\n"
            "Look that the package index can be reached with pip, then run `make install` again: it goes on from here."
        )
    return done


if __name__ == "__main__":
    try:
        main()
    except InstallError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("Stopped; `make install` goes on from here.")
