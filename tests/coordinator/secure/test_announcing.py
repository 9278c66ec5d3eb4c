"""What the header of an attempt says of its run."""

from __future__ import annotations

from coordinator.secure.announcing import run_digest


def test_a_run_has_one_digest_whether_its_second_of_creation_is_read_as_a_whole_number() -> None:
    """A clock may give a whole number, which a database returns as a float."""
    digests = {
        run_digest("mnist", created_at=at, init="a" * 64, plan_digest="b" * 64) for at in (1767225600, 1767225600.0)
    }
    assert len(digests) == 1


def test_another_run_of_the_same_name_has_another_digest() -> None:
    made = {"run": "mnist", "created_at": 1.0, "init": "a" * 64, "plan_digest": "b" * 64}
    others = [{"run": "mnist-2"}, {"created_at": 2.0}, {"init": "c" * 64}, {"plan_digest": "c" * 64}]
    digests = {run_digest(**{**made, **other}) for other in [{}, *others]}  # type: ignore[arg-type]
    assert len(digests) == 5
