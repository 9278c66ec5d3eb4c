"""What a message means that leaves fields out. Peers of other versions leave out what they do not know, and plans leave
out what they do not need, so a default never changes."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from client_sdk.protocol import devices, operators, problems, secure, workers
from client_sdk.protocol.devices import DeviceFacts, Policy, Work
from client_sdk.protocol.operators import Funnel

NO_WORK = Work(steps=0, steps_planned=0, epochs=0.0, examples_seen=0, complete=True)
NO_LIMITS = Policy(learners=None, secure_only=False, max_epochs=None, secure=None, plain=None, max_state_bytes=None)
NOBODY = Funnel(waiting=0, selected=0, training=0, reported=0, withdrawn=0, late=0, dropped=0, refused=0)
DEFAULTS: dict[str, dict[str, Any]] = {
    "Assignment": {
        "kind": "assignment",
        "attempt": 0,
        "secure": None,
        "partial": "full",
        "roles": {},
        "roles_digest": "",
        "warning": "",
    },
    "CheckIn": {
        "examples": 0,
        "learners": {},
        "strategies": {},
        "policy": NO_LIMITS,
        "secure": 0,
        "hold_s": 25.0,
        "process": "",
        "facts": DeviceFacts(),
    },
    "DeviceFacts": {"sdk": "", "states_left_out": 0},
    "Registration": {"examples": 0, "label": ""},
    "Registered": {"authority_inside": False},
    "Noted": {"ok": True},
    "CheckpointStored": {"ok": True, "repaired": False},
    "Outcome": {"reason": "", "digest": None, "version": None},
    "Policy": {
        "learners": None,
        "secure_only": False,
        "max_epochs": None,
        "secure": None,
        "plain": None,
        "max_state_bytes": None,
    },
    "TaskStrategy": {"parameters": {}, "keeps": "nothing"},
    "Receipt": {"logged": None},
    "SecureBounds": {
        "smallest_cohort": 64,
        "most_colluding": None,
        "largest_norm": None,
        "smallest_norm": 0.1,
        "largest_range": None,
        "largest_weight_cap": None,
        "smallest_sigma": 80,
        "strict_only": False,
        "fewest_examples": 20,
        "whole_passes": True,
        "fewest_steps": 2,
        "largest_batch": 0.5,
        "sums_a_day": 100,
        "sums_made": False,
        "nearest_model": 0.002,
        "near_repeats": 0,
        "origins": "usual",
        "model_keys": (),
        "largest_move": 3.0,
        "late_moves": 10,
    },
    "SecureRefusal": {"spent": False},
    "SecureSigned": {"certificate": "", "body": ""},
    "SecureTask": {
        "statistics": (),
        "weighting": "examples",
        "drop": 0,
        "corrupt_millionths": 0,
        "sigma": 0,
        "eta": 0,
        "move": None,
        "move_each": None,
        "first_seed": None,
        "signed": None,
    },
    "SecureWait": {"hold_s": 25.0},
    "Started": {"attempt": 0},
    "Task": {
        "learner_version": None,
        "epochs": None,
        "steps": None,
        "batch_size": 32,
        "drop_last": False,
        "learning_rate": 0.1,
        "mu": 0.0,
        "max_grad_norm": None,
        "time_budget_s": None,
        "codec": "float32@1",
        "averaged": ("*",),
        "seed": 0,
        "score_held_out": False,
        "strategy": None,
    },
    "Score": {"weights": {}, "states": {}},
    "UpdateReport": {
        "attempt": 0,
        "work": NO_WORK,
        "fetch_s": 0.0,
        "train_s": 0.0,
        "encode_s": 0.0,
        "metrics": {},
        "held_out": None,
    },
    "Wait": {"kind": "wait", "warning": ""},
    "Withdrawal": {"attempt": 0},
    "Work": {"steps": 0, "steps_planned": 0, "epochs": 0.0, "examples_seen": 0, "complete": True},
    "CreateRun": {"init_proof": None, "origin": "", "roles": None},
    "DeviceView": {
        "unfit": "",
        "warning": "",
        "run": None,
        "round": None,
        "device_class": "no class",
        "facts": {},
        "rounds_joined": 0,
        "refusals": 0,
    },
    "Funnel": {
        "waiting": 0,
        "selected": 0,
        "training": 0,
        "reported": 0,
        "withdrawn": 0,
        "late": 0,
        "dropped": 0,
        "refused": 0,
    },
    "LeaseView": {"metrics": {}},
    "MetricReport": {"source": "evaluator"},
    "RoundView": {
        "staleness": (),
        "missed": 0,
        "missed_at": None,
        "attempt": 0,
        "kind": "federated",
        "group": "",
        "because": "",
        "reason": "",
        "collecting_at": None,
        "closed_at": None,
        "funnel": NOBODY,
        "bytes_in": 0,
        "weight": 0,
        "version": None,
        "digest": None,
        "metrics": {},
        "lease": None,
        "authority": None,
        "secure": None,
        "departures": "",
        "treatment": None,
        "states": {},
    },
    "ExchangeView": {"ended_at": None},
    "AttemptView": {"roster": 0, "threshold": 0, "signers": 0, "exchanges": ()},
    "SecureView": {
        "roster": 0,
        "threshold": 0,
        "signers": 0,
        "excluded": 0,
        "opened": False,
        "exchanges": (),
        "earlier": (),
    },
    "RunView": {
        "damaged": (),
        "repaired": (),
        "shared_identities": (),
        "clock": "wall",
        "kind": "federated",
        "flower": None,
        "authority": None,
        "exhausted": "",
        "barred": {},
        "disputes": {},
        "devices_registered": 0,
        "devices_spent": 0,
        "stalled": "",
        "trouble": "",
    },
    "Treatment": {
        "clipped": 0,
        "capped": 0,
        "partial": 0,
        "statistics_cut": 0,
        "rounding": 0.0,
        "zero_sum": False,
        "raised": 0,
        "duplicates": 0,
        "refused": {},
    },
    "TrainingPoint": {"metrics": {}},
    "LeaseRecord": {"label": "", "ended_at": None, "outcome": "held", "reason": "", "step": 0},
    "LeasesView": {"leases": [], "points": []},
    "WorkerRegistration": {"label": ""},
    "DatacenterTask": {
        "steps": 100,
        "batch_size": 256,
        "accumulate": 1,
        "nproc": 1,
        "learning_rate": 0.1,
        "linear_scaling": False,
        "optimizer": "sgd",
        "momentum": 0.9,
        "weight_decay": 0.0,
        "trust_coefficient": 0.001,
        "warmup_steps": 0,
        "decay": "constant",
        "precision": "float32",
    },
    "Heartbeat": {"step": 0, "metrics": {}},
    "Lease": {"kind": "lease"},
    "ResultReport": {"parent": "", "metrics": {}},
    "WorkerPoll": {"installation": "", "learners": {}, "data": (), "nproc": 1, "hold_s": 25.0},
    "WorkerView": {"revoked_at": None, "run": None, "round": None},
    "Problem": {"detail": "", "instance": None, "retry_after_s": None, "retryable": False, "fields": None},
}


def models() -> dict[str, type[BaseModel]]:
    return {
        name: kind
        for module in (devices, operators, secure, workers, problems)
        for name, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind.__module__ == module.__name__
    }


@pytest.mark.parametrize("name", sorted(models()))
def test_a_field_that_is_left_out_has_the_value_that_peers_rely_on(name: str) -> None:
    fields = models()[name].model_fields.items()
    optional = {name: field.get_default(call_default_factory=True) for name, field in fields if not field.is_required()}
    assert optional == DEFAULTS.get(name, {})
