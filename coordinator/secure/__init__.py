"""The coordinator's side of secure rounds: devices' messages, and the engine's actions.

It imports the engine and ``client_sdk.secagg``; the runtime composes it (``runtime.secure_rounds``). The files, lowest
layer first::

    blob_formats   the blobs of messages and sums, of which no two attempts share one
    announcing     the header of an attempt
    routing        the answers to devices: shares of their peers, signatures of the survivors; the digests of shares
    validation     checks one message: its form, its sender, its attempt, and that its shares are those that were dealt
    opening        the sum, from masked vectors and revealed shares
    committing     the sum as the next checkpoint, and the advance of an exhausted run
    attempt        the attempt under way, read from the blobs that the engine's state names
    performing     the engine's actions: the roster from the devices' advertisements, and the checkpoint of a commit
    requests       devices' requests
"""
