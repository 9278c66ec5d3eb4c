"""Compile `client_sdk/tensors/compiled.c` beside itself, where there is a C compiler.

    python scripts/compiling.py

The hook that builds packages and editable installs (`build_hook.py`) calls it, so `make install` does. Needs nothing
but the standard library and a compiler: the command in CC, or `cc`. The library is loaded with ctypes, so it fits every
version of Python. On Linux of x86-64 it has a version of each loop for three generations of processors.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = Path("client_sdk/tensors/compiled.c")
_FLAGS = ("-std=gnu11", "-O3", "-ffp-contract=off", "-fPIC", "-shared")
_WORKS = """
import ctypes, sys
lanes, values = (ctypes.c_uint64 * 3)(), (ctypes.c_float * 3)(1.0, -0.5, 2.0**-33)
size, weight = ctypes.c_size_t(3), ctypes.c_uint64(2)
ctypes.CDLL(sys.argv[1]).quorate_fold(lanes, values, size, weight, ctypes.c_int32(2**31 - 1))
base = 2 * 0x4138000000000000 % 2**64
sys.exit([(lane - base) % 2**64 for lane in lanes] != [2**33, -(2**32) % 2**64, 0])
"""


class CannotCompile(Exception):
    """Why not, in a sentence."""


def compiled(root: Path) -> Path:
    """The library of the sources in ``root``, made where it is not there. CannotCompile."""
    source = root / SOURCE
    if not source.exists():
        raise CannotCompile(f"there is no {SOURCE}")
    library = source.with_name(f"compiled-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}.so")
    if _works(library):
        return library
    for old in source.parent.glob("compiled-*.so"):
        old.unlink()
    compiler = shlex.split(os.environ.get("CC", "cc"))
    with tempfile.TemporaryDirectory(dir=source.parent, prefix=".compiling-") as folder:
        made = Path(folder) / library.name
        reason = ""
        for versions in (["-DVERSIONS"], []):  # not every compiler, nor every loader of libraries, knows them
            reason = reason or _fails([*compiler, *_FLAGS, *versions, "-o", str(made), str(source)])
            if _works(made):
                made.replace(library)
                return library
    raise CannotCompile(reason or "what the compiler makes cannot be loaded, or adds wrong")


def _fails(command: list[str]) -> str:
    """Run a compiler; returns why it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    return done.stderr.strip().partition("\n")[0] if done.returncode else ""


def _works(library: Path) -> bool:
    """Whether this Python can load it, and it adds right: in a process of its own, which may crash."""
    if not library.exists():
        return False
    done = subprocess.run([sys.executable, "-c", _WORKS, str(library)], capture_output=True, check=False)
    return done.returncode == 0


if __name__ == "__main__":
    try:
        print(compiled(ROOT))
    except CannotCompile as error:
        sys.exit(f"{error}. NumPy does the work instead, at three times the cost.")
