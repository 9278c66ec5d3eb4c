"""pfl-research's simulation of the same setting, round by round in this process, following its documentation:
FederatedAveraging, the simulated backend in one process, users weighted by their examples, plain SGD on both sides.

Data set, partition and model are Quorate's, so that both train the same. `make install` brings pfl-research where
there is a release for this Python (3.11 and 3.12).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from simulation import Clients


class Pfl:
    """pfl-research's simulation: ``play`` plays a round."""

    def __init__(
        self, module: type[nn.Module], clients: Clients, select: int, batch: int, learning_rate: float
    ) -> None:
        """``select``: clients in each round. The data of all users is loaded first, as pfl-research does."""
        from pfl.aggregate.simulate import SimulatedBackend
        from pfl.aggregate.weighting import WeightByDatapoints
        from pfl.algorithm.federated_averaging import FederatedAveraging
        from pfl.data.dataset import Dataset
        from pfl.data.federated_dataset import FederatedDataset
        from pfl.hyperparam import NNTrainHyperParams
        from pfl.model.pytorch import PyTorchModel

        class Trained(module):  # type: ignore[misc, valid-type]
            """A module with the methods that pfl-research calls."""

            def loss(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> torch.Tensor:
                self.train(not eval)
                return nn.functional.cross_entropy(self(x), y)

            def metrics(self, *_: Any, **__: Any) -> dict[str, Any]:
                return {}

        users = [clients[clients.id(number)].train for number in range(len(clients))]
        data = [(torch.from_numpy(user.x), torch.from_numpy(user.y)) for user in users]

        def shuffled(user: int) -> Any:
            x, y = data[user]
            order = torch.randperm(len(y))
            return Dataset([x[order], y[order]], user_id=str(user))

        federated = FederatedDataset(shuffled, lambda: int(np.random.randint(len(data))))
        trained = Trained()
        self._model = PyTorchModel(
            model=trained,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(trained.parameters(), lr=1.0),
        )
        self._backend = SimulatedBackend(federated, federated, postprocessors=[WeightByDatapoints()])
        self._algorithm = FederatedAveraging()
        self._select = select
        self._played = 0
        self._training = NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=learning_rate, local_batch_size=batch
        )

    def play(self) -> None:
        """Plays one round. SystemExit if it did not change the model."""
        from pfl.algorithm.base import NNAlgorithmParams

        self._played += 1
        before = [weight.detach().clone() for weight in self._model.pytorch_model.parameters()]
        self._algorithm.run(
            algorithm_params=NNAlgorithmParams(
                central_num_iterations=self._played,
                evaluation_frequency=1_000_000_000,
                train_cohort_size=self._select,
                val_cohort_size=None,
            ),
            backend=self._backend,
            model=self._model,
            model_train_params=self._training,
            send_metrics_to_platform=False,
        )
        after = self._model.pytorch_model.parameters()
        if all(torch.equal(old, new) for old, new in zip(before, after, strict=True)):
            raise SystemExit("pfl-research's round did not change the model: wrong results are not reported")
