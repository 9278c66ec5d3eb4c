"""A fleet in virtual time: the real coordinator and the real sessions of devices, in a simulated world.

======== ===========================================================================================================
clock    the agenda's time, as the coordinator's clock
device   one device: its ``participate`` session, driven against the coordinator without a network
parts    what each device of a cohort will do, and until when
sums     the coordinator's ``Sums`` over the updates in an engine
world    the arrivals and events of each round
======== ===========================================================================================================
"""
