"""Starts, watches and ends supervised child processes: the demo's commands, a fleet's workers, training jobs and the
preflight check of a machine.

=============== ===============================================================================================
supervised      the parent's side: a child is started, followed line by line, asked to end, and killed
parent_pipe     the child's side: it notices that its parent has ended, also by ``kill -9``, and ends
family          process trees: descendants, processes that carry a mark, the text for an exit code
=============== ===============================================================================================

A supervised child leads a session of its own, so a terminal's Ctrl-C reaches only its parent, which then decides. Its
standard input is a pipe that only its parent can write to. Its environment carries a mark, which its descendants
inherit: this finds descendants that outlived the child in sessions of their own, such as the ranks of a killed
torchrun.

The process engine of simulations (``simulation.engines.process_pool``) does not use this package: its workers are forks
that share memory with their parent and communicate over sockets.

A child has a pipe on its standard input that only its parent holds, and a mark in its environment. The pipe ends with
the parent, also by ``kill -9``, on every POSIX system (``PR_SET_PDEATHSIG`` is Linux alone and asks about a thread).
Killing by the mark reaches ranks of torchrun, which lead sessions of their own, and processes whose parent is gone; a
process group or descent reaches neither.
"""

from coordinator.child_processes.family import how_it_ended as how_it_ended
from coordinator.child_processes.parent_pipe import end_with_parent as end_with_parent
from coordinator.child_processes.parent_pipe import when_parent_ends as when_parent_ends
from coordinator.child_processes.supervised import SupervisedChild as SupervisedChild
from coordinator.child_processes.supervised import SupervisedChildren as SupervisedChildren
