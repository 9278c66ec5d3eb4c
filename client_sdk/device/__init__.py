"""A device's session, state and policy, without network code.

``session`` is a generator of ``actions``; ``policy`` is pure; ``storage`` and ``checkpoint_cache`` write files.
"""
