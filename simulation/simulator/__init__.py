"""``simulate()`` and its parts: checks of its arguments, the first model, scores, progress."""
