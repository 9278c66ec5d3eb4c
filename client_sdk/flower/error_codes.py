"""The codes of Flower's error replies, as this project sends them. A test compares them with flwr's."""

from __future__ import annotations

from enum import IntEnum

from client_sdk.protocol.flower import FlowerError

REASON_LIMIT = 2000
"""Characters of ``FlowerError.reason``."""


class ErrorCode(IntEnum):
    """flwr's ``ErrorCode``, of which a device and the Grid use these."""

    UNKNOWN = 0
    LOAD_CLIENT_APP_EXCEPTION = 1
    CLIENT_APP_RAISED_EXCEPTION = 2
    MESSAGE_UNAVAILABLE = 3
    REPLY_MESSAGE_UNAVAILABLE = 4
    NODE_UNAVAILABLE = 5
    CLIENT_APP_CRASHED = 8


def error(code: ErrorCode, reason: str) -> FlowerError:
    """An error in place of a reply; its reason is cut where it is too long, and what is no text in it becomes ``?``."""
    return FlowerError(code=int(code), reason=reason[:REASON_LIMIT].encode(errors="replace").decode())


def raised(error_: BaseException) -> FlowerError:
    """What Flower replies when a ClientApp raises: the exception's class and text."""
    try:
        text = str(error_)
    except Exception as failure:  # noqa: BLE001 - the text is the app's code too
        text = f"its text raises {type(failure).__name__}"
    return error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{type(error_)}:<'{text}'>")
