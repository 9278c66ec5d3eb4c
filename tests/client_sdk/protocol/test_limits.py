"""The limits of a message's fields: the outermost values that are read, and the nearest ones that are refused.

Both ends rely on them: a coordinator of another version must take what this device sends, and refuse what it refused.
The limits of the other fields of a plan are tested with the plan.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from tests.equivalence.pinned import MESSAGES

MANY = 2**31
NONE_NEGATIVE = ([0, 1], [-1])
FROM_ONE = ([1, 2], [0, -1])
LENGTHS = ([0.0, 1e9], [-0.001, math.inf, math.nan])
HOLD = ([0.0, 300.0], [-0.001, 300.5, math.inf, math.nan])
WORD = (["", "x" * 64], ["x" * 65])
REASON = (["", "x" * 500], ["x" * 501])


def table(keys: int) -> dict[str, float]:
    return {f"metric{number}": 0.5 for number in range(keys)}


def learners(keys: int) -> dict[str, str]:
    return {f"package:learner{number}": "1" for number in range(keys)}


WIDE = {"datacenter-task": {"steps": 10**8, "batch_size": 10**8, "nproc": 1, "accumulate": 1, "warmup_steps": 0}}
"""Changes of a document whose fields limit each other."""
LIMITS: list[tuple[str, str, tuple[list[Any], list[Any]]]] = [
    ("registration", "certificate", (["00", "af" * 200], ["", "0", "AF", "zz", "af" * 201])),
    ("registration", "examples", ([0, MANY], [-1, MANY + 1])),
    ("registration", "label", WORD),
    ("secure-bounds", "smallest_cohort", ([2, 10**6], [1])),
    ("secure-bounds", "most_colluding", ([None, 1], [0])),
    ("secure-bounds", "largest_norm", ([None, 1e-9], [0, math.inf])),
    ("secure-bounds", "smallest_norm", ([0, 1e9], [-1e-9, math.inf, None])),
    ("secure-bounds", "largest_range", ([None, 1e-9], [0, math.inf])),
    ("secure-bounds", "largest_weight_cap", ([None, 1], [0])),
    ("secure-bounds", "smallest_sigma", ([1, 128], [0, 129])),
    ("policy", "max_epochs", ([None, 1], [0])),
    ("check-in", "examples", ([0, MANY], [-1, MANY + 1])),
    ("check-in", "learners", ([{}, learners(256)], [learners(257)])),
    ("check-in", "hold_s", HOLD),
    ("checkpoint-ref", "version", NONE_NEGATIVE),
    ("checkpoint-ref", "bytes", NONE_NEGATIVE),
    ("assignment", "round", FROM_ONE),
    ("assignment", "attempt", NONE_NEGATIVE),
    ("assignment", "max_update_bytes", NONE_NEGATIVE),
    ("wait", "min_s", ([0.0], [-0.001])),
    ("wait", "max_s", ([0.0], [-0.001])),
    ("started", "attempt", NONE_NEGATIVE),
    ("withdrawal", "attempt", NONE_NEGATIVE),
    ("withdrawal", "reason", REASON),
    ("work", "steps", NONE_NEGATIVE),
    ("work", "steps_planned", NONE_NEGATIVE),
    ("work", "epochs", LENGTHS),
    ("work", "examples_seen", NONE_NEGATIVE),
    ("score", "examples", ([1, 2**40], [0, 2**40 + 1])),
    ("score", "metrics", ([{}, table(64)], [table(65), {"loss": math.nan}])),
    ("update-report", "round", FROM_ONE),
    ("update-report", "attempt", NONE_NEGATIVE),
    ("update-report", "examples", ([0, MANY], [-1, MANY + 1])),
    ("update-report", "fetch_s", LENGTHS),
    ("update-report", "train_s", LENGTHS),
    ("update-report", "encode_s", LENGTHS),
    ("update-report", "metrics", ([{}, table(64)], [table(65), {"loss": math.inf}])),
    ("create-run", "origin", (["", "x" * 300], ["x" * 301])),
    ("advance-run", "by", (["x", "x" * 120], ["", "x" * 121])),
    ("metric-report", "version", NONE_NEGATIVE),
    ("datacenter-task", "steps", ([1, 10**8], [0, 10**8 + 1])),
    ("datacenter-task", "batch_size", ([1, 10**8], [0, 10**8 + 1])),
    ("datacenter-task", "accumulate", ([1, 65_536], [0, 65_537])),
    ("datacenter-task", "nproc", ([1, 65_536], [0, 65_537])),
    ("datacenter-task", "learning_rate", ([1e-9, 1000], [0, 1000.5, math.nan])),
    ("datacenter-task", "momentum", ([0, 0.999], [-0.001, 1, math.nan])),
    ("datacenter-task", "weight_decay", ([0, 10], [-0.001, 10.5, math.nan])),
    ("datacenter-task", "trust_coefficient", ([1e-9, 1000], [0, 1000.5, math.nan])),
    ("datacenter-task", "warmup_steps", ([0, 10**8], [-1, 10**8 + 1])),
    ("worker-poll", "instance", (["x", "x" * 64], ["", "x" * 65])),
    ("worker-poll", "installation", WORD),
    ("worker-poll", "learners", ([{}, learners(256)], [learners(257)])),
    ("worker-poll", "data", ([(), ("proxy",) * 256], [("proxy",) * 257])),
    ("worker-poll", "nproc", ([1, 65_536], [0, 65_537])),
    ("worker-poll", "hold_s", HOLD),
    ("worker-registration", "certificate", (["00", "af" * 200], ["", "0", "AF", "zz", "af" * 201])),
    ("worker-registration", "label", WORD),
    ("lease", "round", FROM_ONE),
    ("lease", "attempt", FROM_ONE),
    ("lease", "fence", FROM_ONE),
    ("lease", "max_result_bytes", NONE_NEGATIVE),
    ("heartbeat", "attempt", FROM_ONE),
    ("heartbeat", "fence", FROM_ONE),
    ("heartbeat", "step", ([0, 2**53], [-1, 2**53 + 1])),
    ("heartbeat", "metrics", ([{}, table(16)], [table(17), {"loss": math.nan}])),
    ("lease-end", "attempt", FROM_ONE),
    ("lease-end", "fence", FROM_ONE),
    ("lease-end", "reason", REASON),
    ("result-report", "fence", FROM_ONE),
    ("result-report", "steps", ([0, 2**53], [-1, 2**53 + 1])),
    ("result-report", "examples", ([0, 2**53], [-1, 2**53 + 1])),
    ("result-report", "metrics", ([{}, table(16)], [table(17), {"loss": math.nan}])),
]


@pytest.mark.parametrize(("name", "field", "values"), LIMITS, ids=lambda value: value if isinstance(value, str) else "")
def test_the_outermost_values_are_read_and_the_nearest_ones_beyond_are_refused(
    name: str, field: str, values: tuple[list[Any], list[Any]]
) -> None:
    kind, document, _ = MESSAGES[name]
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    assert field in document
    document = {**document, **WIDE.get(name, {})}
    read, refused = values
    for value in read:
        assert getattr(adapter.validate_python({**document, field: value}), field) == value
    for value in refused:
        with pytest.raises(ValidationError) as error:
            adapter.validate_python({**document, field: value})
        assert error.value.errors()[0]["loc"][0] == field
