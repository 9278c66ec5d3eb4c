"""Draws the curves in docs/recipes.json and writes docs/recipes.md from them, so that no measured number is typed.

``python -m scripts.recipe_curves --page`` does both; a test says when the page is out of date. What is published is
typed here, with its source. This file measures nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context

from simulation import recipes
from simulation.history import Curve

from .attacks import table

DOCS = Path(__file__).parents[2] / "docs"
RESULTS, PAGE, IMAGES = DOCS / "recipes.json", DOCS / "recipes.md", DOCS / "images"
ALGORITHMS = DOCS / "recipes-algorithms.json"
T_OF_THREE = 4.303
"""Student's t for two degrees of freedom and 95 %."""

PICTURES = {
    "mnist-iid": "MNIST, 100 clients, labels alike",
    "mnist-shards": "MNIST, 100 clients, about two digits each",
    "mnist-fraction": "MNIST, labels alike, by clients in a round",
    "stragglers-0": "No stragglers",
    "stragglers-50": "Half are stragglers",
    "stragglers-90": "Nine of ten are stragglers",
    "shakespeare": "Shakespeare by role",
}
PUBLISHED_MNIST = {
    ("mnist-iid", "FedSGD"): 1474,
    ("mnist-iid", "FedAvg"): 87,
    ("mnist-shards", "FedSGD"): 1796,
    ("mnist-shards", "FedAvg"): 664,
}
"""Rounds to 97 %: McMahan et al. 2017, table 1, 2NN, E = 1, C = 0.1. FedSGD is its column B = infinity."""
PUBLISHED_FRACTION = {"mnist-iid-fedavg-1": 316, "mnist-iid-fedavg": 87, "mnist-iid-fedavg-20": 77}
"""Rounds to 97 %, labels alike, with 1, 10 and 20 of 100 clients in a round: the same table, C = 0, 0.1 and 0.2."""
PUBLISHED_CNN = (("1", "∞", 626, 483), ("1", "10", 34, 350), ("5", "10", 20, 229), ("20", "10", 18, 173))
"""E, B, rounds to 99 % for labels alike and for shards: the same paper's table 2, CNN, C = 0.1."""
PUBLISHED_SHAKESPEARE = (("1", "∞", 2488, 3906), ("1", "10", 460, 164), ("5", "10", 192, 41))
"""E, B, rounds to 54 % for shuffled and for natural clients: the same paper's table 2, LSTM, C = 0.1."""

