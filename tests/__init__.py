"""Tests, in folders that mirror the rooms. Imported by path, so folders below need no `__init__.py`."""
