"""``quorate demo``: runs a whole federation on this machine, by the same commands that a user types.

=============== ===============================================================================================
setting         the settings, and the plan made from them
children        the commands as processes: started, watched, all ended
screen          the rounds of a run, from the operators' API, on a terminal, in a file, or as JSON
compare         the same cohorts in a bare loop
command         the sequence of steps, from the options to the exit code, and a plot of accuracies in text
=============== ===============================================================================================

It has no code path of its own: coordinator, devices and evaluator are the commands ``quorate serve``, ``fleet`` and
``evaluate``, and everything that it shows comes from the operators' API.
"""
