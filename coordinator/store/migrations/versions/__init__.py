"""Migrations, in order of their numbers. One that was released is never changed."""
