"""``quorate simulate``: the call ``simulate(...)`` as a command line.

======== ===========================================================================================================
simulate its options, and the order of what is done
share    from the name of a data set to clients and a central test set
outcome  what is said at the end: text, one JSON document, how to go on
======== ===========================================================================================================
"""
