"""Many real devices on one machine: each a session of its own over HTTP, with its key, its folder and its shard of one
data set.

=============== ===============================================================================================
split           who has which examples
habits          who is slow, who vanishes, who sends too late: a function of (seed, device, round)
pulse           which rounds are over, as far as the devices of one process know
checkpoints     one download of a checkpoint for all devices of a process
trainer         one device's trainer: the learner's, with a habit put around it
worker          one process with many devices, a thread each
processes       the worker processes: started, counted, stopped
=============== ===============================================================================================

Devices speak to the coordinator by HTTP alone.
"""
