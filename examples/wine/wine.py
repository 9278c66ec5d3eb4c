"""A model for 13 measurements of a wine: which of three growers made it?"""

from torch import nn

from client_sdk.learning import accuracy
from quorate import Learner

__version__ = "1.0"


def learner() -> Learner:
    return Learner(
        model=lambda: nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, 3)),
        loss=nn.functional.cross_entropy,
        metrics={"accuracy": accuracy},
        version=__version__,
    )
