"""The fault explorer: every way a round can go wrong, searched by the million. See docs/faults.md.

``explore`` plays many schedules, ``play`` one; ``Shape.of(seed)`` is a schedule before it begins, ``shrink`` makes a
short trace of one that failed. What it plays on is the ``Product``, which tests spoil with seeded bugs.
"""
