"""Where each pinned name lives today, and one filled example of everything that is said on the wire or kept on disk.

All imports of ``test_golden`` from the rooms are here: code that moves is followed in this file alone, and the golden
values stay. The keys of the tables below are names of their own, neither of modules nor of classes. An example is JSON
as a peer would send it: (the class that reads it, every field filled, the fields that may be left out).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from client_sdk.cli import app as cli_app
from client_sdk.learning import Learner
from client_sdk.protocol import devices, names, operators, problems, secure, workers
from client_sdk.protocol.names import PROTOCOL_OLDEST, PROTOCOL_VERSION, Route, content_digest
from client_sdk.update import encode_update
from coordinator.engine.events import Event, from_json, to_json
from coordinator.settings import Settings
from simulation import Behaviour, History, Plan, simulate

__all__ = [
    "BEGINNING", "CLI_MODULE", "CONSTANTS", "EVENTS", "MESSAGES", "PROBLEMS", "Behaviour", "History", "Learner", "Plan",
    "Route", "Settings", "cli_app", "encode_update", "fixed_time", "from_json", "kind_of", "problem", "simulate",
    "to_json",
]  # fmt: skip

CLI_MODULE = "client_sdk.cli"
"""What ``python -m`` runs as ``quorate``."""

BEGINNING = 1_700_000_000.0
"""Unix time at which every pinned run begins: a whole number, so that sums of dyadic seconds on it are exact."""


@contextmanager
def fixed_time() -> Iterator[None]:
    """A simulation that starts within it starts at ``BEGINNING``: the one thing that it asks of the machine."""
    with patch("time.time", lambda: BEGINNING):
        yield


problem = problems.problem


def kind_of(event: Event) -> str:
    """The name under which the log holds the event."""
    return event.kind


PROBLEMS = problems.PROBLEMS

_D = {digit: digit * 64 for digit in "0123456789abcdef"}
_TASK = {
    "learner": "quorate:mnist-mlp",
    "learner_version": "2",
    "epochs": 3,
    "steps": None,
    "batch_size": 10,
    "learning_rate": 0.125,
    "mu": 0.5,
    "max_grad_norm": 2.5,
    "time_budget_s": 30.0,
    "codec": "float16@1",
    "averaged": ["head.*", "tail.*"],
    "seed": 7,
    "score_held_out": True,
    "drop_last": True,
    "strategy": {"name": "ditto", "version": "1", "parameters": {"lambda": 0.5}, "keeps": "committed"},
}
_EXCHANGE_VIEW = {
    "exchange": "share",
    "expected": 9,
    "came": 8,
    "needed": 7,
    "bytes": 4096,
    "began_at": 1.5,
    "ended_at": 2.5,
}
_SECURE_VIEW = {
    "attempts": 2,
    "roster": 9,
    "threshold": 7,
    "signers": 7,
    "excluded": 1,
    "groups": 4,
    "fallen": 1,
    "noise": 2.5,
    "sums": [3, 2, 3],
    "opened": True,
    "exchanges": [_EXCHANGE_VIEW],
    "earlier": [
        {
            "reason": "one complains",
            "ended_at": 2.5,
            "roster": 8,
            "threshold": 6,
            "signers": 6,
            "exchanges": [_EXCHANGE_VIEW],
        }
    ],
}
_DATACENTER_TASK = {
    "data": "mnist",
    "steps": 40,
    "batch_size": 64,
    "accumulate": 2,
    "nproc": 4,
    "learning_rate": 0.25,
    "linear_scaling": True,
    "optimizer": "lars",
    "momentum": 0.5,
    "weight_decay": 0.0625,
    "trust_coefficient": 0.03125,
    "warmup_steps": 8,
    "decay": "cosine",
    "precision": "bfloat16",
    "shard": "full",
    "recompute": True,
    "compress": "none",
    "compress_rank": 2,
    "compress_density": 0.5,
    "sync_every": 0,
    "outer_learning_rate": 0.5,
    "outer_momentum": 0.25,
    "sync_within": 1,
    "mesh": None,
    "schedule": "gpipe",
    "server": None,
    "hogwild": False,
}
_BOUNDS = {
    "smallest_cohort": 32,
    "most_colluding": 5,
    "largest_norm": 4.0,
    "smallest_norm": 0.5,
    "largest_range": 0.5,
    "largest_weight_cap": 1000,
    "smallest_sigma": 64,
    "strict_only": True,
    "fewest_examples": 50,
    "whole_passes": False,
    "fewest_steps": 4,
    "largest_batch": 0.25,
    "sums_a_day": 12,
    "sums_made": True,
    "nearest_model": 0.05,
    "near_repeats": 1,
    "origins": "signed",
    "model_keys": ["cd" * 32],
    "largest_move": 2.5,
    "late_moves": 4,
}
_POLICY = {
    "learners": ["quorate:mnist-mlp"],
    "secure_only": True,
    "max_epochs": 5,
    "secure": _BOUNDS,
    "plain": ["quorate:mnist-cnn"],
    "max_state_bytes": 4096,
    "privacy": {"most_epsilon": 8.0, "delta": 1e-07, "apart": 3, "private_only": 2.5},
    "rests": [["r1", -1], ["r2", 7]],
}
_SECURE_TASK = {
    "q": 12, "max_norm": 2.0, "max_abs": 0.5, "weight_cap": 500, "profile": "fast", "drop": 44,
    "weighting": "equal",
    "corrupt_millionths": 100000, "sigma": 80, "eta": 40, "minimum_cohort": 128, "groups": 4,
    "noise": 2.5,
    "divisor": 256,
    "lowest": 0.5,
    "highest": 8.0,
    "statistics": [1.5, 65536.0], "move": 6.0, "move_each": 0.25, "first_seed": 7,
    "signed": {"digest": _D["b"], "bytes": 99, "signature": "ab" * 64},
}  # fmt: skip
_CHECKPOINT = {"version": 4, "digest": _D["a"], "bytes": 1234}
_WORK = {"steps": 3, "steps_planned": 8, "epochs": 0.375, "examples_seen": 12, "complete": False}
_SCORE = {
    "examples": 16, "metrics": {"loss": 0.5, "accuracy": 0.75}, "weights": {"loss": 12.5}, "states": {"auc": [3.0, 1.0]}
}  # fmt: skip
_PRIVACY = {
    "rounds": 2,
    "rounds_planned": 5,
    "rho": 0.25,
    "epsilon": 3.5,
    "epsilon_planned": 6.25,
    "ledger": "run:digits",
    "ledger_spent": 2.5,
    "ledger_budget": 6.25,
    "rounds_left": 2,
    "delta": 1e-06,
    "noise": 2.0,
    "clip": 0.75,
    "within": 0.5625,
}
_FUNNEL = {
    "waiting": 9, "selected": 8, "training": 7, "reported": 5, "withdrawn": 1, "late": 2, "dropped": 3, "refused": 4
}  # fmt: skip
_TREATED = {"clipped": True, "capped": True, "statistics_cut": True, "rounding": 0.25}
_TREATMENT = {
    "clipped": 3, "capped": 2, "partial": 1, "statistics_cut": 1, "rounding": 0.25, "zero_sum": True, "raised": 2,
    "duplicates": 1, "refused": {"the values hold NaN": 2},
}  # fmt: skip
_EVIDENCE = {"parent": _D["a"], "named_tensors": {"server-optimizer": _D["b"]}, "updates": _D["c"]}
_LEASE_VIEW = {
    "worker": "w1", "attempt": 2, "fence": 3, "since_at": 10.5, "seen_at": 11.5, "step": 20, "metrics": {"loss": 0.5}
}  # fmt: skip
_PROBLEM = {
    "type": "/problems/late",
    "title": "The round has closed",
    "status": 409,
    "detail": "Round 7 closed 12 s ago.",
    "instance": "/v1/runs/r1/rounds/7/outcome",
    "retry_after_s": 1.5,
    "retryable": True,
    "fields": [{"field": ["cohort", "goal"], "detail": "is above select"}],
}

MESSAGES: dict[str, tuple[Any, dict[str, Any], tuple[str, ...]]] = {
    # devices
    "task": (devices.Task, _TASK, tuple(name for name in _TASK if name != "learner")),
    "registration": (
        devices.Registration,
        {"certificate": _D["1"] * 3, "examples": 60, "label": "ward 3"},
        ("examples", "label"),
    ),
    "registered": (
        devices.Registered,
        {"device": "d1", "examples_cap": 100, "authority_inside": True},
        ("authority_inside",),
    ),
    "secure-bounds": (devices.SecureBounds, _BOUNDS, tuple(_BOUNDS)),
    "policy": (devices.Policy, _POLICY, tuple(_POLICY)),
    "check-in": (
        devices.CheckIn,
        {
            "examples": 60,
            "learners": {"quorate:mnist-mlp": "2"},
            "strategies": {"ditto": "1"},
            "policy": _POLICY,
            "secure": 2,
            "process": "ab" * 8,
            "facts": {"sdk": "0.2.0"},
            "hold_s": 12.5,
        },
        ("examples", "learners", "strategies", "policy", "secure", "process", "facts", "hold_s"),
    ),
    "checkpoint-ref": (devices.CheckpointRef, _CHECKPOINT, ()),
    "assignment": (
        devices.Assignment,
        {
            "kind": "assignment",
            "run": "r1",
            "round": 7,
            "attempt": 2,
            "device": "d1",
            "checkpoint": _CHECKPOINT,
            "plan_digest": _D["b"],
            "task": _TASK,
            "report_within_s": 59.5,
            "secure": _SECURE_TASK,
            "partial": "refuse",
            "privacy": {"noise": 2.0, "most_rounds": 10},
            "max_update_bytes": 4096,
            "warning": "two processes",
            "roles": {"bn.running_mean": "statistic", "bn.running_var": "non-negative"},
            "roles_digest": _D["c"],
        },
        ("kind", "attempt", "secure", "partial", "privacy", "warning", "roles", "roles_digest"),
    ),
    "wait": (
        devices.Wait,
        {"kind": "wait", "reason": "Nobody asks.", "min_s": 5.0, "max_s": 30.0, "warning": "two processes"},
        ("kind", "warning"),
    ),
    "started": (devices.Started, {"attempt": 2}, ("attempt",)),
    "secure-task": (
        secure.SecureTask,
        _SECURE_TASK,
        (
            "weighting",
            "drop",
            "corrupt_millionths",
            "sigma",
            "eta",
            "groups",
            "noise",
            "divisor",
            "lowest",
            "highest",
            "statistics",
            "move",
            "move_each",
            "first_seed",
            "signed",
        ),
    ),
    "secure-wait": (secure.SecureWait, {"hold_s": 12.5}, ("hold_s",)),
    "secure-signed": (
        secure.SecureSigned,
        {"signature": "ab" * 64, "certificate": "cd" * 80, "body": "ef"},
        ("certificate", "body"),
    ),
    "secure-refusal": (secure.SecureRefusal, {"spent": True, "reason": "It has signed."}, ("spent",)),
    "withdrawal": (devices.Withdrawal, {"attempt": 2, "reason": "The battery is low."}, ("attempt",)),
    "noted": (devices.Noted, {"ok": True}, ("ok",)),
    "work": (devices.Work, _WORK, tuple(_WORK)),
    "score": (devices.Score, _SCORE, ("weights", "states")),
    "update-report": (
        devices.UpdateReport,
        {
            "run": "r1",
            "round": 7,
            "attempt": 2,
            "codec": "float16@1",
            "examples": 60,
            "work": _WORK,
            "fetch_s": 0.5,
            "train_s": 1.5,
            "encode_s": 0.25,
            "metrics": {"loss": 0.5},
            "held_out": _SCORE,
        },
        ("attempt", "work", "fetch_s", "train_s", "encode_s", "metrics", "held_out"),
    ),
    "receipt": (
        devices.Receipt,
        {
            "run": "r1",
            "round": 7,
            "attempt": 2,
            "device": "d1",
            "digest": _D["c"],
            "weight": 60,
            "logged": {"seq": 1412, "link": _D["c"]},
        },
        ("logged",),
    ),
    "outcome": (
        devices.Outcome,
        {
            "run": "r1",
            "round": 7,
            "device": "d1",
            "result": "counted",
            "reason": "as asked",
            "digest": _D["c"],
            "version": 5,
        },
        ("reason", "digest", "version"),
    ),
    "problem": (problems.Problem, _PROBLEM, ("detail", "instance", "retry_after_s", "retryable", "fields")),
    # operators
    "create-run": (
        operators.CreateRun,
        {
            "plan": {"name": "mnist"},
            "init": _D["a"],
            "init_proof": _D["b"],
            "origin": "a file",
            "roles": {"*.mean": "statistic"},
        },
        ("init_proof", "origin", "roles"),
    ),
    "funnel": (operators.Funnel, _FUNNEL, tuple(_FUNNEL)),
    "run-view": (
        operators.RunView,
        {
            "run": "r1",
            "name": "mnist",
            "status": "running",
            "reason": "as asked",
            "phase": "collecting",
            "round": 7,
            "version": 4,
            "checkpoint": _D["a"],
            "rounds_committed": 4,
            "rounds_wanted": 9,
            "plan": {"name": "mnist"},
            "plan_digest": _D["b"],
            "origin": "a file",
            "created_at": 1.5,
            "clock": "virtual",
            "seq": 70,
            "funnel": _FUNNEL,
            "kind": "secure",
            "flower": {"app": "acme/vision", "version": "1.0.0", "messages": 9, "replies": 7, "errors": 1},
            "authority": "inside",
            "exhausted": "too many have signed",
            "devices_spent": 3,
            "devices_registered": 9,
            "barred": {"d1": 12},
            "disputes": {"d1": 2},
            "suspicion": {"d1": 24},
            "shared_identities": ("d1",),
            "stalled": "no eligible device waits",
            "damaged": (_D["a"],),
            "repaired": (_D["b"],),
            "privacy": _PRIVACY,
            "trouble": "ValueError: the log cannot be read",
        },
        (
            "clock",
            "kind",
            "flower",
            "authority",
            "exhausted",
            "devices_spent",
            "devices_registered",
            "barred",
            "disputes",
            "suspicion",
            "shared_identities",
            "stalled",
            "damaged",
            "repaired",
            "privacy",
            "trouble",
        ),
    ),
    "rename-run": (operators.RenameRun, {"name": "another"}, ()),
    "advance-run": (operators.AdvanceRun, {"by": "the owner"}, ()),
    "unbar-device": (operators.UnbarDevice, {"by": "the owner"}, ()),
    "sign-run": (operators.SignRun, {"version": 3, "signature": "5e" * 64}, ()),
    "exchange-view": (operators.ExchangeView, _EXCHANGE_VIEW, ("ended_at",)),
    "secure-view": (operators.SecureView, _SECURE_VIEW, tuple(_SECURE_VIEW)[1:]),
    "lease-view": (operators.LeaseView, _LEASE_VIEW, ("metrics",)),
    "round-view": (
        operators.RoundView,
        {
            "round": 7,
            "attempt": 2,
            "kind": "datacenter",
            "group": "7",
            "because": "too few wait",
            "status": "committed",
            "reason": "as asked",
            "missed": 2,
            "missed_at": 2.0,
            "opened_at": 1.5,
            "collecting_at": 2.5,
            "closed_at": 3.5,
            "funnel": _FUNNEL,
            "bytes_in": 4096,
            "weight": 300,
            "version": 5,
            "digest": _D["c"],
            "metrics": {"loss": 0.5},
            "lease": _LEASE_VIEW,
            "authority": "apart",
            "secure": _SECURE_VIEW,
            "departures": "2 devices withdrew: the battery is low",
            "staleness": [3, 1],
            "treatment": _TREATMENT,
            "clip_after": 0.75,
            "within": 0.5625,
            "states": {"f1": [3.0, 1.0]},
        },
        (
            "attempt",
            "kind",
            "group",
            "because",
            "reason",
            "missed",
            "missed_at",
            "collecting_at",
            "closed_at",
            "funnel",
            "bytes_in",
            "weight",
            "version",
            "digest",
            "metrics",
            "lease",
            "authority",
            "secure",
            "departures",
            "staleness",
            "treatment",
            "clip_after",
            "within",
            "states",
        ),
    ),
    "treatment": (operators.Treatment, _TREATMENT, tuple(_TREATMENT)),
    "checkpoint-view": (
        operators.CheckpointView,
        {
            "version": 5,
            "digest": _D["c"],
            "parent": _D["a"],
            "round": 7,
            "origin": "round 7",
            "bytes": 1234,
            "created_at": 3.5,
        },
        (),
    ),
    "metric-report": (
        operators.MetricReport,
        {"version": 5, "digest": _D["c"], "source": "test", "score": _SCORE},
        ("source",),
    ),
    "metric-view": (
        operators.MetricView,
        {"version": 5, "source": "test", "name": "loss", "value": 0.5, "examples": 16, "at": 3.5},
        (),
    ),
    "device-view": (
        operators.DeviceView,
        {
            "device": "d1",
            "label": "ward 3",
            "examples_cap": 100,
            "enrolled_at": 1.5,
            "last_seen_at": 2.5,
            "state": "assigned",
            "warning": "two processes",
            "unfit": "run r2: none",
            "run": "r1",
            "round": 7,
            "device_class": "phone",
            "facts": {"sdk": "0.2.0"},
            "rounds_joined": 3,
            "refusals": 1,
        },
        ("warning", "unfit", "run", "round", "device_class", "facts", "rounds_joined", "refusals"),
    ),
    "event-view": (
        operators.EventView,
        {"seq": 70, "at": 3.5, "kind": "Tick", "body": {"round": 7}},
        (),
    ),
    # workers
    "datacenter-task": (
        workers.DatacenterTask,
        _DATACENTER_TASK,
        tuple(name for name in _DATACENTER_TASK if name != "data"),
    ),
    "worker-poll": (
        workers.WorkerPoll,
        {
            "instance": "i1",
            "installation": "n1",
            "learners": {"quorate:mnist-mlp": "2"},
            "data": ["mnist"],
            "nproc": 4,
            "strategies": ["recompute", "shard=full"],
            "memory_bytes": 85_000_000_000,
            "hold_s": 12.5,
        },
        ("installation", "learners", "data", "nproc", "strategies", "memory_bytes", "hold_s"),
    ),
    "lease": (
        workers.Lease,
        {
            "kind": "lease",
            "run": "r1",
            "round": 7,
            "attempt": 2,
            "fence": 3,
            "worker": "w1",
            "checkpoint": _CHECKPOINT,
            "plan_digest": _D["b"],
            "task": _TASK,
            "datacenter": _DATACENTER_TASK,
            "lease_s": 60.0,
            "heartbeat_s": 15.0,
            "within_s": 3600.0,
            "max_result_bytes": 4096,
        },
        ("kind",),
    ),
    "heartbeat": (
        workers.Heartbeat,
        {"attempt": 2, "fence": 3, "step": 20, "metrics": {"loss": 0.5}},
        ("step", "metrics"),
    ),
    "lease-kept": (workers.LeaseRenewed, {"ends_in_s": 59.5}, ()),
    "lease-end": (
        workers.LeaseEnd,
        {"attempt": 2, "fence": 3, "failed": True, "reason": "The data is gone."},
        (),
    ),
    "result-report": (
        workers.ResultReport,
        {"fence": 3, "parent": _D["a"], "steps": 40, "examples": 2560, "metrics": {"loss": 0.5}},
        ("parent", "metrics"),
    ),
    "result-receipt": (
        workers.ResultReceipt,
        {"run": "r1", "round": 7, "attempt": 2, "worker": "w1", "digest": _D["c"], "version": 5},
        (),
    ),
    "worker-registration": (
        workers.WorkerRegistration,
        {"certificate": _D["1"] * 3, "label": "cluster"},
        ("label",),
    ),
    "worker-registered": (workers.WorkerRegistered, {"worker": "w1"}, ()),
    "worker-view": (
        workers.WorkerView,
        {
            "worker": "w1",
            "label": "cluster",
            "created_at": 1.5,
            "last_seen_at": 2.5,
            "revoked_at": 3.5,
            "state": "leased",
            "run": "r1",
            "round": 7,
        },
        ("revoked_at", "run", "round"),
    ),
}

_OF_ROUND = {"round": 7, "attempt": 2}
_SENT = {**_OF_ROUND, "device": "d1", "digest": _D["c"], "bytes": 4096}
_LEASED = {**_OF_ROUND, "fence": 3, "worker": "w1"}

EVENTS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "Created": (
        {"weight_unit": 1024, "tensors": _D["a"], "roles": {"running_var": "non-negative"}, "roles_digest": _D["b"]},
        ("weight_unit", "tensors", "roles", "roles_digest"),
    ),
    "Tick": ({}, ()),
    "ClockFell": ({"by_s": 2.5}, ()),
    "Recovered": ({}, ()),
    "Drawn": (
        {
            "round": 7,
            "cohort": [["d1", 60], ["d2", 8]],
            "waiting": 9,
            "pool": _D["d"],
            "examples": 500,
            "root": _D["e"],
            "others": "d3 has no such learner",
            "unspendable": 3,
            "declined": 1,
            "barred": 1,
        },
        ("pool", "examples", "root", "others", "unspendable", "declined", "barred"),
    ),
    "Started": ({**_OF_ROUND, "device": "d1"}, ()),
    "Reported": (
        {
            **_SENT,
            "examples": 60,
            "steps": 3,
            "steps_planned": 8,
            "complete": False,
            "metrics": {"loss": 0.5},
            "held_out": {"accuracy": 0.75},
            "held_out_examples": 16,
            "held_out_weights": {"accuracy": 48.0},
            "held_out_states": {"f1": [3.0, 1.0]},
            "seconds": [0.5, 1.5, 0.25],
            "treated": _TREATED,
        },
        ("metrics", "held_out", "held_out_examples", "held_out_weights", "held_out_states", "seconds", "treated"),
    ),
    "UpdateRefused": ({**_OF_ROUND, "device": "d1", "digest": _D["c"], "reason": "the values hold NaN"}, ()),
    "Withdrew": ({**_OF_ROUND, "device": "d1", "reason": "The battery is low."}, ()),
    "Committed": (
        {
            "round": 7,
            "digest": _D["c"],
            "bytes": 1234,
            "named_tensors": {"server-optimizer": _D["e"]},
            "small": {"rounds": 7},
            "tensors": _D["a"],
            "zero_sum": True,
            "raised": 2,
            "evidence": _EVIDENCE,
            "rounding": 0.5,
        },
        ("named_tensors", "small", "tensors", "zero_sum", "raised", "evidence", "rounding"),
    ),
    "CommitFailed": ({"round": 7, "reason": "out of range"}, ()),
    "Leased": ({**_LEASED, "instance": "i1", "waiting": 9, "installation": "n1"}, ("installation",)),
    "Heartbeat": ({**_LEASED, "step": 20, "metrics": {"loss": 0.5}}, ("metrics",)),
    "LeaseEnded": ({**_LEASED, "failed": True, "reason": "The data is gone."}, ()),
    "Delivered": (
        {
            **_LEASED,
            "digest": _D["c"],
            "bytes": 1234,
            "steps": 40,
            "examples": 2560,
            "metrics": {"loss": 0.5},
            "waiting": 9,
            "tensors": _D["a"],
            "evidence": _EVIDENCE,
        },
        ("metrics", "waiting", "tensors", "evidence"),
    ),
    "FleetReturned": ({"round": 7, "waiting": 9, "unspendable": 2}, ("unspendable",)),
    "Scored": ({"version": 5, "source": "test", "examples": 16, "metrics": {"loss": 0.5}}, ()),
    "Paused": ({}, ()),
    "Resumed": ({}, ()),
    "Stopped": ({}, ()),
    "Announced": ({**_OF_ROUND, "header": "00ff", "expires_at": 1_700_003_600}, ()),
    "Advertised": (_SENT, ()),
    "Rostered": (
        {
            **_OF_ROUND,
            "digest": _D["c"],
            "groups": [
                {
                    "order": ["d1", "d2", "d3"],
                    "threshold": 3,
                    "signers": 2,
                    "fewest": 3,
                    "ring": [2, 0, 1],
                    "neighbours": 2,
                }
            ],
        },
        (),
    ),
    "Shared": (_SENT, ()),
    "Masked": (_SENT, ()),
    "Complained": ({**_SENT, "dealers": ["d2", "d3"]}, ("dealers",)),
    "PairsOpened": ({**_SENT, "holders": ["d2", "d3"]}, ("holders",)),
    "Faulted": ({**_OF_ROUND, "device": "d1", "reason": "no such share"}, ()),
    "Signed": (_SENT, ()),
    "Spent": ({**_OF_ROUND, "device": "d1"}, ()),
    "Declined": ({**_OF_ROUND, "device": "d1", "reason": "It advertised 8 times here.", "late": True}, ("late",)),
    "Revealed": (_SENT, ()),
    "Opened": ({**_OF_ROUND, "group": 1, "digest": _D["c"], "bytes": 4096, "weight": 300}, ("group",)),
    "OpeningFailed": ({**_OF_ROUND, "group": 1, "lost": ["d2"], "reason": "too few shares"}, ("group",)),
    "Discarded": ({"round": 7}, ()),
    "Advanced": ({"round": 7, "by": "the owner"}, ()),
    "Unbarred": ({"device": "d1", "by": "the owner"}, ()),
    "Vouched": ({"version": 3, "signature": "5e" * 64}, ()),
}
"""Stored kind -> (body, the fields that may be left out)."""

CONSTANTS: dict[str, str] = {
    "protocol version": str(PROTOCOL_VERSION),
    "oldest version": str(PROTOCOL_OLDEST),
    "protocol header": names.PROTOCOL_HEADER,
    "tensors": names.TENSORS_MEDIA_TYPE,
    "problems": names.PROBLEM_MEDIA_TYPE,
    "report key": names.REPORT_KEY,
    "digest header": names.DIGEST_HEADER,
    "digest": content_digest(_D["a"]),
    "result header": workers.RESULT_HEADER,
}
