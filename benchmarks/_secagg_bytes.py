"""Bytes that a device sends and receives in a secure round, without the model's download, beside a plain update.

All messages of the five exchanges are counted as they are encoded, with signatures, the device's certificate, and the
roster with everybody's. Their lengths do not depend on the model: they are measured once, and the masked vector of each
case is computed. HTTP's own headers, about 1 kB a request, are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks._secagg_crowd import STRICT, Crowd, OneDevice, header_of
from benchmarks.harness import Row
from client_sdk import codecs
from client_sdk.secagg.lanes import packed_bytes
from client_sdk.secagg.statement import SIGNATURE_BYTES

CASES = (
    ("bytes_200k_q16_vs_float32", 200_000, 16, "float32@1", 1.15),
    ("bytes_1m_q16_vs_float32", 1_000_000, 16, "float32@1", 1.0),
    ("bytes_1m_q4_vs_float32", 1_000_000, 4, "rotated@1", 0.5),
    ("bytes_1m_q4_half_vs_float32", 1_000_000, 4, "sampled-half-rotated@1", 0.3),
)
"""(name, parameters, bits of a value, codec, aim)"""


def beside_float32(n: int) -> Iterator[Row]:
    """A row for each case, with ``n`` devices, *strict*."""
    crowd = Crowd(n, header_of(STRICT, 1))
    crowd.share()
    around = around_the_vector(OneDevice(crowd))
    for name, parameters, q, codec, aim in CASES:
        plain = 4 * parameters
        value = (around + vector_bytes(n, parameters, q, codec)) / plain
        yield Row(name=name, value=value, unit="ratio", ratio=value, aim=aim, met=value < aim)


def around_the_vector(device: OneDevice) -> int:
    """Bytes of all messages but the masked vector."""
    messages = device.play()
    sent = sum(len(message.body) + len(message.blob) + SIGNATURE_BYTES for message in messages.values())
    received = sum(map(len, device.answers.values())) + len(device.crowd.header.encoded)
    return sent + received - len(messages["mask"].blob)


def vector_bytes(n: int, parameters: int, q: int, codec: str) -> int:
    """Bytes of the masked vector of a model of so many parameters."""
    header = replace(header_of(STRICT, codecs.linear(codec).count(parameters)), q=q)
    return packed_bytes(header.lanes, header.lane_bits(n))
