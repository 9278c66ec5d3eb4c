"""Trains a plan's learner on a datacenter's machines by synchronous SGD. Needs the extra ``datacenter`` to train.

``job.launch`` starts the processes and follows them without torch; ``training.train`` is what they do. Rounds and
leases are handled in ``worker`` and ``trainer``, which turn a leased round into a job.
"""
