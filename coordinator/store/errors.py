"""What goes wrong in a store. After any of these nothing of the transaction was stored.

::

    StoreError
     |- StoreFull    the disk is full: it may be repeated when there is space
     |- FenceLost    another replica commits in this one's place
     |- Conflict     a unique key refused a row
     `- NoSuchValue  no column can hold the value
"""

from __future__ import annotations


class StoreError(Exception):
    """The store failed (disk full, locked, not reachable). Nothing of the transaction was stored."""


class StoreFull(StoreError):
    """The disk is full. Nothing of the transaction was stored; it may be repeated when there is space."""


class FenceLost(StoreError):
    """Another replica has raised the run's fence since, and commits in this one's place.

    Nothing of the transaction was stored.
    """


class Conflict(StoreError):
    """A unique key refused a row: a fork of the line of checkpoints, a device counted twice, an id in use.

    Nothing of the transaction was stored.
    """


class NoSuchValue(StoreError, ValueError):
    """A value that no column can hold, so that it cannot be looked for either: a number beyond 64 bits, a text that is
    no Unicode."""