HEAD = """# Recipes: what the literature compares

```python
from simulation import partition, recipes
from simulation.datasets import load
from simulation.learners import mnist_mlp_200

data = load("mnist")
clients = partition(data, 100, by="shards", seed=0)
history = recipes.fedavg(mnist_mlp_200(), clients, test=data.test, rounds=100, per_round=10, batch_size=10)
```

| recipe | what it does | paper |
|---|---|---|
| `fedavg` | E local epochs of SGD in batches of B, weighted mean | McMahan et al. 2017, arXiv:1602.05629 |
| `fedsgd` | one gradient of all of a client's data in a round: B = ∞, E = 1 | the same, section 2 |
| `fedprox_with_stragglers` | partial work is dropped or counts; a proximal term | Li et al. 2020, arXiv:1812.06127 |
| `local_only` | each client trains alone | |
| `centralized` | all data in one place, as many steps as the clients of a round take | |

The first three only build a plan (all that report count, no deadline) and call `simulate()`. They take
the other options of `simulate()` and return a `History`. The two baselines use the same learner and return a
`Baseline` with the same `metric()` curves. So `recipes.draw({"name": run, ...}, "accuracy")` draws all of them
beside each other, and `recipes.rounds_to(curve, 0.97)` finds the round as McMahan et al. do: best value so far, linear
interpolation.

## What is ours, and what is published
*Ours* was measured by `python -m scripts.recipe_curves` on two cores of a shared machine, with one seed (0), and is
stored in [recipes.json](recipes.json), from which this page is generated. *Published* is from the papers. The
settings are not equal. The papers chose the best learning rate of a grid for each row; here each learning rate is
one plausible value. Our runs are short, and one seed does not show the spread between seeds. A dash means: not
reached in the rounds that were run. Accuracy is on the test set unless stated otherwise; "last 5" is the mean of
the last five rounds, or the last score of clients that train alone. A curve that ends with a dot, at the round that
its legend names, was stopped at its target, or was not run for longer.
"""
MNIST = """Perceptron 784-200-200-10 (the paper's *2NN*), 100 clients, 10 of them in a round (C = 0.1), E = 1, B =
10. Labels alike, or two shards of the sorted digits each. A tenth of each client's 600 examples is held out. FedAvg
stops at 97 %."""
MNIST_PUBLISHED = """Published: McMahan et al. 2017, table 1, 2NN, E = 1, C = 0.1; FedSGD is its column B = ∞."""
FRACTION = """FedAvg with labels alike by how many of the 100 clients are in a round (the same table: C = 0, which is
one client, 0.1 and 0.2):"""
CNN = """The paper's CNN was not measured here: it takes longer than ten minutes, the limit for this page.
The call is the same with `mnist_cnn()`; `target=0.99` stops it. Published (table 2, CNN, C = 0.1), rounds to 99 %:"""
STRAGGLERS = """Logistic regression, 1,000 clients of two digits each, 10 of them in a round, E = 20, B = 10,
learning rate 0.03, as in Li et al. 2020, section 5. A straggler gets through a uniformly drawn share of its steps.
FedAvg drops stragglers, FedProx counts their work in full. As in the paper, stragglers are an exact share of each
round's clients. One difference: our clients all hold about 60 examples (the paper's follow a power law)."""
STRAGGLERS_PUBLISHED = """Published: with 90 % stragglers FedProx improves absolute test accuracy over FedAvg by 22
% on average (abstract; five data sets). The paper shows curves, and no table to compare with."""
SHAKESPEARE = """The next character after each of 80, by two LSTM layers of 256. 927 roles of the plays, those with
two windows of 80 characters or more; **4 of them in a round** (the paper: 10 % of 1,146), B = 10, learning rate 1.
Scored on 200 windows of the roles' held-out text. An LSTM step takes one core some 50 ms, so these runs are short: they
show the order of the methods, not their final accuracy. The first plateau is a model that always predicts a blank."""
SHAKESPEARE_PUBLISHED = """Published (McMahan et al. 2017, table 2, LSTM, C = 0.1), rounds to 54 %, for which
nothing here was run long enough:"""

COMPARED = """Logistic regression, 10 clients in a round unless stated otherwise, E = 5, B = 10, learning rate 0.03,
20 rounds; the mean of the last five. Each line is three runs, with seeds 0, 1 and 2 for clients, weights and draws,
with the 95 % interval of the mean by Student's t (2 degrees of freedom, so it is wide). *Against the baseline* is
the mean difference between runs of one seed: where its interval has 0 in it, these runs show no difference. The
rates of `lars`, `lamb`, `radam` and `q-ffl` are the best of two to six that were tried with seed 0; the baselines
keep rate 1, which favours the others. `q-ffl` was also tried with two digits a client and E = 5, where it stayed at
49 % and 59 % (q = 1, rate 50; q = 0.1, rate 5), the baseline at 79 %. The others were not tuned. No published
figure is for one of these settings: the papers use other models, splits or data. Figures:
[recipes-algorithms.json](recipes-algorithms.json)."""

ATTACKS = """The attacks that the rules are known for are large: they are tests, and the table above has one. These two
hide among the honest updates, and know all of them: ALIE (*a little is enough*, Baruch et al. 2019, arXiv:1902.06156)
and inner product manipulation (Xie et al. 2019, arXiv:1903.03936). Of 20 updates f are wrong. The honest ones have 400
values, a standard deviation of 1 in each, and a mean of about 0.2: devices' updates differ more from each other than
from zero. The figure is how much of the honest mean is in what the rule makes; bold where it is half or more, so that
the rule withstands the attack; below 0 the model goes backwards. `python -m scripts.recipe_curves --page` measures
it."""
ATTACKS_MEAN = """Where updates differ so much, a rule that picks out updates or middle values picks the attackers', who
are alike. All rules withstand ALIE with a fifth of the updates wrong, and with two fifths none does. The mean, and
centered clipping with a wide radius, bound what f can do by f / n and lose least; but the mean is lost against the
large attacks. The papers' remedy is a smaller spread: larger batches, or devices' momentum (Karimireddy et al. 2021,
arXiv:2012.10333), which is not built. No rule here protects from many who know what the others send."""

