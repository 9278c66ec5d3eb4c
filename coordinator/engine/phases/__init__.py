"""What may happen in each phase of a round: a file for each phase, and beside them what the phases share.

===================  =================================================================================================
selecting.py         Devices wait; the cohort is drawn.
collecting.py        The cohort trains and reports.
committing.py        The counted set becomes the next checkpoint.
leasing.py           A datacenter round waits for a worker.
training.py          A worker has it.
-------------------  -------------------------------------------------------------------------------------------------
lifecycle.py         A round opens and ends; operators pause, resume and stop the run.
round_kind.py        Of which kind the next round is.
deadlines.py         How long each phase lasts; what happens when the clock goes back.
refusing.py          What a refused event comes to; whether a device has a place in a round.
public_record.py     What the public may read of a round, and its row.
finishing.py         When a run is done.
===================  =================================================================================================

The phases of secure rounds alone are in ``coordinator.engine.secure``.
"""
