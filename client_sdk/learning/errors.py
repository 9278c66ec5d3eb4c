"""What can go wrong while a device learns, in plain sentences. They need no torch, so a driver can catch them.

::

    LearningError                 base; the message is one sentence for people
      OutOfTime                   the time ran out before one step was done        the device withdraws
      DataError                   the device's data cannot be used as it is        the owner of the data mends it
        NoExamples                there is nothing to learn from                   the device withdraws
      CheckpointMismatch          checkpoint and model differ in names, shapes,    another learner or another checkpoint
                                  dtypes, or in what is averaged
      Diverged                    loss, gradient or weights are not finite         a smaller learning rate, or clipping
      LearnerFailed               the learner's own code raised, or returned       the author of the learner mends it
                                  something that cannot be used
"""

from __future__ import annotations


class LearningError(Exception):
    """Base of everything a learner refuses. ``str(error)`` is one plain sentence, fit for a withdrawal's reason."""


class OutOfTime(LearningError):
    """Time budget or deadline left no room for a single step, so there is nothing to report."""


class DataError(LearningError):
    """The data is not of a kind that can be trained on: wrong type, lengths that differ, arrays of objects."""


class NoExamples(DataError):
    """There is not one example."""


class CheckpointMismatch(LearningError):
    """The checkpoint is not one of this learner's, or the plan averages tensors that this learner does not train."""


class Diverged(LearningError):
    """A number that must be finite is not."""


class LearnerFailed(LearningError):
    """The learner's model, loss, optimizer or metric raised an error or returned something unusable."""
