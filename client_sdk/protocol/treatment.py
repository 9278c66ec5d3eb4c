"""What was done to the updates of a round, as operators see it: a part of ``operators.RoundView``."""

from __future__ import annotations

from pydantic import Field

from client_sdk.protocol.names import Message

TREATED = {
    "clipped": "scaled down to clip_norm",
    "capped": "weighed less than their examples, by weight_cap or their registration",
    "partial": "of work cut short by a deadline (partial)",
    "statistics_cut": "with statistics cut to statistics_range",
}
"""The counts of ``Treatment``, as words after ``3 of 10 updates``."""


class Treatment(Message):
    """What was done to the updates of a round before they were added up: how many of those that were received in time.
    None: it is not known, or not shown; in secure rounds devices clip and weigh under masks, and tell nobody."""

    clipped: int | None = 0
    """Scaled down to ``aggregation.clip_norm``."""
    capped: int | None = 0
    """Weighed less than their examples, by ``aggregation.weight_cap`` or by the cap of the device's registration."""
    partial: int | None = 0
    """Of work that a deadline or a time budget cut short."""
    statistics_cut: int | None = 0
    """With values of statistics (such as a running mean) that were cut to ``aggregation.statistics_range``."""
    rounding: float | None = 0.0
    """The largest rounding error: half a unit of the exact sum, or half a step of ``float16@1``, relative to the
    largest value of the update; 0 below 0.001. In secure rounds about how much of the step is rounding; None below
    0.3."""
    zero_sum: bool = False
    """Whether the sum was zero in every value, so that the round moved nothing by itself."""
    raised: int = 0
    """Values of non-negative statistics (such as a running variance) that are 0 in the checkpoint, since what devices
    sent would have made them less."""
    duplicates: int = 0
    """Updates beside the first one of their device: of two processes that take part as one, from copies of a folder."""
    refused: dict[str, int] | None = Field(default_factory=dict)
    """Why updates were refused, late ones left out: reason -> how many, the most common first, at most 8. Part of a
    reason may be text of a device."""

    def words(self, updates: int) -> list[str]:
        """What was done to so many updates, a clause each; none for what was not done, or is not known."""
        counts = {text: getattr(self, name) for name, text in TREATED.items()}
        found = [f"{count} of {updates} updates {text}" for text, count in counts.items() if count]
        if self.rounding:
            found.append(rounding_words(self.rounding, masked=self.clipped is None))
        found += ["the sum of the updates was zero"] * self.zero_sum
        found += [f"{self.duplicates} second updates of a device, which may be two"] * (self.duplicates > 0)
        return found + [f"{self.raised} values of statistics would have been below 0"] * (self.raised > 0)


def rounding_words(rounding: float, *, masked: bool) -> str:
    """``Treatment.rounding`` in words. ``masked``: of a secure round."""
    if masked:
        return (
            f"rounding is about {rounding:.2g} of the step: lower max_abs and max_norm of [secure] towards what "
            "devices send, or raise q"
        )
    return f"rounding errors up to {rounding:.2g} of an update's largest value"
