"""What this project uses of flwr beside its public API. Nothing else imports it; a test names each.

======================= ===============================================================================================
``Message(metadata=)``  a message with the metadata that the other side gave it
======================= ===============================================================================================
"""

from __future__ import annotations

from typing import Any

from flwr.app import Message, Metadata, RecordDict


def received_message(content: RecordDict, metadata: Metadata) -> Message:
    """A message that has arrived, with its own metadata."""
    message: Any = Message
    made: Message = message(content=content, metadata=metadata)
    return made
