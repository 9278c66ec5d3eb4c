"""Whole fleets on one machine: the demo, virtual time and faults."""
