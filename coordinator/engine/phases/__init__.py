"""The phases of a round: one file for each phase, and files for the parts that they share.

===================  =================================================================================================
selecting.py         Devices wait; the cohort is drawn.
collecting.py        The cohort trains and reports.
committing.py        The counted set becomes the next checkpoint.
leasing.py           A datacenter round waits for a worker.
training.py          A worker has the lease of a datacenter round.
-------------------  -------------------------------------------------------------------------------------------------
opening.py           Whether the next round opens, or why not.
lifecycle.py         A round ends; the clock goes back; operators pause, resume and stop the run.
round_kind.py        The kind of the next round.
refusing.py          The result of a refused event; whether a device has a place in a round.
public_record.py     The public view of a round, and its row.
finishing.py         When a run is finished.
===================  =================================================================================================

The phases of secure rounds alone are in ``coordinator.engine.secure``.
"""
