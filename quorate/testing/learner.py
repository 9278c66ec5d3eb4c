"""The contracts of learners and data sets, also of packages: ``class TestMine(LearnerContract): learner = ...; model =
...; data = ...`` and ``class TestMine(DataContract): load = staticmethod(mine)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from client_sdk.learners import Catalogue, LearnerTrainer, roles_of
from client_sdk.protocol.devices import Assignment, CheckpointRef, Task
from client_sdk.tensors import FLOATING, Manifest, Tensors, to_bytes
from client_sdk.tensors.manifest import StatisticRole, by_name, digest_of
from client_sdk.update import Update, encode_update

NAME = "contract:learner"


class LearnerContract:
    """``learner``: what the entry point gives; ``model``: a first checkpoint; ``data``: of one device."""

    learner: Any
    model: ClassVar[Tensors]
    data: Any
    task: ClassVar[dict[str, Any]] = {"batch_size": 2, "learning_rate": 0.01, "steps": 2}

    def trained(self, *, round: int = 1, device: str = "d1", model: Tensors | None = None) -> Update:
        """What a device would send after training in this round."""
        trainer = LearnerTrainer(Catalogue({NAME: self.learner}, installed=()), self.data)
        roles = self.roles()
        assignment = Assignment(
            run="contract",
            round=round,
            attempt=0,
            device=device,
            task=Task(learner=NAME, **self.task),
            plan_digest="0" * 64,
            checkpoint=CheckpointRef(digest="0" * 64, bytes=1, version=0),
            report_within_s=60.0,
            max_update_bytes=1 << 30,
            roles=roles,
            roles_digest=digest_of(Manifest.of(self.model), roles),
        )
        return trainer.train(assignment, dict(self.model if model is None else model), device, lambda: 60.0)

    def roles(self) -> dict[str, StatisticRole]:
        """The statistics of the model: those of the learner's method ``roles``, else those that names tell."""
        model = Manifest.of(self.model)
        known = roles_of(Catalogue({NAME: self.learner}, installed=()).load(NAME), model)
        return by_name(model) if known is None else dict(known)

    def test_its_statistics_are_floating_point_tensors_of_the_model(self) -> None:
        model = Manifest.of(self.model)
        assert {model[name].dtype for name in self.roles()} <= FLOATING

    def test_an_update_has_the_models_floating_point_tensors(self) -> None:
        update = self.trained()
        wanted = Manifest.of(self.model).select(("*",))
        assert update.manifest == wanted
        assert update.examples >= 1
        assert encode_update(update, "float32@1", "contract", 1)

    def test_the_same_work_gives_the_same_update(self) -> None:
        first, second = self.trained(), self.trained()
        assert {name: array.tobytes() for name, array in first.delta.items()} == {
            name: array.tobytes() for name, array in second.delta.items()
        }

    def test_the_model_that_was_given_is_not_changed(self) -> None:
        before = to_bytes(self.model)
        self.trained()
        assert to_bytes(self.model) == before

    def test_values_are_finite(self) -> None:
        assert all(np.isfinite(array).all() for array in self.trained().delta.values())


class DataContract:
    """``load``: what the entry point gives."""

    load: Callable[[], Any]

    def parts(self) -> list[Any]:
        found = type(self).load()
        test = getattr(found, "test", None)
        return [found.train] if test is None else [found.train, test]

    def test_there_are_as_many_inputs_as_targets(self) -> None:
        for part in self.parts():
            x, y = np.asarray(part.x), np.asarray(part.y)
            assert len(x) == len(y) > 0

    def test_it_is_the_same_each_time(self) -> None:
        for one, other in zip(self.parts(), self.parts(), strict=True):
            assert np.asarray(one.x).tobytes() == np.asarray(other.x).tobytes()
            assert np.asarray(one.y).tobytes() == np.asarray(other.y).tobytes()

    def test_both_parts_are_of_one_kind(self) -> None:
        shapes = {np.asarray(part.x).shape[1:] for part in self.parts()}
        assert len(shapes) == 1
