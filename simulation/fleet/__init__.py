"""Runs many real devices on one machine: each has its own session over HTTP, key, folder and shard of one data set.

=============== ===============================================================================================
split           the examples of each device
trainer         one device's trainer with its habits, a function of (seed, device, round): slow, late by what is seen of
                rounds, gone in an exchange
processes       the worker processes: ordered, started, counted, stopped; in each many devices, a thread each, and one
                download of a checkpoint for all of them
=============== ===============================================================================================

Devices reach the coordinator only by HTTP.
"""
