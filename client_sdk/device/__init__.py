"""What a device does, remembers and agrees to, without a socket.

``session`` is a generator of ``actions``; ``policy`` is pure; ``storage`` and ``checkpoint_cache`` keep files.
"""