MANY = 20
"""Scored rounds above which the end of a curve is a mean of several."""


class StoredCurve:
    """A measured curve with the face of a run."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        self.found = found

    def metric(self, name: str, source: str = "evaluator") -> Curve:
        line = self.found[source]
        return Curve(np.array(line["versions"], np.int64), np.array(line["values"], np.float64))

    @property
    def rounds(self) -> int:
        return int(self.found["evaluator"]["versions"][-1])

    def final(self) -> str:
        """The mean over the last five scored rounds, in percent, as single rounds jump; of a baseline the last."""
        values = self.metric("accuracy").values
        return f"{100 * float(values[-5:].mean() if len(values) > MANY else values[-1]):.1f} %"

    def last(self, source: str = "evaluator") -> str:
        """At the last scored round, in percent."""
        return f"{100 * float(self.metric('accuracy', source).values[-1]):.1f} %"

    def reached(self, target: float) -> str:
        found = recipes.rounds_to(self.metric("accuracy"), target)
        return "–" if found is None else f"{found:.0f}"


def page(stored: Mapping[str, Any], compared: Mapping[str, Any]) -> str:
    """The whole page."""
    parts = [HEAD, *_mnist(stored), *_stragglers(stored), *_shakespeare(stored), *_algorithms(compared)]
    parts += _settings(stored)
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def write() -> None:
    """Draws and writes."""
    stored = json.loads(RESULTS.read_text("utf-8"))
    for group, title in PICTURES.items():
        runs = {curve.found["label"]: curve for curve in _of(stored, group).values()}
        if runs:
            with rc_context({"svg.hashsalt": "quorate"}):  # equal curves give equal files
                figure = recipes.draw(runs, "accuracy", title=title)
                figure.savefig(IMAGES / f"recipes-{group}.svg", metadata={"Date": None})
    PAGE.write_text(page(stored, json.loads(ALGORITHMS.read_text("utf-8"))), "utf-8")


def _of(stored: Mapping[str, Any], group: str) -> dict[str, StoredCurve]:
    return {name: StoredCurve(found) for name, found in stored.items() if found["group"] == group}


def _picture(group: str) -> str:
    return f"![{PICTURES[group]}: accuracy over rounds](images/recipes-{group}.svg)"


def _mnist(stored: Mapping[str, Any]) -> list[str]:
    lines = [
        "| clients | method | rounds run | accuracy, last 5 | to 90 % | to 95 % | to 97 % | published: to 97 % |",
        "|---|---|---|---|---|---|---|---|",
    ]
    own = []
    for group, split in (("mnist-iid", "labels alike"), ("mnist-shards", "two shards")):
        for curve in _of(stored, group).values():
            label = curve.found["label"]
            published = PUBLISHED_MNIST.get((group, label), "")
            reached = " | ".join(curve.reached(target) for target in (0.9, 0.95, 0.97))
            lines.append(f"| {split} | {label} | {curve.rounds} | {curve.final()} | {reached} | {published} |")
            if "clients" in curve.found:
                mean, worse = curve.last("clients"), curve.last("clients.p10")
                own.append(f"{split}: {mean} in the mean, {worse} at the 10th percentile of the clients")
    alone = (
        "A client alone is scored on the whole test set above, whose digits it may never have seen. On its own\n"
        f"held-out digits its own model does better ({'; '.join(own)}):\n"
        "federation adds the digits of all other clients."
    )
    fraction = ["| clients in a round | rounds run | to 97 % | published |", "|---|---|---|---|"]
    for name, rounds in PUBLISHED_FRACTION.items():
        curve = StoredCurve(stored[name])
        fraction.append(
            f"| {curve.found['setting']['per_round']} | {curve.rounds} | {curve.reached(0.97)} | {rounds} |"
        )
    cnn = [f"| {e} | {b} | {alike} | {shards} |" for e, b, alike, shards in PUBLISHED_CNN]
    return [
        "## MNIST: FedAvg and FedSGD",
        MNIST,
        f"{_picture('mnist-iid')}\n{_picture('mnist-shards')}",
        "\n".join(lines),
        MNIST_PUBLISHED,
        FRACTION,
        _picture("mnist-fraction"),
        "\n".join(fraction),
        alone,
        CNN,
        "\n".join(["| E | B | labels alike | two shards |", "|---|---|---|---|", *cnn]),
    ]


def _stragglers(stored: Mapping[str, Any]) -> list[str]:
    lines = [
        "| stragglers | method | rounds committed | rounds abandoned | accuracy, last 5 | best |",
        "|---|---|---|---|---|---|",
    ]
    groups = ("stragglers-0", "stragglers-50", "stragglers-90")
    for group in groups:
        for curve in _of(stored, group).values():
            best = f"{100 * float(curve.metric('accuracy').values.max()):.1f} %"
            share = f"{group.split('-')[1]} %"
            lines.append(
                f"| {share} | {curve.found['label']} | {curve.rounds} | {curve.found['abandoned']} | "
                f"{curve.final()} | {best} |"
            )
    return [
        "## MNIST: FedProx with stragglers",
        STRAGGLERS,
        "\n".join(_picture(group) for group in groups),
        "\n".join(lines),
        STRAGGLERS_PUBLISHED,
    ]


def _shakespeare(stored: Mapping[str, Any]) -> list[str]:
    lines = ["| method | rounds run | accuracy at the end | to 20 % | to 30 % | to 40 % |", "|---|---|---|---|---|---|"]
    for curve in _of(stored, "shakespeare").values():
        reached = " | ".join(curve.reached(target) for target in (0.2, 0.3, 0.4))
        lines.append(f"| {curve.found['label']} | {curve.rounds} | {curve.last()} | {reached} |")
    published = [f"| {e} | {b} | {mixed} | {natural} |" for e, b, mixed, natural in PUBLISHED_SHAKESPEARE]
    return [
        "## Shakespeare: natural clients",
        SHAKESPEARE,
        _picture("shakespeare"),
        "\n".join(lines),
        SHAKESPEARE_PUBLISHED,
        "\n".join(["| E | B | roles shuffled | by role |", "|---|---|---|---|", *published]),
    ]


def _algorithms(compared: Mapping[str, Any]) -> list[str]:
    parts = ["## MNIST: algorithms beside their baselines", COMPARED]
    for scene in compared.values():
        methods = scene["methods"]
        baseline = next(iter(methods.values()))
        worst = "worst" in baseline
        heads = ["method", "accuracy", "against the baseline", *(["worst tenth of clients"] if worst else []), "kB"]
        lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        for name, found in methods.items():
            gain = np.subtract(found["accuracy"], baseline["accuracy"])
            cells = [name, _interval(found["accuracy"]), "" if found is baseline else _interval(gain, "+")]
            cells += [_interval(found["worst"])] if worst else []
            lines.append(f"| {' | '.join([*cells, format(found['kilobytes'], '.1f')])} |")
        parts += [f"**{scene['what']}** (kB: of an update)", "\n".join(lines)]
    return [*parts, "## Attacks that hide, and robust rules", ATTACKS, "\n".join(table()), ATTACKS_MEAN]


def _interval(values: Any, sign: str = "") -> str:
    """Mean and half of its interval, in percent."""
    half = T_OF_THREE * np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{100 * np.mean(values):{sign}.1f} ± {100 * half:.1f} %"


def _settings(stored: Mapping[str, Any]) -> list[str]:
    lines = ["| curve | arguments | CPU s |", "|---|---|---|"]
    for name, found in stored.items():
        arguments = ", ".join(f"{key}={value!r}" for key, value in found["setting"].items())
        lines.append(f"| {name} | `{arguments}` | {found['cpu_s']:.0f} |")
    versions = sorted({f"torch {found['torch']}, numpy {found['numpy']}" for found in stored.values()})
    total = sum(found["cpu_s"] for found in stored.values()) / 60
    head = (
        f"Seed 0, one thread, {'; '.join(versions)}; {total:.0f} minutes of one core for all. To measure one anew:\n"
        "`python -m scripts.recipe_curves --again mnist-iid-fedavg`."
    )
    return ["## Settings", head, "\n".join(lines)]
