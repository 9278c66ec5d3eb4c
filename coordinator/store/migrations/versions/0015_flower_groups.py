"""Notes of each Flower message whether its ServerApp has set the group id."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.add_column("flower_messages", sa.Column("grouped", sa.Boolean(), server_default=sa.true(), nullable=False))
