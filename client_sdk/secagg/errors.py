"""The errors of secure aggregation. Each error's text is one plain sentence.

::

    SecaggError(ValueError)
    |- BadParameters          inconsistent numbers, or numbers that do not give the required security
    |- BadKey                 a public key that is malformed, or that gives no secret
    |- BadShare               a share that cannot be opened, or shares that do not give the committed secret
    |- BadVector              values or packed lanes that the round does not accept
    |- Refusal                nothing is malformed, but a rule of the device or of its owner forbids the step
    |  |- Expired             the attempt's time is over
    |  '- SpentOnCheckpoint   the device has signed on this checkpoint, and reports that
    |- Superseded             another program of this device has gone on with the attempt, or has begun a newer one
    '- BadMessage             bytes that are not a message of this protocol in its canonical form
       '- BadSignature        a signature that is not the device's over these bytes
"""

from __future__ import annotations


class SecaggError(ValueError):
    """An error of a secure round. The text is one plain sentence that holds no secret."""


class BadParameters(SecaggError):
    """Inconsistent numbers, or numbers that do not give the required security."""


class BadKey(SecaggError):
    """A public key that is malformed, or that gives no secret."""


class BadShare(SecaggError):
    """A share that cannot be opened, or shares that do not give the committed secret."""


class BadVector(SecaggError):
    """Values or packed lanes that the round does not accept."""


class Refusal(SecaggError):
    """Nothing is malformed, but a rule of the device or of its owner forbids the step."""

    def __init__(self, reason: str, retry_s: float | None = None, *, final: bool = False) -> None:
        super().__init__(reason)
        self.retry_s = retry_s
        """Seconds after which the same request may be repeated; None: never."""
        self.final = final
        """Whether this device takes part in no attempt of this run on this checkpoint any more. The driver reports that
        to the coordinator, which then counts on it no longer."""


class Expired(Refusal):
    """The answer came when the attempt's time was over. The device has deleted what it held of it, and can join a newer
    one."""

    def __init__(self) -> None:
        super().__init__("This attempt has expired.")


class SpentOnCheckpoint(Refusal):
    """The device has signed a survivor list on this checkpoint, and contributes to it no more.

    The driver reports this to the coordinator, which may not know it: the signature may have been lost, or may have
    arrived after the round had ended."""

    def __init__(self) -> None:
        super().__init__("This device has signed a survivor list on this checkpoint and is spent there.", final=True)


class Superseded(SecaggError):
    """The stored attempt is at another step than the one from which this step was to be taken, or is another attempt.

    Two programs play this device at once, and the other one was faster: this one ends. Nothing was stored, and it
    sends nothing more. It is no refusal: the driver reports nothing to the coordinator."""

    def __init__(self) -> None:
        super().__init__("This device's attempt on this checkpoint has gone on elsewhere; this one ends.")


class BadMessage(SecaggError):
    """Bytes that are not a message of this protocol in its canonical form."""


class BadSignature(BadMessage):
    """A signature that is not the device's over these bytes."""
