"""Plays are read as printed; windows stand for arrays; clients are roles. The last tests have the real plays."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import TypeAdapter

from client_sdk.learning.data import as_examples
from client_sdk.protocol.names import DeviceId
from simulation import datasets
from simulation.datasets import DataCorrupt, Dataset, DataUnavailable, LabelledExamples, Windows
from simulation.datasets.shakespeare_roles import CONTEXT, PLAYS, VOCABULARY, dataset, encode, speeches

CAPITALS = """THE PLAY

by Nobody

PERSONS. A KING; a FOOL.

ACT I.

SCENE I. A heath. Wind, and a long
description of it.

[Enter the KING,
and a FOOL.]

KING.
Blow,  winds!
  Rage!

FOOL. [Aside.]
He speaks [to the KING] to air.

[Wind.]

And air is deaf.

KING.

[Sings.]

Heigh ho.
I

II

FIRST and SECOND LORD.
My lord!

SCENE II. A hall.

Nobody says this.

1. CAR.
What ho!

KING. Come in.
Sit.

A FOOL AND NOT A MAN WHO WALKS.
Is a line of verse.

FOOL {Within.]
Here.
"""

REPEATED = "".join(f"\nMARY\nLine {number} of mary.\n" for number in range(12))


def line(number: int) -> str:
    return f"Line {number} of mary."


class TestPlays:
    def test_by_hand(self) -> None:
        assert list(speeches(CAPITALS + "\nEXEUNT.\n" + REPEATED))[:8] == [
            ("KING", "Blow, winds!\nRage!"),
            ("FOOL", "He speaks to air.\nAnd air is deaf."),
            ("KING", "Heigh ho.\nI\nII"),
            ("FIRST AND SECOND LORD", "My lord!"),
            ("1. CAR", "What ho!"),
            ("KING", "Come in.\nSit.\nA FOOL AND NOT A MAN WHO WALKS.\nIs a line of verse."),
            ("FOOL", "Here."),
            ("MARY", line(0)),
        ]

    def test_names_that_are_not_in_capitals(self) -> None:
        text = (
            "Act I\n\nHam.\nWho's there? Long\nand short.\n\nGood.\n\nLady Capulet.\nI.\n\n"
            "P. King.\nFull thirty\nyears.\n\nHear me, Ham.\nThis goes on.\n\nRos and Guil.\nWe both.\n"
        )
        assert list(speeches(text)) == [
            ("HAM", "Who's there? Long\nand short.\nGood."),
            ("LADY CAPULET", "I."),
            ("P. KING", "Full thirty\nyears.\nHear me, Ham.\nThis goes on."),
            ("ROS AND GUIL", "We both."),
        ]

    def test_a_bracket_that_is_never_closed_takes_its_paragraph_only(self) -> None:
        text = "ACT I\n" + REPEATED + "\nMARY\nBefore.\n[Exit\nthe king.\n\nMARY\nAfter.\n"
        assert [speech for _, speech in speeches(text)][-2:] == ["Before.", "After."]

    @pytest.mark.parametrize("text", ["", "KING.\nNo act.\n", "ACT I\n\nNobody\nspeaks here\n"])
    def test_no_speeches(self, text: str) -> None:
        assert list(speeches(text)) == []


class TestWindows:
    TEXT = np.arange(20, dtype=np.uint8)

    def test_they_are_the_array(self) -> None:
        windows = Windows(self.TEXT, np.array([0, 3, 17, 3]), 3)
        rows = np.array([[0, 1, 2], [3, 4, 5], [17, 18, 19], [3, 4, 5]], np.uint8)
        assert (windows.shape, len(windows), windows.dtype, windows.ndim) == (rows.shape, 4, rows.dtype, 2)
        np.testing.assert_array_equal(np.asarray(windows), rows)
        assert np.asarray(windows, dtype=np.int64).dtype == np.int64
        for where in (2, -1, slice(1, 3), slice(None, None, 2), [3, 0], np.array([], int), rows[:, 0] == 3):
            np.testing.assert_array_equal(windows[where], rows[where])
            assert windows[where].dtype == np.uint8
        np.testing.assert_array_equal(np.asarray(windows.at(np.array([2, 0]))), rows[[2, 0]])
        np.testing.assert_array_equal(np.asarray(windows.at(slice(1, 3))), rows[1:3])
        with pytest.raises(ValueError, match="only by copying"):
            np.asarray(windows, copy=False)
        windows[:][:] = 0
        assert self.TEXT[19] == 19

    @pytest.mark.parametrize("start", [-1, 18])
    def test_beyond_the_text(self, start: int) -> None:
        with pytest.raises(ValueError, match="reach beyond the text of 20"):
            Windows(self.TEXT, np.array([0, start]), 3)

    def test_they_are_examples_that_learners_take(self) -> None:
        part = LabelledExamples(Windows(self.TEXT, np.arange(10), 4), np.arange(10), np.arange(10, dtype=np.int32) // 5)
        taken = part.take([7, 2])
        assert isinstance(taken.x, Windows)
        assert taken.users is not None
        assert (np.asarray(taken.x)[:, 0].tolist(), taken.users.tolist()) == ([7, 2], [1, 0])
        inputs, targets = as_examples(part).span(3, 5)
        assert (inputs.tolist(), targets.tolist()) == ([[3, 4, 5, 6], [4, 5, 6, 7]], [3, 4])


def small() -> Dataset:
    """Two plays; role m.mary has 12 speeches, m.john 2 of which the first is long; others speak too little."""
    john = "\nJOHN\n" + "x" * 100 + "\n" + REPEATED + "\nJOHN\nBye.\n\nANNE\nOnly one speech here.\n"
    return dataset(encode({"m": "ACT I\n" + john, "an_other": "ACT I\n" + REPEATED}), 1)


def text_of(x: Windows | np.ndarray, row: int) -> str:
    return "".join(VOCABULARY[code] for code in x[row])


class TestSamples:
    def test_roles_of_at_least_two_speeches(self) -> None:
        assert small().user_names == ("m.john", "m.mary", "an-other.mary")
        assert small().classes == tuple(VOCABULARY)
        assert len(set(VOCABULARY)) == len(VOCABULARY) == 80

    def test_a_sample_is_eighty_characters_and_the_next(self) -> None:
        data = small()
        whole = "\n".join(line(number) for number in range(9)) + "\n"  # 12 speeches: 3 are held out
        mary = data.clients()["m.mary"]
        assert len(mary.train) == len(whole) - CONTEXT
        for row in (0, 1, len(mary.train) - 1):
            assert text_of(mary.train.x, row) == whole[row : row + CONTEXT]
            assert VOCABULARY[mary.train.y[row]] == whole[row + CONTEXT]
        assert mary.test is None  # 54 characters
        np.testing.assert_array_equal(np.asarray(data.clients()["an-other.mary"].train.x), np.asarray(mary.train.x))

    def test_pieces_with_a_label_at_every_position(self) -> None:
        data = dataset(
            encode({"m": "ACT I\n" + "".join(f"\n{who}\n{'x' * 99}\n" for who in ("JOHN", "MARY") * 12)}), 80
        )
        x, y = np.asarray(data.train.x), np.asarray(data.train.y)
        assert (data.name, x.shape, y.shape) == ("shakespeare-unrolled", (22, 80), (22, 80))  # 900 characters each
        np.testing.assert_array_equal(x[:, 1:], y[:, :-1])
        for user in (0, 1):
            mine = np.flatnonzero(data.train.users == user)
            np.testing.assert_array_equal(x[mine[1:], 0], y[mine[:-1], -1])
            assert text_of(x, mine[1]) == "x" * 19 + "\n" + "x" * 60
        inputs, targets = as_examples(data.train).span(0, 2)
        assert (inputs.shape, targets.shape) == ((2, 80), (2, 80))

    def test_no_window_crosses_roles_or_the_split(self) -> None:
        plays = {"m": "ACT I\n" + "".join(f"\nJOHN\n{'j' * 90}\n\nMARY\n{'m' * 90}\n" for _ in range(10))}
        data = dataset(encode(plays), 1)
        for part, lines in ((data.train, 8), (data.test, 2)):
            assert part.users is not None
            assert np.bincount(part.users).tolist() == [lines * 91 - CONTEXT] * 2
            letters = [set(text_of(part.x, row)) - {"\n"} for row in range(len(part))]
            assert letters == [{"j"} if user == 0 else {"m"} for user in part.users]

    def test_unknown_characters_are_left_out(self) -> None:
        data = dataset(encode({"m": "ACT I\n" + REPEATED.replace("of", "@é_of/")}), 1)
        assert text_of(data.train.x, 0).startswith("Line 0 ?of mary.\n")

    def test_a_play_without_speeches(self) -> None:
        with pytest.raises(DataCorrupt, match="no speech was found in m"):
            encode({"m": "ACT I"})


class TestClients:
    @staticmethod
    def owned(users: list[int], test_users: list[int]) -> Dataset:
        def part(owners: list[int]) -> LabelledExamples:
            n = len(owners)
            return LabelledExamples(
                np.arange(n, dtype=np.float32)[:, None], np.zeros(n, np.int64), np.array(owners, np.int32)
            )

        return Dataset("d", part(users), part(test_users), ("a",), "CC0", "nobody", ("zoe", "ann", "tom"))

    @pytest.mark.parametrize("users", [[0, 0, 0, 1, 2, 2], [2, 0, 1, 0, 2, 0]])
    def test_each_user_has_its_own(self, users: list[int]) -> None:
        clients = self.owned(users, [2]).clients(1)
        assert list(clients) == ["zoe", "ann", "tom"]
        assert clients.sizes.tolist() == [3, 1, 2]
        for user, name in enumerate(clients):
            assert clients.examples(name) == users.count(user)
            held = [row for row, owner in enumerate(users) if owner == user]
            assert np.asarray(clients[name].train.x).ravel().tolist() == held
        assert clients["zoe"].test is None
        assert len(clients["tom"].test or ()) == 1
        with pytest.raises(KeyError):
            clients["bob"]

    def test_those_with_too_little_are_left_out(self) -> None:
        data = self.owned([0, 0, 0, 1, 2, 2], [])
        assert list(data.clients()) == ["zoe", "tom"]
        assert list(data.clients(3)) == ["zoe"]
        with pytest.raises(ValueError, match="no user has 4 examples; the most is 3"):
            data.clients(4)
        with pytest.raises(ValueError, match="min_examples=0"):
            data.clients(0)

    def test_data_without_users(self) -> None:
        one = LabelledExamples(np.zeros((1, 1), np.float32), np.zeros(1, np.int64))
        with pytest.raises(ValueError, match="d has no users"):
            Dataset("d", one, one, ("a",), "CC0", "nobody").clients()
        with pytest.raises(ValueError, match="train users run from 0 to 3; there are 3 names"):
            self.owned([0, 3], [])
        with pytest.raises(ValueError, match="users are of shape"):
            LabelledExamples(np.zeros((1, 1), np.float32), np.zeros(1, np.int64), np.zeros(2, np.int32))


def load_or_skip(name: str) -> Dataset:
    try:
        return datasets.load(name)
    except DataUnavailable as error:
        pytest.skip(str(error))


@pytest.mark.service
def test_real_shakespeare() -> None:
    data = load_or_skip("shakespeare")
    clients = data.clients()
    assert (len(PLAYS), len(data.user_names), len(clients)) == (37, 1_125, 1_001)
    assert (len(data.train), len(data.test)) == (3_218_239, 829_308)
    assert {name.split(".")[0].replace("-", "_") for name in clients} == set(PLAYS)
    assert TypeAdapter(list[DeviceId]).validate_python(list(data.user_names)) == list(data.user_names)
    hamlet = clients["hamlet.ham"]
    assert text_of(hamlet.train.x, 0).startswith("A little more than kin, and less than kind!\nNot so, my lord;")
    assert hamlet.test is not None
    assert 0.15 < len(hamlet.test) / (len(hamlet.train) + len(hamlet.test)) < 0.25
    letters = np.bincount(data.train.y, minlength=80) / len(data.train)
    assert VOCABULARY[letters.argmax()] == " "
    assert VOCABULARY[np.argsort(letters)[-2]] == "e"


@pytest.mark.service
def test_real_shakespeare_unrolled() -> None:
    data = load_or_skip("shakespeare-unrolled")
    assert (len(data.train), len(data.test)) == (40_745, 10_820)
    assert np.asarray(data.test.y).max() < 80
