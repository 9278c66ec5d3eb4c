"""``quorate plan`` checks a plan's file, computes the cost of its rounds, and prints the schema of plans for editors.

All of it works without a coordinator.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from client_sdk.terminal import Json, fail, say, say_json, sentence_of
from coordinator.commands import cohort_sizes
from coordinator.commands.initial_checkpoint import Statistics, given, initial, learner_unknown, roles_for, said_roles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from client_sdk.tensors import Roles, TensorHeader
    from client_sdk.tensors.manifest import StatisticRole
    from coordinator.engine.plan import Plan
    from coordinator.runtime.insight.plan_check import RoundCost, Said

app = typer.Typer(
    no_args_is_help=True,
    help="Check a plan, compute the sizes of its rounds, and print the schema of plans for editors.",
    epilog="Example: quorate plan check plan.toml",
)

app.command(epilog=cohort_sizes.EPILOG)(cohort_sizes.cohort)

PlanPath = Annotated[Path, typer.Argument(metavar="PLAN.toml", help="The plan's file.")]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Change a field of the plan, as in --set finish.rounds=20. May be given several times.",
    ),
]


@app.command(epilog="Example: quorate plan check plan.toml --init model.safetensors")
def check(
    plan: PlanPath,
    changes: Changes = None,
    init: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="An initial checkpoint, for its size (default: made by the learner)."),
    ] = None,
    examples: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Training examples of the largest device: says whether weight_cap cuts."),
    ] = None,
    statistics: Statistics = None,
    as_json: Json = False,
) -> None:
    """Check a plan, and show what its rounds need: devices, bytes, disk, memory and time.

    Exit code 1 where the plan makes no sense: file, line and reason. Extensions that the plan names must be installed.
    """
    from coordinator.engine.plan import Plan, algorithm, require_bits, require_combinable
    from coordinator.runtime.extensions import installed
    from coordinator.runtime.insight.plan_check import (
        RoundCost,
        cannot_learn,
        rounding_of,
        said_of_plan,
        said_of_secure,
    )

    read = Plan.from_toml(plan, changes or ())
    weighs = None if examples is None or read.terms is None else float(min(examples, read.terms.weight_cap))
    rule = algorithm(read, installed(read), read.cohort.goal)
    require_bits(read, weighs)
    doubt = learner_unknown(read)
    found, unknown = _model(read, init, said_roles(statistics))
    cost = None if found is None else RoundCost.of(read, found[0], found[1])
    if cost is not None:
        require_combinable(read, rule, cost.values)
    if cost is not None and (reason := cannot_learn(read, cost.values - cost.statistics)):
        fail(f"{plan}: {reason}.")
    sizes = [examples] if examples is not None else [] if read.secure is None else [int(read.usual_weight)]
    capped = said_of_plan(read, sizes, whose="devices")
    values = None if cost is None else cost.values - cost.statistics
    said = list(said_of_secure(read, rule, values, from_file=init is not None, examples=examples))
    if as_json:
        say_json(
            _document(read, cost, unknown)
            | {
                "capped": capped,
                "said": [str(one) for one in said],
                "learner": doubt,
                "metric": _unscored(read),
                "rounding": "" if cost is None else rounding_of(read, cost.values - cost.statistics, weighs),
            }
        )
        return
    say(f"{plan}: this plan can be carried out (digest {read.digest[:12]}).")
    if doubt:
        say(f"  learner:      {doubt}")
    for line in _lines(read, said, cost, unknown):
        say(f"  {line}")
    if read.secure is not None and cost is not None:
        say(f"  rounding:     {rounding_of(read, cost.values - cost.statistics, weighs)}")
    if read.schedule is not None:
        say(f"  rates:        {read.schedule.said(read)}")
    if capped:
        say(f"  weights:      {capped}.")
    if doubt := _unscored(read):
        say(f"  metric:       {doubt}")


@app.command(epilog="Example: quorate plan schema > plan.schema.json")
def schema() -> None:
    """Print the JSON schema of plans. An editor completes and checks a plan whose first line names the schema's file:
    ``#:schema ./plan.schema.json``."""
    from coordinator.runtime.insight.plan_check import plan_schema

    say_json(plan_schema())


def _model(
    plan: Plan, init: Path | None, said: dict[str, StatisticRole] | None
) -> tuple[tuple[TensorHeader, Roles] | None, str]:
    """The header of the initial checkpoint, and its statistics; or None, and why it is not known here."""
    from client_sdk.tensors import read_header

    if init is not None:
        content, made_by = given(plan, init)
        header = read_header(content)
    else:
        try:
            _, content, _, made_by = initial(plan, None, None)
            header = read_header(content)
        except Exception as error:  # noqa: BLE001  (a learner is user code, and need not be installed here)
            return None, sentence_of(error)
    return (header, roles_for(header.manifest, said, made_by)[0]), ""


