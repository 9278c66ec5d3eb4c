"""Notes of each device what it said of itself at its last check-in."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    op.add_column("devices", sa.Column("facts", sa.Text(), server_default="{}", nullable=False))
