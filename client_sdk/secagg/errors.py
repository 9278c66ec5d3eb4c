"""Everything that can be wrong in secure aggregation. Each error's text is one plain sentence.

::

    SecaggError(ValueError)
    |- BadParameters     numbers that do not fit together, or do not promise what was asked
    |- BadKey            a public key that is none, or on which nothing secret can be agreed
    |- BadShare          a share that cannot be opened, or shares that do not give the secret that was committed to
    |  '- Unopened       what these peers sealed does not open: the device names them and cannot mask
    |- BadVector         values or packed lanes that are not what the round takes
    |- Refusal           nothing is malformed, and the device will not: its rules, or its owner's, say no
    |  '- Spent          it has signed on this checkpoint: the device says so, or it would be asked for ever
    '- BadMessage        bytes that are no message of this protocol, or not in the one form that it takes
       '- BadSignature   a signature that is not the device's over this
"""

from __future__ import annotations


class SecaggError(ValueError):
    """Something is wrong with a secure round. The text is one plain sentence that holds no secret."""


class BadParameters(SecaggError):
    """Numbers that do not fit together, or do not promise what was asked."""


class BadKey(SecaggError):
    """A public key that is none, or on which nothing secret can be agreed."""


class BadShare(SecaggError):
    """A share that cannot be opened, or shares that do not give the secret that was committed to."""


class Unopened(BadShare):
    """What these peers sealed for the device does not open: it complains of them, and cannot mask in this attempt."""

    def __init__(self, dealers: tuple[str, ...], why: str) -> None:
        super().__init__(f"the shares of {len(dealers)} of the peers do not open: {why}")
        self.dealers = dealers
        """Their ids, in the order of the roster."""


class BadVector(SecaggError):
    """Values or packed lanes that are not what the round takes."""


class Refusal(SecaggError):
    """Nothing is malformed, and the device will not: its rules, or its owner's, say no."""

    def __init__(self, reason: str, retry_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_s = retry_s
        """Seconds after which the same may be asked again; None: never."""


class Spent(Refusal):
    """The device has signed a survivor list on this checkpoint, and contributes on it no more.

    Whoever drives it tells the coordinator, which may not know: the signature can have been lost on the way, and a
    round that ended meanwhile takes it no more."""

    def __init__(self) -> None:
        super().__init__("This device has signed a survivor list on this checkpoint and is spent there.")


class BadMessage(SecaggError):
    """Bytes that are no message of this protocol, or not in the one form that it takes."""


class BadSignature(BadMessage):
    """A signature that is not the device's over this."""