def _unscored(plan: Plan) -> str:
    """A sentence where the plan waits for a metric that its learner does not score: only an evaluator with metrics of
    its own reports it. Empty where the learner scores it, or where that is not known here."""
    from client_sdk.learners import LearnerError, catalogue_for
    from client_sdk.protocol.names import did_you_mean

    metric, name = plan.finish.metric, plan.task.learner
    try:
        metrics = None if metric is None else getattr(catalogue_for([name]).load(name), "metrics", None)
    except LearnerError:
        return ""
    if metric is None or not isinstance(metrics, dict) or metric in (known := {"loss", *metrics}):
        return ""
    return f"The learner {name} scores {', '.join(sorted(known))}, not {metric}{did_you_mean(metric, known) or '.'}"


def _document(plan: Plan, cost: RoundCost | None, unknown: str) -> dict[str, Any]:
    cohort, secure = plan.cohort, plan.secure
    return {
        "digest": plan.digest,
        "devices": {"select": cohort.select, "goal": cohort.goal, "quorum": cohort.quorum_count},
        "buffered": None
        if plan.buffered is None
        else {"concurrency": plan.places, "staleness_64ths": list(plan.buffered.in_parts)},
        "secure": None
        if secure is None
        else {"reserve": secure.reserved(cohort), "margin": secure.first_margin(cohort), "quiet_s": secure.quiet},
        "rounds": plan.finish.rounds,
        "round": None if cost is None else asdict(cost),
        "unknown": unknown,
    }


def _lines(plan: Plan, said: Sequence[Said], cost: RoundCost | None, unknown: str) -> list[str]:
    from client_sdk.protocol.names import size_text
    from coordinator.runtime.insight.plan_check import longest_s, time_text

    cohort, rounds = plan.cohort, plan.finish.rounds
    reports = f"closes at {cohort.goal} reports, counts from {cohort.quorum_count} at the deadline"
    longest = longest_s(plan)
    lines = [
        f"a round:      selects {cohort.select} devices, {reports}",
        f"time:         at most {time_text(longest)} a round, {time_text(rounds * longest)} for {rounds} rounds",
    ]
    if plan.buffered is not None:
        in_64ths = ", ".join(map(str, plan.buffered.in_parts))
        lines = [
            f"a round:      commits {cohort.goal} reports, while {plan.places} devices train",
            f"time:         at most {time_text(cohort.collect_s)} for each device",
            f"staleness:    a report of up to {plan.buffered.most_stale} versions back weighs, in 1/64: {in_64ths}",
        ]
    if plan.secure is not None:
        most, reserve = plan.secure.most_advertisers(cohort), plan.secure.reserved(cohort)
        goes_on = f"an exchange with enough of them goes on after {time_text(plan.secure.quiet)} without a message"
        lines.append(f"secure:       closes at {most} devices with keys, a reserve of {reserve}; {goes_on}")
        size = most // plan.secure.groups
        signers, margin = plan.secure.rule.parameters(size).signers, plan.secure.first_margin(cohort)
        lines.append(
            f"margin:       of {size} devices {signers} sign the list of survivors, which is shown when "
            f"{signers + margin} have masked: {margin} of them may vanish before the sum"
        )
        lines += [f"{one.about + ':':<14}{one.text}" for one in said]
    if plan.privacy is not None:
        values = None if cost is None else cost.values
        lines += [f"privacy:      {text}" for text in plan.privacy.said(plan, values)]
    if cost is None:
        return [*lines, f"model:        not known here: {unknown} Give --init FILE."]
    part = "" if cost.values == cost.model_values else f", of which {cost.values:,} are averaged"
    part += f"; {cost.statistics:,} are of statistics" if cost.statistics else ""
    down, up, all_of_them = cost.download_bytes, cost.upload_bytes, f"where all {cohort.select} report"
    if plan.buffered is not None:
        all_of_them = f"of {cohort.goal} reports"
    shorter = f"up to about {size_text(cost.delta_bytes)} where it has the model of the round before"
    return [
        *lines,
        f"model:        {cost.model_values:,} values, {size_text(cost.model_bytes)}{part}",
        f"one device:   fetches {size_text(cost.fetch_bytes)}, {shorter}",
        f"              sends about {size_text(cost.update_bytes)} a round",
        f"network:      about {size_text(down)} sent and {size_text(up)} received a round, {all_of_them}",
        f"              {size_text(rounds * (down + up))} in {rounds} rounds",
        f"coordinator:  about {size_text(cost.memory_bytes)} of memory for a round, beside the process itself",
        f"              about {size_text(cost.disk_bytes)} of disk for updates",
    ]
