"""Notes of each run which tensors of its model are statistics."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.add_column("runs", sa.Column("roles", sa.Text(), server_default="{}", nullable=False))
