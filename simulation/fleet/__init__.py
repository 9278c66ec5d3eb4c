"""Runs many real devices on one machine: each has its own session over HTTP, key, folder and shard of one data set.

=============== ===============================================================================================
split           the examples of each device
habits          which devices are slow, vanish or send too late: a function of (seed, device, round)
round_times     which rounds are over, as seen by the devices of one process
checkpoints     one download of a checkpoint for all devices of a process
vanishing       a device that is gone in an exchange of a secure round
trainer         one device's trainer: the learner's, with the device's habits
worker          one process with many devices, a thread each
processes       the worker processes: started, counted, stopped
=============== ===============================================================================================

Devices reach the coordinator only by HTTP.
"""
