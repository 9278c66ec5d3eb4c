"""Differential privacy: noise, and what it is worth."""
