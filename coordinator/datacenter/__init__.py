"""Trains a plan's learner on a datacenter's machines by synchronous SGD. Needs the extra ``datacenter`` to train.

``job.launch`` starts the processes and follows them without torch; ``training.train`` is what they do. This package
knows learners, data and groups of processes; rounds and leases belong to whoever hands it a job.
"""
