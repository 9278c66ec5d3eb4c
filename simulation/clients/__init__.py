"""The clients of a simulation, with the data that each holds.

```python
from simulation.clients import Clients
clients = Clients.of({"ward-7": (x7, y7), "ward-9": (x9, y9)})     # or what ``partition`` makes of a data set
clients["ward-7"].train, clients.examples("ward-7"), clients.sizes
clients.draw("who-holds-what.svg")                                 # a notebook shows it by itself
```
"""

from __future__ import annotations

from simulation.clients.clients import Clients
from simulation.clients.holdings import ClientData
from simulation.clients.picture import Picture

__all__ = ["ClientData", "Clients", "Picture"]
