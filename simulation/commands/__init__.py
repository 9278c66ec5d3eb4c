"""``quorate simulate``: the call ``simulate(...)`` as a command line.

======== ===========================================================================================================
simulate its options, the order of what is done, and the outcome: lines or one JSON document, how to go on
data     from the name of a data set to clients and a central test set
rerun    one client of a round again
======== ===========================================================================================================
"""
