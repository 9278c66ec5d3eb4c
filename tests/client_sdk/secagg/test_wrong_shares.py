"""Wrong holders seen over many dealers: their places, and nobody else's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from client_sdk.secagg.shamir import PRIME, split
from client_sdk.secagg.wrong_shares import wrong_holders
from tests.client_sdk.secagg.attempt import entropy


def words(dealers: int, size: int, threshold: int, seed: object) -> list[dict[int, bytes]]:
    """The shares of so many secrets, all held by the same holders."""
    holders = range(1, size + 1)
    return [
        dict(zip(holders, split(entropy((seed, d))(32), holders, threshold, entropy((seed, d, "s"))), strict=True))
        for d in range(dealers)
    ]


@given(size=st.integers(4, 16), seed=st.integers(0, 2**32), data=st.data())
def test_all_liars_are_found_and_nobody_else(size: int, seed: int, data: st.DataObject) -> None:
    threshold = data.draw(st.integers(2, size - 2))
    liars = data.draw(st.sets(st.integers(1, size), max_size=size - threshold - 1))
    found = words(size, size, threshold, seed)
    for number, word in enumerate(found):
        for x in liars:
            lie = int.from_bytes(entropy((seed, number, x, "lie"))(32), "big")
            word[x] = ((int.from_bytes(word[x], "big") + lie) % PRIME).to_bytes(33, "big")
    assert wrong_holders(found, threshold) == liars


def test_who_lies_about_some_only_is_found_with_the_others() -> None:
    found = words(6, 12, 5, "some")
    for number, x in enumerate((2, 7, 11)):
        found[number][x] = entropy(x)(33)
    assert wrong_holders(found, 5) == {2, 7, 11}


def test_where_nothing_can_be_decided_no_device_is_suspected() -> None:
    right = words(4, 8, 5, "right")
    assert wrong_holders([], 5) == frozenset()
    assert wrong_holders(right, 5) == frozenset()
    assert wrong_holders([{x: bytes(33) for x in right[0]}, {1: bytes(33)}], 5) == frozenset(), "other holders"
    short = words(4, 6, 5, "short")
    short[0][1] = bytes(33)
    assert wrong_holders(short, 5) == frozenset(), "one share beyond t"
    noise = [{x: entropy((number, x))(32).rjust(33, b"\0") for x in range(1, 9)} for number in range(8)]
    assert wrong_holders(noise, 5) == frozenset(), "everybody"
