"""The errors of learning on a device, in plain sentences. Importing them needs no torch.

::

    LearningError                 base; the message is one sentence for people
      OutOfTime                   the time ran out before one step was done        the device withdraws
      DataError                   the device's data cannot be used as it is        the owner of the data corrects it
        NoExamples                there is nothing to learn from                   the device withdraws
      CheckpointMismatch          checkpoint and model differ in names, shapes,    another learner or another checkpoint
                                  dtypes, or in what is averaged
      Diverged                    loss, gradient or weights are not finite         a smaller learning rate, or clipping
      LearnerFailed               the learner's own code raised, or returned       the author of the learner corrects it
                                  something that cannot be used
"""

from __future__ import annotations


class LearningError(Exception):
    """Base of all errors of learning. ``str(error)`` is one plain sentence, suitable as a withdrawal's reason."""


class OutOfTime(LearningError):
    """Time budget or deadline left no room for a single step, so there is nothing to report."""


class DataError(LearningError):
    """The data cannot be trained on: wrong type, lengths that differ, arrays of objects."""


class NoExamples(DataError):
    """There is not one example."""


class CheckpointMismatch(LearningError):
    """The checkpoint is not one of this learner's, or the plan averages tensors that this learner does not train."""


class Diverged(LearningError):
    """A number that must be finite is not."""


class LearnerFailed(LearningError):
    """The learner's model, loss, optimizer or metric raised an error or returned something unusable."""
