"""A fleet in virtual time: the real coordinator and the real sessions of devices, in a simulated world.

=============== ====================================================================================================
agenda          the planned calls, and their time as the coordinator's clock
behaviour       how fast devices train and send, when they are available, which vanish or do only part of the work
recorded        the same as a run's devices behaved, from a file of ``quorate record``
parts           what each device of a cohort will do, and until when
device          one device: its ``participate`` session, driven against the coordinator without a network
world           the arrivals and events of each round
secure_world    the same with secure rounds: the authority, and devices that mask
datacenter      a worker that takes datacenter rounds
simulation      all of it assembled, with the data folder that follows it
=============== ====================================================================================================
"""
