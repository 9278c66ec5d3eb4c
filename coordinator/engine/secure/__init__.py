"""The phases of secure rounds: the decisions only. ``coordinator.secure`` performs them."""
