"""Flower's ServerApps on Quorate: the Grid through which they speak to devices, and ``quorate flower run``.

It needs the extra ``flower`` and nothing of the other parts of ``coordinator``: it is a client of one.
"""
