"""The history of the schema: one file for each step, which alembic runs (``coordinator/store/migrate.py``)."""
