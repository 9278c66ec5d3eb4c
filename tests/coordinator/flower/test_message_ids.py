"""The ids of messages: the same for the same messages, and all others from the first different group on."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from coordinator.flower.grid import MessageIds

Sending = tuple[int, str, str, str]
GROUPS = st.lists(
    st.tuples(
        st.sampled_from(["train", "evaluate"]),
        st.sampled_from(["1", "2", ""]),
        st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["a" * 64, "b" * 64])), min_size=1, max_size=5),
    ),
    min_size=1,
    max_size=4,
)


def flat(groups: Sequence[tuple[str, str, list[tuple[int, str]]]]) -> list[list[Sending]]:
    """Return the messages of each group; neighbours of one kind and group id are one group."""
    found: list[list[Sending]] = []
    for kind, group, messages in groups:
        sent = [(node, kind, group, content) for node, content in messages]
        if found and found[-1][0][1:3] == (kind, group):
            found[-1] += sent
        else:
            found.append(sent)
    return found


def names(messages: Sequence[Sending]) -> list[str]:
    ids = MessageIds()
    return [ids.name(*message) for message in messages]


@given(GROUPS, st.randoms(use_true_random=False))
def test_the_order_between_nodes_of_a_group_does_not_count(
    groups: list[tuple[str, str, list[tuple[int, str]]]], random: object
) -> None:
    ordered = [message for group in flat(groups) for message in group]
    mixed = []
    for group in flat(groups):
        queues = {node: [one for one in group if one[0] == node] for node, *_ in group}
        while queues:
            node = random.choice(sorted(queues))  # type: ignore[attr-defined]
            mixed.append(queues[node].pop(0))
            if not queues[node]:
                del queues[node]
    assert sorted(names(mixed)) == sorted(names(ordered))
    assert len(set(names(ordered))) == len(ordered)


@given(GROUPS, st.data())
def test_after_a_different_group_all_ids_differ(
    groups: list[tuple[str, str, list[tuple[int, str]]]], data: st.DataObject
) -> None:
    split = flat(groups)
    where = data.draw(st.integers(0, len(split) - 1))
    changed = [list(group) for group in split]
    node, kind, group, _ = changed[where][-1]
    changed[where][-1] = (node, kind, group, "c" * 64)
    before = sum(len(one) for one in split[:where])
    first, second = names([m for one in split for m in one]), names([m for one in changed for m in one])
    assert first[:before] == second[:before]
    behind = before + len(split[where])
    assert not set(first[behind:]) & set(second)


def test_a_draft_changes_nothing() -> None:
    ids = MessageIds()
    ids.name(1, "train", "1", "a" * 64)
    draft = ids.draft()
    drafted = [draft.name(1, "train", "1", "a" * 64), draft.name(2, "evaluate", "1", "a" * 64)]
    assert [ids.name(1, "train", "1", "a" * 64), ids.name(2, "evaluate", "1", "a" * 64)] == drafted
