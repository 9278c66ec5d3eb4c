"""``quorate datacenter plan``: which way to train a model on so many devices, and what each way costs.

This file reads options and prints lines; ``planning`` computes, ``calibration`` measures.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from client_sdk.terminal import Json, fail, say, say_json, say_table
from coordinator.datacenter import all_reduce_costs
from coordinator.datacenter.planning import MOST_PARAMS, Machines, Model, Prediction, Refusal, advise, all_reduces

if TYPE_CHECKING:
    from coordinator.datacenter.all_reduce_costs import Link
    from coordinator.datacenter.calibration import Calibration

EPILOG = (
    "Example: quorate datacenter plan --params 8.3e9 --layers 72 --hidden 3072 --devices 64 --memory 80GB "
    "--between ethernet25"
)
HEAD = 128
"""Values of an attention head, where no number of heads is given."""
LINK = "NAME|GB/S[@US]"
AT_ONCE = 12
"""Families of refused plans that are printed; all are in the JSON."""


def plan(
    params: Annotated[
        float | None, typer.Option(help="Parameters of a transformer (default: from --layers and --hidden).")
    ] = None,
    learner: Annotated[
        str | None, typer.Option(metavar="LEARNER", help="Instead: count the parameters of this learner (needs torch).")
    ] = None,
    layers: Annotated[
        int | None, typer.Option(min=1, help="Layers (default: hidden / 128, for so many parameters).")
    ] = None,
    hidden: Annotated[int | None, typer.Option(min=1, help="Values of a token between layers.")] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="Attention heads (default: hidden / 128).")] = None,
    sequence: Annotated[int, typer.Option(min=1, help="Tokens of a sequence.")] = 1024,
    vocab: Annotated[int, typer.Option(min=1, help="Rows of the embedding, where --params is not given.")] = 51_200,
    global_batch: Annotated[int, typer.Option(min=1, help="Sequences of a step, over all devices.")] = 512,
    precision: Annotated[str, typer.Option(help="bfloat16, float16, float32; mixed: 16-bit weights.")] = "bfloat16",
    optimizer: Annotated[str, typer.Option(help="adam, lamb, momentum, lars or sgd.")] = "adam",
    flash: Annotated[bool, typer.Option("--flash", help="Attention keeps no scores for the backward pass.")] = False,
    devices: Annotated[int, typer.Option(min=1, help="Devices, all of which take part.")] = 8,
    per_machine: Annotated[int, typer.Option(min=1, help="Devices of a machine.")] = 8,
    memory: Annotated[str, typer.Option(help="Of a device: 80GB, 24GiB.")] = "80GB",
    headroom: Annotated[float, typer.Option(help="The part of it that is left free.")] = 0.1,
    flops: Annotated[float, typer.Option(help="What a device reaches a second; 40 % of an A100's peak.")] = 125e12,
    link: Annotated[str, typer.Option(metavar=LINK, help="Between devices of a machine.")] = "nvlink",
    between: Annotated[str, typer.Option(metavar=LINK, help="Between machines.")] = "ethernet25",
    cards: Annotated[int, typer.Option(min=1, help="Network cards of a machine, each with that rate.")] = 1,
    overlap: Annotated[float, typer.Option(help="The part of communication that can be hidden and is.")] = 1.0,
    sync_every: Annotated[int, typer.Option(min=1, help="Also try local steps: averaging each so many.")] = 16,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure --link between two processes here (needs torch).")
    ] = False,
    show: Annotated[int, typer.Option(min=1, help="How many plans to print.")] = 8,
    as_json: Json = False,
) -> None:
    """Say which way to train a model on so many devices: by data, tensors, stages, shards, recomputation.

    Step time and memory are predicted by formulas, which docs/parallelism.md gives. Links by name: nvlink, nvlink2,
    pcie, rdma, ethernet100, ethernet25; or GB a second in each direction, with the microseconds of a message.
    """
    if learner and (params or layers or hidden or heads):
        fail("A learner's parameters are counted: leave out --params, --layers, --hidden and --heads.")
    model = replace(
        _counted(learner) if learner else _transformer(params, layers, hidden, heads, vocab, sequence),
        global_batch=global_batch,
        precision=precision,
        optimizer=optimizer,
        flash=flash,
    )
    machines = Machines(
        devices=devices,
        per_machine=per_machine,
        memory=_size(memory),
        flops=flops,
        link=_link(link),
        between=_link(between),
        cards=cards,
        headroom=headroom,
        overlap=overlap,
    )
    measured = None
    if calibrate:
        from coordinator.datacenter.calibration import calibrate as measure

        measured = measure()
        machines = replace(machines, link=measured.link)
    fitting, refused = advise(model, machines, sync_every)
    if as_json:
        say_json(_document(model, machines, fitting, refused, measured, show))
    else:
        if measured is not None:
            say(_calibration(measured))
        _say(model, machines, fitting, refused, show)
    if not fitting:
        fail("No plan fits: more devices, more memory, or a batch that divides by the devices.")


def _transformer(
    params: float | None, layers: int | None, hidden: int | None, heads: int | None, vocab: int, sequence: int
) -> Model:
    """A transformer by its shape, or of the usual shape: 12 l h^2 parameters, and h = 128 l, with l a multiple of 8."""
    if params is None and (layers is None or hidden is None):
        fail("Say which model: --params 8.3e9, or --layers and --hidden, or --learner NAME.")
    if params is not None and not 1 <= params <= MOST_PARAMS:
        fail(f"--params must be from 1 to {MOST_PARAMS:g}, not {params:g}.")
    if (layers is None) != (hidden is None):
        fail("Give --layers and --hidden together.")
    if layers is None or hidden is None:
        layers = max(1, round(((params or 0) / (12 * HEAD**2)) ** (1 / 3) / 8) * 8)
        hidden = HEAD * layers
    if heads is None:
        heads = hidden // HEAD if hidden % HEAD == 0 else 1
    whole = 12.0 * layers * hidden**2 + vocab * hidden if params is None else params
    return Model(params=whole, layers=layers, hidden=hidden, heads=heads, sequence=sequence)


def _counted(name: str) -> Model:
    """A learner's model, of which only the parameters are known."""
    from client_sdk.learners import catalogue_for

    learner = catalogue_for([name]).load(name)
    if not hasattr(learner, "initial"):
        fail(f"The learner {name} cannot be trained here: only a torch Learner can.")
    return Model(params=sum(parameter.numel() for parameter in learner.model().parameters()))


