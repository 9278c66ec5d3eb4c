"""The codecs that all devices of a round share: rotation and drawing by their definitions, to the bit, and sums."""

from __future__ import annotations

import hashlib
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_sdk import codecs
from client_sdk.chance import labelled, shake_bytes
from client_sdk.codecs import NOTHING_DRAWN, Origin, UnknownCodec
from client_sdk.codecs.linear_map import (
    SEED,
    STRETCH,
    VALUES,
    rotate,
    rotated_back,
    sampled,
    sampled_count,
    spread_out,
    transform,
)
from client_sdk.protocol.problems import ProblemError
from client_sdk.tensors import Float32, Layout, Manifest, ManifestMismatch, read_header, to_bytes
from client_sdk.update import Update, encode_update
from coordinator.folding.validation import check
from tests.coordinator.engine.story import plan

DIGEST = "ab" * 32
SEED_7 = codecs.seed_for("rotated@1", DIGEST, 7)
DRAWN = tuple(name for name in codecs.linear_names() if codecs.linear(name).seeded)
SAMPLED = tuple(name for name in DRAWN if "sampled" in name)


def normal(count: int, seed: int = 1) -> Float32:
    return np.random.default_rng(seed).normal(size=count).astype(np.float32)


def reader(values: Float32) -> Callable[[int, int], Float32]:
    return lambda start, count: values[start : start + count]


def decoded(name: str, values: Float32, elements: int, seed: bytes = SEED_7) -> Float32:
    return np.array(codecs.linear(name).back(reader(values), elements, seed)(0, elements))


# ------------------------------------------------------------ the transform


def sylvester(k: int) -> Any:
    index = np.arange(1 << k)
    ones = np.array([[(i & j).bit_count() for j in index.tolist()] for i in index.tolist()])
    return (-1.0) ** ones


@pytest.mark.parametrize("k", range(9))
def test_the_transform_is_sylvesters_matrix_over_the_root_of_its_size(k: int) -> None:
    values = normal(1 << k)
    found = values.copy()
    transform(found, np.empty_like(found))
    assert found == pytest.approx(sylvester(k) @ values.astype(np.float64) / np.sqrt(1 << k), abs=2e-6)
    transform(found, np.empty_like(found))
    assert found == pytest.approx(values, abs=2e-6), "it undoes itself"


