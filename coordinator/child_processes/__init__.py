"""One way to start, watch and end processes of one's own: the demo's commands, a fleet's workers, training jobs and the
look at a machine before it trains.

=============== ===============================================================================================
supervised      the parent's side: a child is started, followed line by line, asked to end, and killed
parent_pipe     the child's side: it notices that its parent is gone, also by ``kill -9``, and ends
family          whole families of processes: who descends from whom, who carries which mark, how one ended
=============== ===============================================================================================

A supervised child leads a session of its own, so that a terminal's Ctrl-C reaches its parent alone, which then decides.
Its standard input is a pipe that only its parent can write to. It carries a mark in its environment, which all that it
starts inherit: so even those are found that outlived it and lead sessions of their own, as the ranks of a killed
torchrun do.

The process engine of simulations (``simulation.engines.process_pool``) is another thing: its workers are forks that
share memory with their parent and are spoken to over sockets.
"""

from coordinator.child_processes.family import how_it_ended as how_it_ended
from coordinator.child_processes.parent_pipe import end_with_parent as end_with_parent
from coordinator.child_processes.parent_pipe import when_parent_ends as when_parent_ends
from coordinator.child_processes.supervised import SupervisedChild as SupervisedChild
from coordinator.child_processes.supervised import SupervisedChildren as SupervisedChildren
