"""``--node-config`` is typed as Flower types it."""

from __future__ import annotations

import pytest
from flwr.common.config import parse_config_args

from client_sdk.commands.device import parse_node_config


@pytest.mark.parametrize(
    "text",
    [
        "partition-id=0 num-partitions=4",
        "a=1 b=0.5 c=true d=false",
        """name="ward 7" other='x y'""",
        "big=1e-3 hex=0xff negative=-3",
        "dotted.key=1 dotted.other=2",
        "  spaces=1   around=2  ",
        "",
    ],
)
def test_it_reads_what_flower_reads(text: str) -> None:
    found = parse_node_config([text])
    expected = parse_config_args([text])
    assert found == expected
    assert [type(value) for value in found.values()] == [type(value) for value in expected.values()]


def test_several_texts_are_joined_and_the_last_value_holds() -> None:
    assert parse_node_config(["a=1 b=2", "b=3"]) == {"a": 1, "b": 3}


@pytest.mark.parametrize(
    "text", ["partition-id", "a=", "a=word", "a=1 rubbish", "=1", "a=[1, 2]", "a=1979-05-27", "a='x", "a=nan", "a=-inf"]
)
def test_anything_else_is_refused_in_a_sentence_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="partition-id=0 num-partitions=4"):
        parse_node_config([text])
