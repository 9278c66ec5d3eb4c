"""A fleet in virtual time: the real coordinator and the devices' real sessions, in a world that is made of arithmetic.

======== ===========================================================================================================
clock    the agenda's time, as the coordinator's clock
device   one device: its ``participate`` session, driven against the coordinator without a network
parts    what each device of a cohort will do, and until when
sums     the coordinator's view of what an engine keeps
world    who arrives, what happens when, round by round
======== ===========================================================================================================
"""
