"""``quorate demo``: a whole federation on this machine, driven by the same commands that a user types.

=============== ===============================================================================================
setting         what can be chosen, and the plan that is made of it
children        the commands as processes: started, watched, all ended
journal         what the coordinator says of the run, as lines about rounds
screen          these lines on a terminal, in a file, or as JSON
curve           a plot of accuracies in text
compare         the same cohorts in the bare loop of ``simulation.demo.bare_loop``
director        the order of things
=============== ===============================================================================================

There is no path of its own: coordinator, devices and evaluator are the commands ``quorate serve``, ``fleet`` and
``evaluate``, and all it shows is read from the operators' API.
"""
