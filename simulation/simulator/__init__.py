"""``simulate()`` and its parts: checks of what was asked, the first model, scores, progress."""
