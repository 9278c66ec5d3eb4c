"""Each primitive against the vectors of the standard that defines it, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from client_sdk.identity import DeviceKey, verify
from client_sdk.protocol.secure import Stage
from client_sdk.secagg.agreement import LOW_ORDER, AgreementKey, KeyStream, derive, require_public
from client_sdk.secagg.errors import BadKey, BadMessage, BadParameters, BadShare, BadSignature
from client_sdk.secagg.masks import pair_seed
from client_sdk.secagg.shares import seal, unseal
from client_sdk.secagg.statement import DOMAIN, require_signed, signed, statement
from tests.client_sdk.secagg.attempt import digest, entropy

FIELD = 2**255 - 19
x = bytes.fromhex


@pytest.mark.parametrize(
    ("scalar", "u", "result"),
    [
        pytest.param(
            "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
            "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
            "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
            id="5.2, first",
        ),
        pytest.param(
            "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a",
            "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f",
            "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742",
            id="6.1, Alice",
        ),
        pytest.param(
            "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb",
            "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a",
            "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742",
            id="6.1, Bob",
        ),
    ],
)
def test_x25519_of_rfc_7748(scalar: str, u: str, result: str) -> None:
    assert AgreementKey(x(scalar)).agree(x(u)) == x(result)


def test_x25519_of_rfc_7748_where_the_highest_bit_is_set() -> None:
    """Section 5.2, second: X25519 passes over that bit. Here a point has one form, so it is refused, and its one form
    agrees on what the standard says."""
    mine = AgreementKey(x("4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d"))
    written = x("e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493")
    with pytest.raises(BadKey, match="canonical"):
        mine.agree(written)
    once = written[:31] + bytes([written[31] & 127])
    assert mine.agree(once) == x("95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957")


def test_x25519_public_key_of_rfc_7748() -> None:
    alice = AgreementKey(x("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"))
    assert alice.public == x("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
    assert "77076d" not in repr(alice)


def test_x25519_iterated_as_in_rfc_7748() -> None:
    k = u = (9).to_bytes(32, "little")
    for times in range(1, 1001):
        k, u = AgreementKey(k).agree(u), k
        u = u[:31] + bytes([u[31] & 127])  # scalars come back as points; X25519 passes over their highest bit
        if times == 1:
            assert k == x("422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079")
    assert k == x("684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51")


@pytest.mark.parametrize("u", sorted(LOW_ORDER))
def test_points_of_low_order_are_refused(u: int) -> None:
    with pytest.raises(BadKey, match="low order"):
        AgreementKey(digest("mine")).agree(u.to_bytes(32, "little"))


@pytest.mark.parametrize("u", sorted(LOW_ORDER))
def test_low_order_means_that_everybody_agrees_on_zero(u: int) -> None:
    """With the check above taken away the library itself sees the zero, for each listed point: the list is right."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    with pytest.raises(ValueError):
        X25519PrivateKey.from_private_bytes(digest("mine")).exchange(
            X25519PublicKey.from_public_bytes(u.to_bytes(32, "little"))
        )


def test_two_keys_may_give_one_secret_and_masks_are_apart_all_the_same() -> None:
    """u and 1 / u are points that differ by the one of order 2: ``require_public`` takes both, as it says."""
    peer, key = AgreementKey(digest("one")), AgreementKey(digest("another"))
    u = int.from_bytes(key.public, "little")
    twin = pow(u, -1, 2**255 - 19).to_bytes(32, "little")
    assert twin != key.public
    require_public(twin)
    assert peer.agree(twin) == peer.agree(key.public)
    h = digest("h")
    assert pair_seed(peer.agree(twin), h, 0, 1) != pair_seed(peer.agree(key.public), h, 0, 2)


