"""What every store must do for secure rounds."""

from __future__ import annotations

from tests.coordinator.store.contract_marks import MarksContract
from tests.coordinator.store.contract_messages import MessagesContract


class SecureContract(MarksContract, MessagesContract):
    """Marks of devices, and messages of a round under way."""
