"""Flower runs: a ServerApp, which decides everything about a round, sends messages to devices and pulls their replies.

This room imports no flwr. What it holds is in ``docs/decisions/2026-11-24-a-flower-run.md``.
"""