@pytest.mark.parametrize("k", range(9))
def test_the_order_of_the_operations_is_fixed_to_the_bit(k: int) -> None:
    """Value by value, in single float32 operations: the high half of the index first, then the low half."""
    size = 1 << k
    wanted = [np.float32(value) * np.float32(size**-0.5) for value in normal(size)]
    for bit in [*range(k - k // 2, k), *range(k - k // 2)]:
        distance = 1 << bit
        for low in range(size):
            if not low & distance:
                a, b = wanted[low], wanted[low | distance]
                wanted[low], wanted[low | distance] = a + b, a - b
    found = normal(size)
    transform(found, np.empty_like(found))
    assert found.tobytes() == np.array(wanted, np.float32).tobytes()


@pytest.mark.filterwarnings("error")
def test_values_at_the_end_of_a_sums_range_do_not_overflow() -> None:
    found = np.full(1 << 16, 65536.0, np.float32)
    transform(found, np.empty_like(found))
    assert (found[0], np.abs(found[1:]).max()) == (65536.0 * 256, 0.0)


# ------------------------------------------------------------ the rotation


def by_matrices(values: Float32, seed: bytes, block: int) -> Any:
    """The definition: blocks of a power of two in order, and one more at the end."""
    found = values.astype(np.float64)
    size = block
    while size > values.size:
        size //= 2
    starts = [start for start in range(0, values.size, size) if start + size <= values.size]
    if values.size % size:
        starts.append(values.size - size)
    for place, start in enumerate(starts):
        drawn = shake_bytes(labelled("rotation", seed.hex(), place), -(-size // 8))
        signs = [1 - 2 * (drawn[i // 8] >> (i % 8) & 1) for i in range(size)]
        part = found[start : start + size]
        part[:] = sylvester(size.bit_length() - 1) @ (part * signs) / np.sqrt(size)
    return found


@given(count=st.integers(1, 70), k=st.integers(0, 5), seed=st.binary(min_size=32, max_size=32))
def test_a_rotation_by_its_definition_and_back(count: int, k: int, seed: bytes) -> None:
    values = normal(count)
    found = values.copy()
    rotate(found, seed, 1 << k)
    assert found == pytest.approx(by_matrices(values, seed, 1 << k), abs=5e-6)
    assert np.linalg.norm(found) == pytest.approx(np.linalg.norm(values), rel=1e-5)
    back = rotated_back(reader(found), count, seed, 1 << k).read(0, count)
    assert back == pytest.approx(values, abs=5e-6)


@pytest.mark.parametrize(("size", "times"), [(1 << 16, 1.0), (100_000, 6.0), (3 * (1 << 16) + 1, 6.0)])
def test_one_large_value_is_spread_over_its_block(size: int, times: float) -> None:
    """To 1 / sqrt(2^16) each; where two blocks overlap by chance to no more than six times that."""
    for place in (0, size // 2, size - 1):
        values = np.zeros(size, np.float32)
        values[place] = 1.0
        rotate(values, SEED_7)
        assert np.abs(values).max() <= times * 2**-8


def test_rotations_of_rounds_plans_and_blocks_differ() -> None:
    alike = np.ones(2 << 16, np.float32)
    found = codecs.ROTATED.forward(alike, SEED_7)
    assert not np.array_equal(found[: 1 << 16], found[1 << 16 :])
    for other in (codecs.shared_seed(DIGEST, 8), codecs.shared_seed("cd" * 32, 7)):
        assert not np.array_equal(found, codecs.ROTATED.forward(alike, other))


# ------------------------------------------------------------ the drawing


@pytest.mark.parametrize("one_in", [2, 4])
@pytest.mark.parametrize("size", [0, 1, 2, 3, 5, 100, STRETCH - 1, STRETCH, STRETCH + 1, 3 * STRETCH + 7])
def test_what_is_drawn_comes_back_and_the_rest_is_zero(size: int, one_in: int) -> None:
    values = np.arange(1, size + 1, dtype=np.float32)
    sent = sampled(values, one_in, SEED_7)
    whole, rest = divmod(size, STRETCH)
    assert sent.size == sampled_count(size, one_in) == whole * STRETCH // one_in + -(-rest // one_in)
    back = spread_out(reader(sent), size, one_in, SEED_7).read(0, size)
    assert np.array_equal(back[back != 0], sent)
    assert np.array_equal(back[back != 0], values[back != 0])


def test_the_smallest_words_are_drawn() -> None:
    words = np.frombuffer(shake_bytes(labelled("sampled coordinates", SEED_7.hex(), 0), 4 * 99), "<u4")
    wanted = sorted(sorted(range(99), key=lambda place: (int(words[place]), place))[:25])
    assert sampled(np.arange(99, dtype=np.float32), 4, SEED_7).tolist() == wanted


def test_of_equal_words_the_lower_coordinates_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client_sdk.codecs.linear_map.shake_bytes", lambda message, count: bytes(count))
    assert sampled(np.arange(9, dtype=np.float32), 2, SEED_7).tolist() == [0, 1, 2, 3, 4]


def test_every_coordinate_is_drawn_as_often_as_every_other() -> None:
    """In 4000 rounds, 5 standard deviations."""
    values = np.arange(40, dtype=np.float32)
    drawn = np.zeros(40)
    for number in range(4000):
        drawn[sampled(values, 4, codecs.shared_seed(DIGEST, number)).astype(int)] += 1
    assert np.abs(drawn / 4000 - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / 4000)


UNBIASED = tuple(name for name in SAMPLED if "unbiased" in name)


@pytest.mark.parametrize("name", SAMPLED)
@pytest.mark.parametrize("size", [7, 40])
def test_the_expectation_of_an_unbiased_form_is_the_delta_and_of_the_others_a_part(name: str, size: int) -> None:
    """In 3000 rounds, 5 standard deviations of a coordinate that is drawn with probability q."""
    values, codec = normal(size), codecs.linear(name)
    q = codec.count(size) / size
    scale = 1.0 if name in UNBIASED else q
    mean = np.zeros(size)
    for number in range(3000):
        seed = codecs.shared_seed(DIGEST, number)
        mean += decoded(name, codec.forward(values, seed), size, seed).astype(np.float64) / 3000
    spread = np.abs(values) * np.sqrt(q * (1 - q) / 3000) / (q if name in UNBIASED else 1.0)
    assert (np.abs(mean - scale * values) <= 5 * spread + 1e-6).all()


@pytest.mark.parametrize("name", UNBIASED)
@pytest.mark.parametrize("size", [1, 5, STRETCH, 2 * STRETCH + 7])
def test_an_unbiased_form_sends_what_the_other_sends_and_scales_it_up_by_the_inverse_of_the_part(
    name: str, size: int
) -> None:
    values, other = normal(size), name.replace("-unbiased", "")
    sent = codecs.linear(name).forward(values, SEED_7)
    assert sent.tobytes() == codecs.linear(other).forward(values, SEED_7).tobytes(), "its range is the same"
    found, plain = decoded(name, sent, size), decoded(other, sent, size)
    for start in range(0, size, STRETCH):
        length = min(STRETCH, size - start)
        drawn = -(-length // (2 if "half" in name else 4))
        part = slice(start, start + length)
        assert np.array_equal(found[part], plain[part] * np.float32(length / drawn))


# ------------------------------------------------------------ all of them


@given(data=st.data(), name=st.sampled_from(codecs.linear_names()), size=st.integers(1, 300))
def test_a_sum_of_encoded_deltas_is_the_encoded_sum(data: st.DataObject, name: str, size: int) -> None:
    codec = codecs.linear(name)
    rows = [normal(size, data.draw(st.integers(0, 99))) for _ in range(3)]
    weights = [data.draw(st.integers(1, 9)) for _ in rows]
    both = list(zip(rows, weights, strict=True))
    encoded = sum(weight * codec.forward(row, SEED_7).astype(np.float64) for row, weight in both)
    total = np.sum([weight * row for row, weight in both], axis=0, dtype=np.float32)
    wanted = codec.forward(total, SEED_7)
    assert encoded == pytest.approx(wanted, abs=1e-4)
    assert wanted.shape == (codec.count(size),)


@pytest.mark.parametrize("name", codecs.linear_names())
def test_it_reads_the_same_bits_in_any_order(name: str) -> None:
    size = 2 * STRETCH + 12_345
    values = codecs.linear(name).forward(normal(size), SEED_7)
    whole = decoded(name, values, size)
    read = codecs.linear(name).back(reader(values), size, SEED_7)
    starts = np.random.default_rng(3).permutation(np.arange(0, size, 10_007))
    for start in starts.tolist():
        count = min(10_007, size - start)
        assert read(start, count).tobytes() == whole[start : start + count].tobytes()


@pytest.mark.parametrize("name", codecs.linear_names())
def test_encoding_changes_no_value_that_was_given(name: str) -> None:
    values = normal(1000)
    values.flags.writeable = False
    found = codecs.linear(name).forward(values, SEED_7)
    assert not np.shares_memory(found, values)
    assert np.array_equal(values, normal(1000))


FROZEN = {
    "float32@1": "5fb6834dd62d9b1f",
    "rotated@1": "d5551100f81208a3",
    "sampled-half@1": "98f7dea853b9a04f",
    "sampled-quarter@1": "20330f7d3cbff8f1",
    "sampled-half-rotated@1": "eef3991535bc0f73",
    "sampled-quarter-rotated@1": "55f12d02f5583f27",
    "sampled-half-unbiased@1": "3f804daefed47528",
    "sampled-quarter-unbiased@1": "809ae4cc71ee7fde",
    "sampled-half-rotated-unbiased@1": "c2b1af23ec85c965",
    "sampled-quarter-rotated-unbiased@1": "c064e159f8e13052",
}


@pytest.mark.parametrize("name", codecs.linear_names())
def test_encodings_are_frozen(name: str) -> None:
    """A change of these bytes is another codec: devices and coordinators of other versions would not agree."""
    values = (np.arange(70_000) % 977 - 488).astype(np.float32) / np.float32(1024)
    encoded = codecs.linear(name).forward(values, SEED_7)
    found = hashlib.sha256(encoded.tobytes() + decoded(name, encoded, 70_000).tobytes()).hexdigest()
    assert found[:16] == FROZEN[name]


def test_the_seed_follows_from_plan_and_round() -> None:
    assert codecs.seed_for("float32@1", DIGEST, 7) == NOTHING_DRAWN == bytes(32)
    wanted = hashlib.sha256(f"quorate codec seed v1\n{DIGEST}\n7".encode()).digest()
    for name in DRAWN:
        assert codecs.seed_for(name, DIGEST, 7) == wanted
    for name in ("float16@1", "stochastic8@1", "clinic:coarse@1", "none@1"):
        with pytest.raises(UnknownCodec, match="cannot be added"):
            codecs.seed_for(name, DIGEST, 7)


@pytest.mark.parametrize("name", DRAWN)
def test_all_devices_of_a_round_draw_alike(name: str) -> None:
    delta = {"w": normal(500), "b": normal(20)}
    codec = codecs.get(name)
    bodies = [
        codec.encode(delta, Origin(seed=seed, round=7, device=device, plan=DIGEST))[VALUES].tobytes()
        for seed, device in ((1, "d1"), (1, "d2"), (2, "d1"))
    ]
    assert len(set(bodies)) == 1
    for origin in (Origin(round=8, plan=DIGEST), Origin(round=7, plan="cd" * 32)):
        assert codec.encode(delta, origin)[VALUES].tobytes() not in bodies
    flat = codec.encode(delta, Origin(round=7, plan=DIGEST))[VALUES]
    assert flat.tobytes() == codecs.linear(name).forward(np.concatenate([delta["b"], delta["w"]]), SEED_7).tobytes()


@pytest.mark.parametrize("taken", [SEED, VALUES])
def test_its_own_names_are_taken(taken: str) -> None:
    delta = {taken: np.zeros(3, np.float32)}
    for refused in (lambda: codecs.ROTATED.encode(delta, Origin()), lambda: codecs.ROTATED.wire(Manifest.of(delta))):
        with pytest.raises(ManifestMismatch, match="its own data is there"):
            refused()


@pytest.mark.parametrize(("name", "part"), [("sampled-half@1", 0.5), ("sampled-quarter-rotated@1", 0.25)])
def test_a_sampled_body_has_a_part_of_the_bytes(name: str, part: float) -> None:
    body = encode_update(Update({"w": normal(100_000)}, 10), name, "story", 1)
    assert 400_000 * part < len(body) < 400_000 * part + 2000


@pytest.mark.parametrize("name", DRAWN)
def test_a_body_is_checked_and_its_seed_is_the_plans(name: str, tmp_path: Path) -> None:
    asked = plan(task={"codec": name})
    values, path = normal(3000), tmp_path / "body"
    manifest = Manifest.of({"w": values})

    def found(**origin: Any) -> Any:
        path.write_bytes(encode_update(Update({"w": values}, 10), name, "story", 7, device="d1", **origin))
        return check(path, Layout.of(manifest, ("*",), {}), asked, run="story", round=7, attempt=0)

    report, measures = found(plan=asked.digest)
    assert report.codec == name
    seed = codecs.seed_for(name, asked.digest, 7)
    sent = codecs.linear(name).forward(values, seed)
    assert measures.peak >= float(np.abs(decoded(name, sent, 3000, seed)).max()) > 1
    with pytest.raises(ProblemError, match="another seed than the plan gives round 7") as refused:
        found(plan="cd" * 32)
    assert refused.value.kind == "invalid-update"


@pytest.mark.parametrize("name", DRAWN)
def test_decoding_a_file_takes_a_few_blocks_of_memory(name: str, tmp_path: Path) -> None:
    size = 40 * STRETCH
    body = to_bytes(codecs.get(name).encode({"w": normal(size)}, Origin()))
    path = tmp_path / "body"
    path.write_bytes(body)
    header = read_header(path)
    tracemalloc.start()
    count = sum(block.size for block in codecs.get(name).blocks(path, header))
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == size
    assert taken < 12 * 4 * STRETCH < 4 * size / 3
