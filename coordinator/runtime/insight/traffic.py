"""Bytes of the messages that one device exchanges with a coordinator in a round, from specimens that the code which
writes the real messages encodes. HTTP's own headers are left out: about 1 kB a request.
"""

from __future__ import annotations

from typing import NamedTuple

from client_sdk import codecs
from client_sdk.credentials.authority_key import AUTHORITY_ID_BYTES
from client_sdk.credentials.certificate import Certificate
from client_sdk.credentials.identity_keys import KEY_BYTES
from client_sdk.protocol.devices import UpdateReport, Work
from client_sdk.protocol.names import REPORT_KEY
from client_sdk.secagg.advertisement import Advertisement
from client_sdk.secagg.graph import NONCE_BYTES
from client_sdk.secagg.masked import MaskedInput
from client_sdk.secagg.parameters import Parameters
from client_sdk.secagg.roster import Roster, RosterEntry
from client_sdk.secagg.shamir import SHARE_BYTES
from client_sdk.secagg.share_digests import DIGESTS_BYTES
from client_sdk.secagg.shares import SEALED_BYTES, Bundle
from client_sdk.secagg.statement import DIGEST_BYTES, SIGNATURE_BYTES
from client_sdk.secagg.survivors import Proof, Survivors
from client_sdk.secagg.unmask import SURVIVED, RevealedShares
from client_sdk.tensors import Layout, header_bytes

_DEVICE = "d" + 16 * "0"
"""An id as an authority draws it."""
_SECONDS = 1.2345678901234567
_REPORT = UpdateReport(
    run="r",
    round=100,
    codec="c",
    examples=1000,
    work=Work(steps=100, steps_planned=100, epochs=_SECONDS, examples_seen=1000),
    fetch_s=_SECONDS,
    train_s=_SECONDS,
    encode_s=_SECONDS,
    metrics={"loss": _SECONDS, "accuracy": _SECONDS},
)


class Traffic(NamedTuple):
    """Bytes of one device's messages, beside the model that it fetches."""

    sent: int
    received: int


def of_update(run: str, codec: str, averaged: Layout) -> Traffic:
    """A plain update with two training metrics: the values that the codec sends, and the header with the report."""
    chosen = codecs.beside(codec, averaged.statistics)
    wire = chosen.wire(averaged.whole)
    report = _REPORT.model_copy(update={"run": run, "codec": chosen.name})
    return Traffic(len(header_bytes(wire, {REPORT_KEY: report.model_dump_json()})) + wire.nbytes, 0)


def of_secure_round(parameters: Parameters, vector_bytes: int) -> Traffic:
    """All five exchanges of a device that stays to the end of an attempt in which nobody vanishes. ``vector_bytes``: of
    the masked vector."""
    places, peers = tuple(range(parameters.n)), tuple(range(1, parameters.neighbours + 1))
    advertisement = Advertisement(_DEVICE, bytes(32), bytes(32), bytes(DIGEST_BYTES), bytes(NONCE_BYTES))
    certificate = Certificate(
        authority=bytes(AUTHORITY_ID_BYTES),
        id=_DEVICE,
        holder="device",
        public_key=bytes(KEY_BYTES),
        not_before=0,
        not_after=1,
        signature=bytes(SIGNATURE_BYTES),
    ).encoded
    entry = RosterEntry(advertisement, bytes(SIGNATURE_BYTES), certificate)
    rows = tuple((place, bytes(SEALED_BYTES), bytes(DIGESTS_BYTES)) for place in peers)
    held = places if parameters.complete else peers
    sent = [
        advertisement.encoded + certificate,
        Bundle(0, rows, bytes(DIGESTS_BYTES) if parameters.complete else b"").encoded,
        MaskedInput(0, 0, 0, bytes(DIGEST_BYTES)).encoded + bytes(vector_bytes),
        b"",
        RevealedShares(0, tuple((place, SURVIVED, bytes(SHARE_BYTES)) for place in held)).encoded,
    ]
    received = [
        Roster(0, 0, (entry,) * parameters.n).encoded,
        Bundle(0, rows).encoded,
        Survivors(places).encoded,
        Proof(tuple((place, bytes(SIGNATURE_BYTES)) for place in places)).encoded,
    ]
    return Traffic(sum(len(message) + SIGNATURE_BYTES for message in sent), sum(map(len, received)))
