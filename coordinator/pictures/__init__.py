"""Pictures of runs for papers and notebooks, by matplotlib's object interface: no pyplot, no display.

========================================== ==========================================================================
panel                                      colours, ticks, legends of all panels
funnel, metrics, exchanges, lanes (_panel) one panel each
run_figure                                 the picture of one run, as ``quorate plot`` writes it
========================================== ==========================================================================

This file and ``curve`` need no matplotlib.
"""
