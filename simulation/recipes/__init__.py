"""Experiments of the literature as functions: federated algorithms and the baselines they are compared with.

```python
from simulation import recipes
runs = {
    "FedAvg": recipes.fedavg(learner, clients, test=data.test, rounds=100, per_round=10, learning_rate=0.1),
    "one place": recipes.centralized(learner, clients, test=data.test, rounds=100, per_round=10, learning_rate=0.1),
}
recipes.draw(runs, "accuracy").savefig("curves.svg")
recipes.rounds_to(runs["FedAvg"].metric("accuracy"), 0.97)
```

| recipe                   | what                                                                  | source           |
|--------------------------|-----------------------------------------------------------------------|------------------|
| `fedavg`                 | local epochs of SGD, weighted mean of the models                      | arXiv:1602.05629 |
| `fedsgd`                 | one gradient of all of a client's data in a round                     | arXiv:1602.05629 |
| `fedprox_with_stragglers`| partial work counts, a proximal term holds clients near the model     | arXiv:1812.06127 |
| `local_only`             | each client alone, without any federation                             |                  |
| `centralized`            | all data in one place                                                 |                  |

The first three build a plan and call ``simulate``: they return a ``History`` and take ``simulate``'s other options.
With ``secure_rounds={"max_norm": ..., "max_abs": ...}`` their rounds are secure; `fedavg` takes every server optimizer.
The two baselines train with the same learner and return a ``Baseline``, which has the same curves.
"""

from __future__ import annotations

from simulation.recipes.baselines import Baseline as Baseline
from simulation.recipes.baselines import centralized as centralized
from simulation.recipes.baselines import local_only as local_only
from simulation.recipes.compare import HasCurves as HasCurves
from simulation.recipes.compare import draw as draw
from simulation.recipes.compare import rounds_to as rounds_to
from simulation.recipes.federated import fedavg as fedavg
from simulation.recipes.federated import fedprox_with_stragglers as fedprox_with_stragglers
from simulation.recipes.federated import fedsgd as fedsgd
from simulation.recipes.federated import plan as plan
from simulation.simulator.checks import SimulateOptions as SimulateOptions
