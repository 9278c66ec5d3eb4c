"""Flower runs: a ServerApp, which decides everything about a round, sends messages to devices and pulls their replies.

This room imports no flwr. A run is rows and blobs of its own, without an event log: a message is one row, to which its
reply is added, each before the answer. Contents are blobs that the coordinator never reads.

A message's id is a hash of the ids of all earlier groups, of the earlier messages of its group to the same node, and
of node, kind, group and content. So a push may be repeated, and a ServerApp that starts from its beginning gets its
durable replies as long as it sends the same contents in the same order; from the first different group on all ids
differ. Within a group the order between nodes is left out, since older apps send from a thread for each node. A device
stores a reply and ``Context.state`` in one file before it sends it, so a message changes the state once.
"""
