"""Manifests: which tensors of a model are averaged, how they lie in one vector, what differs."""

from __future__ import annotations

import numpy as np
import pytest

from client_sdk.tensors import Manifest, ManifestMismatch, TensorError, TensorSpec, flatten, narrow, split


def model() -> Manifest:
    return Manifest.of(
        {
            "head.w": np.zeros((2, 3), np.float32),
            "head.b": np.zeros(3, np.float16),
            "norm.count": np.zeros((), np.int64),
            "norm.mean": narrow(np.zeros(3, np.float32), "BF16"),
        }
    )


def test_select_takes_floating_tensors_that_match_in_the_order_of_their_names() -> None:
    assert list(model()) == ["norm.count", "head.w", "norm.mean", "head.b"]
    assert list(model().select(["*"]).items()) == [
        ("head.b", TensorSpec("F32", (3,))),
        ("head.w", TensorSpec("F32", (2, 3))),
        ("norm.mean", TensorSpec("F32", (3,))),
    ]
    assert list(model().select(["head.*", "norm.count"])) == ["head.b", "head.w"]
    for patterns in (
        ["norm.count"],
        ["HEAD.*"],
        [],
        ["head.*", "nothing"],
        ["!nothing"],
        ["*", "!*"],
        ["head.b", "!head.b"],
    ):
        with pytest.raises(ManifestMismatch, match="matches"):
            model().select(patterns)


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        (["!norm.*"], ["head.b", "head.w"]),
        (["!*.b", "!*.count"], ["head.w", "norm.mean"]),
        (["head.*", "!head.b"], ["head.w"]),
        (["!head.b", "head.*"], ["head.w"]),
        (["head.b", "!norm.*"], ["head.b"]),
        (["head.[!b]"], ["head.w"]),
        (["*", "!*.[bc]*"], ["head.w", "norm.mean"]),
    ],
)
def test_what_is_behind_an_exclamation_mark_is_left_out_wherever_it_stands(patterns: list[str], found: list[str]):
    assert list(model().select(patterns)) == found


def test_a_name_means_itself_whatever_characters_it_has() -> None:
    odd = Manifest.of({name: np.zeros(1, np.float32) for name in ("block[0].w", "block0.w", "!x", "x", "*", "what?")})
    assert list(odd.select(["block[0].w"])) == ["block[0].w"]
    assert list(odd.select(["block[[]0].*"])) == ["block[0].w"]
    assert list(odd.select(["!x"])) == ["!x"]
    assert list(odd.select(["!!x", "!block*"])) == ["*", "what?", "x"]
    assert list(odd.select(["*"])) == sorted(odd), "a tensor of this name does not take the pattern from all others"
    with pytest.raises(ManifestMismatch, match=r"did you mean 'block0\.w'"):
        odd.select(["blok0.w"])


def test_sizes() -> None:
    assert (model().elements, model().nbytes) == (6 + 3 + 1 + 3, 24 + 6 + 8 + 6)


def test_a_manifest_survives_json_and_refuses_other_json() -> None:
    found = Manifest.from_json(model().to_json())
    assert found == model()
    assert list(found) == list(model())
    assert hash(found) == hash(model())
    for text in (
        "",
        "[1]",
        "{}1",
        "null",
        '[["a","F32"]]',
        '[["a","F99",[1]]]',
        '[[1,"F32",[1]]]',
        '[["a","F32",[-1]]]',
        '[["a","F32",[1]],["a","F32",[1]]]',
        "[" * 100_000,
    ):
        with pytest.raises(TensorError):
            Manifest.from_json(text)


def test_the_error_names_the_difference() -> None:
    expected = Manifest({"a": TensorSpec("F32", (2,)), "b": TensorSpec("F32", (3,))})

    def said(**tensors: TensorSpec) -> str:
        with pytest.raises(ManifestMismatch) as caught:
            expected.require(Manifest(tensors))
        return str(caught.value)

    assert said(a=TensorSpec("F32", (2,))) == "the update lacks 'b'"
    assert said(a=TensorSpec("F32", (2,)), c=TensorSpec("F32", (3,))) == "the update lacks 'b' and has unexpected 'c'"
    assert said(a=TensorSpec("F16", (2,)), b=TensorSpec("F32", (3,))) == "the update has 'a' as F16, expected F32"
    assert (
        said(a=TensorSpec("F32", (2,)), b=TensorSpec("F32", (3, 1)))
        == "the update has 'b' of shape [3, 1], expected [3]"
    )
    assert len(said(**{"x" * 10_000 + str(i): TensorSpec("F32", ()) for i in range(50)})) < 400
    expected.require(Manifest({"b": TensorSpec("F32", (3,)), "a": TensorSpec("F32", (2,))}))


def test_flatten_and_split_are_inverse() -> None:
    deltas = model().select(["*"])
    tensors = {
        "head.w": np.arange(6, dtype=np.float32).reshape(2, 3),
        "head.b": np.full(3, 7, np.float16),
        "norm.mean": np.full(3, 9, np.float32),
    }
    flat = flatten(tensors, deltas)
    assert flat.tolist() == [7, 7, 7, 0, 1, 2, 3, 4, 5, 9, 9, 9]
    np.testing.assert_array_equal(split(flat, deltas)["head.w"], tensors["head.w"])
    with pytest.raises(ManifestMismatch, match="lacks 'head"):
        flatten({name: array for name, array in tensors.items() if name != "head.b"}, deltas)
    with pytest.raises(ManifestMismatch):
        split(flat[1:], deltas)
