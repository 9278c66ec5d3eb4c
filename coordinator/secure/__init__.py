"""Secure rounds performed: what the engine's digests stand for, and what its actions ask for.

Imports the engine and ``client_sdk.secagg``; the runtime puts it together (``runtime.secure_rounds``). One idea a file,
lowest first::

    intake       is this message what its stage takes, from whom it says, over this very attempt?
    kept         how messages and sums are blobs that no two attempts share
    announcing   the header of an attempt
    gathering    the roster, out of what devices advertised
    routing      what a device is answered: roster, shares of its peers, survivors, their signatures
    opening      the sum, out of masked vectors and revealed shares: no unmasked vector of one device ever exists
    committing   the sum as the next checkpoint, and an exhausted run's way out
    attempt      what the engine's state says of the attempt under way, read from blobs
    performing   the engine's actions, and the checkpoint of a commit
    requests     what devices ask
"""
