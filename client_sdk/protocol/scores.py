"""The message with a model's scores: of one device, or of all examples that somebody scored it on."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer

from client_sdk.protocol.names import Finite, Message, MetricName

MOST_STATE = 1024
"""Numbers in the states of one score, of all metrics together."""


class Score(Message):
    """Metrics by name, and the number of examples over which they were computed."""

    examples: int = Field(ge=1, le=2**40)
    metrics: dict[MetricName, Finite] = Field(max_length=64)
    weights: dict[MetricName, Annotated[float, Field(gt=0, le=2.0**60)]] = Field(default_factory=dict, max_length=64)
    """What the value of a metric counts by when scores are averaged, where that is not ``examples``: how many labels
    there are, or the sum of their classes' weights."""
    states: dict[MetricName, list[Annotated[float, Field(ge=-(2.0**60), le=2.0**60)]]] = Field(
        default_factory=dict, max_length=64, repr=False
    )
    """The state of each metric whose states are added up, number by number, before there is a value: counts in a
    confusion matrix, or in the bins of a curve. At most 1,024 numbers in all."""

    @model_serializer(mode="wrap")
    def _what_is_there(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        body: dict[str, Any] = whole(self)
        for name in ("weights", "states"):
            if not body.get(name):
                body.pop(name, None)
        return body

    @field_validator("states")
    @classmethod
    def _small_states(cls, value: dict[str, list[float]]) -> dict[str, list[float]]:
        if sum(map(len, value.values())) > MOST_STATE:
            raise ValueError(f"the states of all metrics have at most {MOST_STATE} numbers")
        return value
