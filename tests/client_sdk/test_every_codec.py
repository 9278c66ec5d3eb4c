"""Every built-in codec keeps to the contract of codecs."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

from client_sdk import codecs
from client_sdk.tensors import from_bytes, to_bytes
from quorate.testing import CodecContract

ERRORS = {
    "float32@1": (0.0, 0.0),
    "float16@1": (2**-11, 0.0),
    "stochastic8@1": (1.0001 / 127, 0.0),
    "rotated@1": (0.0, 1e-6),
    "sampled-half@1": (1.0, 0.0),
    "sampled-quarter@1": (1.0, 0.0),
    "sampled-half-rotated@1": (1.0, 1e-6),
    "sampled-quarter-rotated@1": (1.0, 1e-6),
    "sampled-half-unbiased@1": (1.0, 0.0),
    "sampled-quarter-unbiased@1": (3.0, 0.0),
    "sampled-half-rotated-unbiased@1": (1.0, 1e-5),
    "sampled-quarter-rotated-unbiased@1": (3.0, 1e-5),
    "eden1@1": (0.0, 1.0),
    "eden2@1": (0.0, 0.5),
    "eden4@1": (0.0, 0.15),
    "sign@1": (1.0, 0.0),
    "stochastic1-rotated@1": (0.0, 5.0),
    "stochastic2-rotated@1": (0.0, 1.5),
    "stochastic4-rotated@1": (0.0, 0.3),
    "stochastic8-rotated@1": (0.0, 0.02),
    "entropy1@1": (0.0, 1.5),
    "entropy2@1": (0.0, 0.5),
    "entropy4@1": (0.0, 0.15),
    "top-tenth@1": (1.0, 0.0),
    "top-hundredth@1": (1.0, 0.0),
}
"""Of each codec: the contract's ``error`` and ``whole_error``."""


def contract(name: str, *statistics: str) -> type[CodecContract]:
    """The contract's tests for one built-in codec, alone or beside these statistics."""
    error, whole = ERRORS[name]
    fields = {"codec": codecs.beside(name, statistics), "error": error, "whole_error": whole}
    return type(f"Test_{name.replace('@', '_').replace('-', '_')}", (CodecContract,), fields)


for _name in codecs.names():  # a new one is among them by itself
    globals()[f"Test_{_name}"] = contract(_name)
    globals()[f"Test_{_name}_beside_statistics"] = contract(
        _name, "none", "scalar"
    )  # the last by name: the order of names is the order of blocks


def digests() -> str:
    """Of what each codec sends, and of what comes of it."""
    found = []
    for name in codecs.names():
        it = contract(name, "none", "scalar")()
        body = it.body(it.delta())
        decoded = it.codec.decode(from_bytes(body))
        found.append(hashlib.sha256(body + to_bytes(decoded)).hexdigest())
    return " ".join(found)


def test_another_process_gives_the_same_bytes() -> None:
    made = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import digests; print(digests())"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(one for one in sys.path if one), "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert made.stdout.strip() == digests()
