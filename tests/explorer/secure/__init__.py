"""Secure rounds in schedules: the devices' keys and vectors, who lies, and what must hold of them."""
