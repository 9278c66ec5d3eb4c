"""Roles of tensors: the order of the flat vector, what a device agrees to, and what names tell."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from client_sdk.protocol import names
from client_sdk.tensors import Layout, Manifest, ManifestMismatch, TensorSpec, manifest
from client_sdk.tensors.manifest import Roles, by_name, digest_of, stated, told

F32 = TensorSpec("F32", (2,))
MODEL = Manifest(
    {"a.running_var": F32, "b": TensorSpec("BF16", (3,)), "c.running_mean": F32, "d": F32, "n": TensorSpec("I64", ())}
)
ROLES: Roles = {"a.running_var": "non-negative", "c.running_mean": "statistic"}


def test_parameters_come_first_then_statistics_each_by_name() -> None:
    layout = Layout.of(MODEL, ("*",), ROLES)
    assert list(layout.whole) == ["b", "d", "a.running_var", "c.running_mean"]
    assert layout.whole.slices()["a.running_var"] == slice(5, 7)
    assert (layout.parameters.elements, layout.elements) == (5, 9)
    assert layout.non_negative == {"a.running_var"}
    assert {spec.dtype for spec in layout.whole.values()} == {"F32"}


def test_without_statistics_it_is_the_manifest_that_was_selected() -> None:
    layout = Layout.of(MODEL, ("*",), {})
    assert list(layout.whole) == list(MODEL.select(("*",))) == ["a.running_var", "b", "c.running_mean", "d"]


def test_statistics_that_are_not_averaged_are_in_no_vector() -> None:
    layout = Layout.of(MODEL, ("[bd]*",), ROLES)
    assert list(layout.whole) == ["b", "d"]
    assert layout.non_negative == frozenset()


def test_the_digest_covers_name_dtype_shape_and_role() -> None:
    other: list[tuple[Manifest, Roles]] = [
        (MODEL, {**ROLES, "c.running_mean": "non-negative"}),
        (MODEL, {"a.running_var": "non-negative"}),
        (Manifest({**MODEL, "d": TensorSpec("F32", (1, 2))}), ROLES),
        (Manifest({**MODEL, "d": TensorSpec("F16", (2,))}), ROLES),
        (Manifest({("e" if name == "d" else name): spec for name, spec in MODEL.items()}), ROLES),
    ]
    digests = [digest_of(MODEL, ROLES), *(digest_of(model, said) for model, said in other)]
    assert len(set(digests)) == len(digests)
    assert {len(one) for one in digests} == {64}
    assert digest_of(MODEL.in_file_order(), dict(reversed(ROLES.items()))) == digests[0], "order is none of it"


def test_where_all_are_parameters_there_is_no_digest() -> None:
    assert digest_of(MODEL, {}) == ""


def test_names_of_pytorch_and_keras_tell_statistics_of_floating_point() -> None:
    names_of = ["bn.running_mean", "bn.running_var", "x/moving_mean", "x/moving_variance", "ema", "weight"]
    model = Manifest(dict.fromkeys(names_of, F32) | {"i.running_mean": TensorSpec("I64", (2,))})
    assert by_name(model) == {
        "bn.running_mean": "statistic",
        "bn.running_var": "non-negative",
        "x/moving_mean": "statistic",
        "x/moving_variance": "non-negative",
    }
    names_of = ["bn.running_mean", "bn.running_var (never below 0)", "x/moving_mean", "x/moving_variance"]
    assert told(by_name(model)).endswith(f"{', '.join(names_of)} (never below 0).")
    assert told({**by_name(model), "z": "statistic"}).endswith("x/moving_variance (never below 0) and 1 more.")


def test_roles_are_said_by_literal_names_and_patterns() -> None:
    model = Manifest({"bn[0].var": F32, "bn[1].var": F32, "w": F32, "n": TensorSpec("I64", ())})
    assert stated(model, {"bn[0].var": "non-negative"}) == {"bn[0].var": "non-negative"}
    assert stated(model, {"*.var": "statistic", "bn[[]1].var": "non-negative"}) == {
        "bn[0].var": "statistic",
        "bn[1].var": "non-negative",
    }
    both: list[Roles] = [{"*": "statistic", "*.var": "non-negative"}, {"*.var": "non-negative", "*": "statistic"}]
    for said in both:
        assert stated(model, said) == {"bn[0].var": "non-negative", "bn[1].var": "non-negative", "w": "statistic"}
    for pattern in ("x.*", "n"):
        with pytest.raises(ManifestMismatch, match=f"no tensor of the model matches {re.escape(repr(pattern))}"):
            stated(model, {pattern: "statistic"})


def test_messages_and_tensors_know_the_same_roles() -> None:
    assert get_args(names.StatisticRole) == get_args(manifest.StatisticRole)
