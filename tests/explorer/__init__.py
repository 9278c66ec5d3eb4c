"""The fault explorer: searches millions of schedules of faults for a broken invariant. See docs/faults.md.

``explore`` plays many schedules, ``play`` one; ``Shape.of(seed)`` is the setting of a schedule, ``shrink`` makes a
short trace of one that failed. It plays on the ``Product``, into which tests seed bugs.
"""