def _size(text: str) -> float:
    match = re.fullmatch(r"(\d+\.?\d*(?:e\d{1,2})?) ?([KMGT]?)(i?)B?", text, re.IGNORECASE)
    if match is None:
        fail(f"--memory is a size such as 80GB or 24GiB, not {text!r}.")
    return float(match[1]) * float(1024 if match[3] else 1000) ** " KMGT".index(match[2].upper() or " ")


def _link(text: str) -> Link:
    if text in all_reduce_costs.LINKS:
        return all_reduce_costs.LINKS[text]
    match = re.fullmatch(r"(\d+\.?\d*)(?:@(\d+\.?\d*))?", text)
    if match is None or not (rate := float(match[1])):
        names = ", ".join(all_reduce_costs.LINKS)
        fail(f"A link is one of {names}, or GB a second such as 12.5 or 12.5@30 (microseconds), not {text!r}.")
    return all_reduce_costs.Link(float(match[2] or 5) / 1e6, 1e-9 / rate)


def _best_of_families(fitting: list[Prediction]) -> Iterator[Prediction]:
    """The first of each mesh, shard and number of local steps."""
    seen = set()
    for found in fitting:
        one = found.plan
        key = (one.data, one.tensor, one.pipeline, one.shard, one.sync_every)
        if key not in seen:
            seen.add(key)
            yield found


def _with_how_many(model: Model, machines: Machines) -> Iterator[tuple[int, float]]:
    """(devices, seconds of a step) of the best plan with all devices, half of them, a quarter, ..., while one fits."""
    devices = machines.devices
    while True:
        if devices <= machines.per_machine or devices % machines.per_machine == 0:
            fitting, _ = advise(model, replace(machines, devices=devices))
            if not fitting:
                return
            yield devices, fitting[0].step_s
        if devices % 2:
            return
        devices //= 2


def _algorithms(machines: Machines, best: Prediction) -> list[tuple[float, str]]:
    return all_reduce_costs.crossings(all_reduces(machines, best.plan.data, best.plan.tensor))


