"""How many bytes updates would have on the wire: in a simulation they are not encoded for it."""

from __future__ import annotations

import numpy as np

from client_sdk import codecs
from client_sdk.protocol.names import REPORT_KEY
from client_sdk.tensors import Layout, numpy_dtype, to_bytes


class UpdateSizes:
    """Bytes of an update on the wire, from its report: the length of ``encode_update``, without encoding."""

    def __init__(self, layout: Layout, codec: str) -> None:
        wire = codecs.beside(codec, layout.statistics).wire(layout.whole)
        zeros = {name: np.zeros(spec.shape, numpy_dtype(spec.dtype)) for name, spec in wire.items()}
        empty = to_bytes(zeros, {REPORT_KEY: ""})
        length = int.from_bytes(empty[:8], "little")
        self._header = len(empty[8 : 8 + length].rstrip(b" "))
        self._data = len(empty) - 8 - length

    def __call__(self, report: str) -> int:
        """``report``: its JSON, which stands in the header as a JSON text: quotes and backslashes are doubled there."""
        header = self._header + len(report.encode()) + report.count('"') + report.count("\\")
        return 8 + -(-header // 8) * 8 + self._data
