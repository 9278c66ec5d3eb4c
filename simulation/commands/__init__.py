"""``quorate simulate``: the call ``simulate(...)`` as a command line.

======== ===========================================================================================================
simulate its options, the steps of the command, and the result: lines or one JSON document, how to continue
data     from the name of a data set to clients and a central test set
rerun    trains one client of a round again
======== ===========================================================================================================
"""
