"""Draws the picture of docs/parallelism.md: seconds of a step and memory of a device, by plan, for the page's example.

``python -m scripts.parallelism_picture`` writes docs/images/parallelism.svg. Nothing is measured; it takes a second.
"""

from __future__ import annotations

from pathlib import Path

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from coordinator.datacenter.all_reduce_costs import LINKS
from coordinator.datacenter.planning import Machines, Model, Plan, predict

IMAGES = Path(__file__).parents[1] / "docs" / "images"
MODEL = Model(params=8.3e9, layers=72, hidden=3072, heads=24, sequence=1024, global_batch=512, precision="mixed")
"""8.3e9 parameters, as Shoeybi et al. 2019 (arXiv:1909.08053) trained."""
CLUSTERS = {
    "8 cards of 100 Gbit/s a machine": Machines(devices=64, between=LINKS["ethernet100"], cards=8),
    "1 card of 25 Gbit/s a machine": Machines(devices=64, between=LINKS["ethernet25"]),
}
PLANS = {
    "data 64": Plan(data=64, micro_batches=8),
    "data 64, shard optimizer": Plan(data=64, micro_batches=8, shard="optimizer"),
    "data 64, shard full": Plan(data=64, micro_batches=8, shard="full"),
    "data 64, shard full, recompute": Plan(data=64, micro_batches=1, shard="full", recompute=True),
    "data 8, tensor 8": Plan(data=8, tensor=8, micro_batches=64),
    "data 8, tensor 2, pipeline 4": Plan(data=8, tensor=2, pipeline=4, micro_batches=64, schedule="1f1b"),
    "likewise, 16 micro-batches": Plan(data=8, tensor=2, pipeline=4, micro_batches=16, schedule="1f1b"),
    "data 8, pipeline 8": Plan(data=8, pipeline=8, micro_batches=64, schedule="1f1b"),
}
WIDEST_S = 16
SECONDS = {"compute_s": "computing", "tensor_s": "within layers", "stages_s": "between stages", "idle_s": "idle"}
SECONDS["data_s"] = "gradients, not hidden"
SIZES = {"state_bytes": "weights, gradients, optimizer", "activation_bytes": "activations"}


def draw() -> Figure:
    """Two pictures of step time, one for each cluster, and one of memory."""
    figure = Figure(figsize=(12, 4), layout="constrained")
    FigureCanvasAgg(figure)
    *times, memory = figure.subplots(1, 3, sharey=True)
    places = range(len(PLANS), 0, -1)
    for axes, (title, machines) in zip(times, CLUSTERS.items(), strict=True):
        found = [predict(MODEL, machines, plan) for plan in PLANS.values()]
        left = [0.0] * len(found)
        for name, label in SECONDS.items():
            widths = [getattr(one, name) for one in found]
            axes.barh(places, widths, left=left, label=label)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        for place, one in zip(places, found, strict=True):
            if one.step_s > WIDEST_S:
                axes.text(WIDEST_S, place, f"to {one.step_s:.0f} s", ha="right", va="center", color="white", fontsize=8)
        axes.set_xlim(0, min(WIDEST_S, axes.get_xlim()[1]))
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("seconds of a step")
    left = [0.0] * len(PLANS)
    for name, label in SIZES.items():
        widths = [getattr(one, name) / 1e9 for one in found]
        memory.barh(places, widths, left=left, label=label)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    memory.axvline(machines.memory / 1e9, color="black", linestyle=":", label="the device's 80 GB")
    memory.set_title("either", fontsize=10)
    memory.set_xlabel("GB of a device")
    times[0].set_yticks(list(places), list(PLANS))
    for axes in (times[-1], memory):
        axes.legend(fontsize=7, loc="lower right")
    return figure


def main() -> None:
    with rc_context({"svg.hashsalt": "quorate"}):
        draw().savefig(IMAGES / "parallelism.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