def _document(
    model: Model,
    machines: Machines,
    fitting: list[Prediction],
    refused: list[Refusal],
    measured: Calibration | None,
    show: int,
) -> dict[str, Any]:
    best = fitting[0] if fitting else None
    return {
        "model": asdict(model),
        "machines": {**asdict(machines), "link": machines.link._asdict(), "between": machines.between._asdict()},
        "plans": [
            {**asdict(found), "bytes": found.bytes, "step_s": found.step_s}
            for found in list(_best_of_families(fitting))[:show]
        ],
        "refused": [one._asdict() for one in refused],
        "all_reduce": [{"from_bytes": n, "algorithm": name} for n, name in _algorithms(machines, best)] if best else [],
        "devices": [{"devices": n, "step_s": step_s} for n, step_s in _with_how_many(model, machines)],
        "section": best.plan.section(model) if best else [],
        "calibration": None if measured is None else {**asdict(measured), "step_error": measured.step_error},
    }


def _say(model: Model, machines: Machines, fitting: list[Prediction], refused: list[Refusal], show: int) -> None:
    shape = f", {model.layers} layers of {model.hidden:,}, {model.heads} heads" if model.layers else ""
    many = f"{model.params:.4g}".replace("e+0", "e").replace("e+", "e")
    say(f"{many} parameters{shape}; a batch of {model.global_batch:,}, {model.precision}, {model.optimizer}.")
    say(f"{machines.devices} devices, {machines.local} a machine, {machines.usable / 1e9:.1f} GB of each may be used.")
    families = list(_best_of_families(fitting))
    same = [found for found in families if found.plan.sync_every == 1]
    _say_plans("Plans that compute what one process would, the fastest first:", same[:show])
    _say_plans("With local steps, which is another algorithm:", [one for one in families if one not in same][:3])
    if refused:
        say("Refused:")
        for one in refused[:AT_ONCE]:
            say(f"  {one.family}: {one.reason}")
        if len(refused) > AT_ONCE:
            say(f"  and {len(refused) - AT_ONCE} more, which --json shows")
    if not fitting:
        return
    best = fitting[0]
    if best.plan.data > 1:
        steps = [f"{name} from {_bytes(n)}" if n else name for n, name in _algorithms(machines, best)]
        say(f"All-reduce over {best.plan.data} ranks, by size: {', '.join(steps)}.")
    sizes = list(_with_how_many(model, machines))
    if len(sizes) > 1:
        least, longest = sizes[-1]
        rows = [(n, step_s, f"{least * longest / (n * step_s):.0%}") for n, step_s in sizes]
        say(f"With how many devices (efficiency: against {least}):")
        say_table(["  devices", "step_s", "efficiency"], [(f"  {n}", *rest) for n, *rest in rows])
    say("For the plan:")
    for line in best.plan.section(model):
        say(f"  {line}")


def _say_plans(title: str, plans: list[Prediction]) -> None:
    if not plans:
        return
    say(title)
    columns = "  step_s compute tensor stages idle gradients GB state activations data tensor pipeline shard recompute"
    rows = []
    for found in plans:
        one = found.plan
        times = (found.step_s, found.compute_s, found.tensor_s, found.stages_s, found.idle_s, found.data_s)
        sizes = (f"{size / 1e9:.1f}" for size in (found.bytes, found.state_bytes, found.activation_bytes))
        rest = (one.data, one.tensor, one.pipeline, one.shard, "yes" if one.recompute else "no")
        more = (one.micro_batches, one.schedule, one.sync_every)
        rows.append([*(f"{'' if n else '  '}{t:.3g}" for n, t in enumerate(times)), *sizes, *rest, *more])
    say_table([f"  {columns.split()[0]}", *columns.split()[1:], "micro-batches", "schedule", "sync_every"], rows)


def _calibration(found: Calibration) -> str:
    alpha, beta, error = f"{found.alpha_s * 1e6:.0f} us", f"{found.beta_s * 1e9:.2f} ns a byte", f"{found.error:.0%}"
    predicted, measured = f"{found.predicted_step_s * 1e3:.1f} ms", f"{found.step_s * 1e3:.1f} ms"
    return (
        f"Measured: {alpha} and {beta}, off by {error} at most at sizes between. A step of two processes: predicted "
        f"{predicted}, measured {measured}, off by {found.step_error:.0%}."
    )


def _bytes(n: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if n >= size:
            return f"{n / size:.3g} {unit}"
    return f"{n:.0f} B"
