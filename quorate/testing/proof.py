"""What every ``EnrolmentProof`` must do: subclass it for yours."""

from __future__ import annotations

from abc import ABC, abstractmethod

import pytest

from client_sdk.identity import DeviceKey
from coordinator.authority.proofs import LONGEST_SUBJECT, EnrolmentProof, ProofRefused

KEY, OTHER = (bytes.fromhex(DeviceKey(seed * 32).public_hex) for seed in (b"k", b"o"))
NOW = 1_790_000_000


class EnrolmentProofContract(ABC):
    """``proof`` and ``good`` are an implementation, and what a device with this key sends."""

    bound_to_the_key = True
    """Whether the proof names the key: then whoever sees it cannot enrol another key with it."""

    @abstractmethod
    def proof(self) -> EnrolmentProof: ...

    @abstractmethod
    def good(self, public_key: bytes) -> str: ...

    def test_a_good_proof_names_a_subject_that_can_be_shown(self) -> None:
        subject = self.proof().subject(self.good(KEY), KEY, NOW)
        assert subject.isprintable()
        assert len(subject) <= LONGEST_SUBJECT
        assert subject == self.proof().subject(self.good(KEY), KEY, NOW), "the same device is the same subject"

    @pytest.mark.parametrize("text", ["", "x", "é" * 9, "\0", ":" * 99, "A" * 16_384])
    def test_what_is_no_proof_is_refused_with_a_sentence(self, text: str) -> None:
        with pytest.raises(ProofRefused, match=r"[.]$"):
            self.proof().subject(text, KEY, NOW)

    def test_every_damaged_proof_is_refused(self) -> None:
        good = self.good(KEY)
        for place in range(len(good)):
            for form in (good[:place], good[:place] + chr(ord(good[place]) ^ 1) + good[place + 1 :]):
                with pytest.raises(ProofRefused):
                    self.proof().subject(form, KEY, NOW)

    def test_a_proof_of_one_key_is_none_of_another(self) -> None:
        if self.bound_to_the_key:
            with pytest.raises(ProofRefused):
                self.proof().subject(self.good(KEY), OTHER, NOW)