def test_points_on_the_twist_are_taken() -> None:
    """X25519 is as hard there: half of all numbers are such points."""
    field = 2**255 - 19
    u = next(u for u in range(2, 100) if pow(u**3 + 486662 * u**2 + u, (field - 1) // 2, field) == field - 1)
    require_public(u.to_bytes(32, "little"))
    assert AgreementKey(digest("one")).agree(u.to_bytes(32, "little")) != bytes(32)


@pytest.mark.parametrize(
    "public",
    [
        pytest.param(FIELD.to_bytes(32, "little"), id="zero as the prime"),
        pytest.param((FIELD + 1).to_bytes(32, "little"), id="one as prime + 1"),
        pytest.param((FIELD + 9).to_bytes(32, "little"), id="the base point as prime + 9"),
        pytest.param((9 + 2**255).to_bytes(32, "little"), id="the base point with the highest bit"),
        pytest.param(bytes(31), id="short"),
        pytest.param(bytes(33), id="long"),
    ],
)
def test_public_keys_in_another_form_are_refused(public: bytes) -> None:
    with pytest.raises(BadKey):
        AgreementKey(digest("mine")).agree(public)


def test_a_private_key_is_the_entropy_that_was_given() -> None:
    assert AgreementKey.create(lambda length: b"\7" * length).private == b"\7" * 32
    with pytest.raises(BadKey):
        AgreementKey(bytes(31))


@pytest.mark.parametrize(
    ("ikm", "salt", "info", "okm"),
    [
        pytest.param(
            b"\x0b" * 22,
            bytes(range(13)),
            bytes(range(0xF0, 0xFA)),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
            id="A.1",
        ),
        pytest.param(
            bytes(range(0x50)),
            bytes(range(0x60, 0xB0)),
            bytes(range(0xB0, 0x100)),
            "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c65e590e09"
            "da3275600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87",
            id="A.2",
        ),
        pytest.param(
            b"\x0b" * 22,
            b"",
            b"",
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
            id="A.3",
        ),
    ],
)
def test_hkdf_sha256_of_rfc_5869(ikm: bytes, salt: bytes, info: bytes, okm: str) -> None:
    assert derive(ikm, salt=salt, info=info, length=len(okm) // 2) == x(okm)


def counter_blocks(key: bytes, first: int, count: int) -> bytes:
    """AES-CTR's key stream by its definition: each counter enciphered alone."""
    ecb = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    return b"".join(ecb.update((first + i).to_bytes(16, "big")) for i in range(count))


def test_counter_blocks_are_those_of_nist_sp_800_38a() -> None:
    key = x("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    text = x(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )
    sealed = x(  # F.5.5
        "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"
        "2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6"
    )
    stream = counter_blocks(key, int("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff", 16), 4)
    assert bytes(a ^ b for a, b in zip(text, stream, strict=True)) == sealed


def test_the_aes_stream_is_its_counter_blocks_from_zero() -> None:
    stream = KeyStream(4096)
    stream.start(bytes(32))
    assert bytes(stream.take(16)) == x("dc95c078a2408989ad48a21492842087")  # AES-256 of zero under the zero key
    key = digest("a key")
    stream.start(key)
    assert b"".join(bytes(stream.take(length)) for length in (4096, 1, 4000, 95)) == counter_blocks(key, 0, 512)


def test_streams_use_one_buffer() -> None:
    stream = KeyStream(128)
    stream.start(digest("one"))
    first = stream.take(128)
    kept = first.copy()
    assert np.shares_memory(stream.take(64), first)
    assert not np.array_equal(first[:64], kept[:64])
    stream.wipe()
    assert not first.any()
    with pytest.raises(BadParameters):
        stream.take(1)


def test_a_stream_is_entered_further_on() -> None:
    whole, part = KeyStream(1 << 16), KeyStream(256)
    whole.start(digest("key"))
    everything = whole.take(1 << 16).tobytes()
    for at in (0, 64, 4096, (1 << 16) - 256):
        part.start(digest("key"), at)
        assert part.take(256).tobytes() == everything[at : at + 256]
    part.start(digest("key"), (1 << 38) - 64)
    assert part.take(64).tobytes() not in everything


def test_what_streams_refuse() -> None:
    with pytest.raises(BadParameters):
        KeyStream(100)
    stream = KeyStream(64)
    with pytest.raises(BadParameters):
        stream.start(bytes(31))
    for at in (63, -64, 1 << 38):
        with pytest.raises(BadParameters, match="multiple of 64"):
            stream.start(bytes(32), at)
    stream.start(bytes(32))
    with pytest.raises(BadParameters):
        stream.take(65)


GCM_KEY = x("feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308")
GCM_NONCE = x("cafebabefacedbaddecaf888")
GCM_TEXT = x(
    "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
    "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"
)
GCM_ASSOCIATED = x("feedfacedeadbeeffeedfacedeadbeefabaddad2")
GCM_SEALED = x(
    "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
    "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662"
    "76fc6ece0f4e1768cddf8853bb2d551b"
)


def test_gcm_of_the_specification() -> None:
    """Test cases 13, 14 and 16 of McGrew and Viega, which NIST SP 800-38D takes over."""
    zeros = bytes(44)
    assert seal(zeros, b"", b"") == x("530f8afbc74536b9a963b4f1c4cb738b")
    assert seal(zeros, bytes(16), b"") == x("cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919")
    assert seal(GCM_KEY + GCM_NONCE, GCM_TEXT, GCM_ASSOCIATED) == GCM_SEALED
    assert unseal(GCM_KEY + GCM_NONCE, GCM_SEALED, GCM_ASSOCIATED) == GCM_TEXT


@pytest.mark.parametrize("place", [0, 59, 60, 75])
def test_a_changed_bit_opens_nothing(place: int) -> None:
    changed = bytearray(GCM_SEALED)
    changed[place] ^= 1
    with pytest.raises(BadShare):
        unseal(GCM_KEY + GCM_NONCE, bytes(changed), GCM_ASSOCIATED)


def test_other_associated_data_keys_and_lengths_open_nothing() -> None:
    for key, sealed, associated in (
        (GCM_KEY + GCM_NONCE, GCM_SEALED, b"other"),
        (GCM_KEY + bytes(12), GCM_SEALED, GCM_ASSOCIATED),
        (GCM_KEY + GCM_NONCE, GCM_SEALED[:15], GCM_ASSOCIATED),
    ):
        with pytest.raises(BadShare):
            unseal(key, sealed, associated)
    with pytest.raises(BadParameters):
        seal(GCM_KEY, b"", b"")


def test_ed25519_of_rfc_8032() -> None:
    """Section 7.1, test 1; test 2 stands beside ``identity``."""
    key = DeviceKey(x("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"))
    assert key.public_hex == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    signature = x(
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
        "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
    )
    assert key.sign(b"") == signature
    assert verify(key.public_hex, b"", signature)


def test_ed25519_of_rfc_8032_over_bytes() -> None:
    """Section 7.1, test 3."""
    key = DeviceKey(x("c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7"))
    assert key.public_hex == "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025"
    assert key.sign(x("af82")) == x(
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
    )


def test_a_signature_stands_under_domain_bound_stage_and_body() -> None:
    key, h = DeviceKey.create(entropy("signer")), digest("h")
    assert statement(h, "mask", b"body") == DOMAIN + h + b"\x03" + (4).to_bytes(8, "big") + b"body"
    assert key.sign(statement(h, "mask", b"body")) == signed(key, h, "mask", b"body")
    signature = signed(key, h, "mask", b"body")
    require_signed(key.public_hex, signature, h, "mask", b"body", "device d")
    others: list[tuple[bytes, Stage, bytes]] = [
        (digest("other"), "mask", b"body"),
        (h, "unmask", b"body"),
        (h, "mask", b"bodY"),
    ]
    for bound, stage, body in others:
        with pytest.raises(BadSignature, match="device d"):
            require_signed(key.public_hex, signature, bound, stage, body, "device d")
    for wrong in (signature[:63], b"", bytes(64)):
        with pytest.raises(BadSignature):
            require_signed(key.public_hex, wrong, h, "mask", b"body", "device d")
    with pytest.raises(BadSignature):
        require_signed(DeviceKey.create(entropy("other")).public_hex, signature, h, "mask", b"body", "device d")
    with pytest.raises(BadMessage):
        statement(b"short", "mask", b"")


def test_stages_have_different_statements() -> None:
    stages: list[Stage] = ["advertise", "share", "mask", "survivors", "unmask"]
    assert len({statement(bytes(32), stage, b"") for stage in stages}) == 5
