"""The planner's formulas against a worked example, a played pipeline and played all-reduces."""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch.distributed.pipelining.schedules import ScheduleDualPipeV, ScheduleZBVZeroBubble
from torch.distributed.pipelining.schedules import _ComputationType as Computed

from client_sdk.protocol.workers import DatacenterTask
from coordinator.datacenter.all_reduce_costs import LINKS, Line, Link, cheapest, crossings, flat, hierarchical, leaders
from coordinator.datacenter.calibration import fitted, largest_error, typical
from coordinator.datacenter.planning import (
    Machines,
    Model,
    Plan,
    Prediction,
    advise,
    all_reduces,
    bubble,
    divisors,
    held,
    predict,
    state_bytes,
)

MEGATRON = Model(
    params=8.3e9, layers=72, hidden=3072, heads=24, sequence=1024, global_batch=64, precision="mixed", optimizer="adam"
)
"""The largest model of Shoeybi et al. 2019 (arXiv:1909.08053)."""
CLUSTER = Machines(devices=64, link=Link(0, 1 / 150e9), between=Link(0, 1 / 12.5e9), cards=8)


def gigabytes(found: Prediction) -> list[float]:
    return [round(size / 1e9, 1) for size in (found.state_bytes, found.activation_bytes, found.bytes)]


# ------------------------------------------------------------ the worked example


@pytest.mark.parametrize(
    ("plan", "batch", "sizes", "gradients"),
    [
        (Plan(data=64, shard="optimizer"), 64, [34.8, 16.8, 51.5], 32.7),
        (Plan(data=64, shard="full"), 64, [2.1, 16.8, 18.8], 49.0),
        (Plan(data=8, tensor=8), 8, [16.6, 4.1, 20.7], 3.63),
        (Plan(data=8, tensor=2, pipeline=4, micro_batches=16, schedule="1f1b"), 128, [16.6, 9.5, 26.1], 3.63),
    ],
)
def test_bytes_of_the_worked_example(plan: Plan, batch: int, sizes: list[float], gradients: float) -> None:
    found = predict(replace(MEGATRON, global_batch=batch), CLUSTER, plan)
    assert gigabytes(found) == sizes
    assert found.data_bytes / 1e9 == pytest.approx(gradients, abs=0.05)


def test_seconds_of_the_worked_example() -> None:
    eight = predict(replace(MEGATRON, global_batch=8), replace(CLUSTER, overlap=0.0), Plan(data=8, tensor=8))
    assert eight.tensor_s == pytest.approx(3.17e9 / 150e9, rel=2e-3)  # 21 ms
    assert all_reduces(CLUSTER, 8, 8)["ring"].seconds(2 * 8.3e9 / 8) == pytest.approx(0.290, abs=1e-3)
    assert all_reduces(CLUSTER, 64, 1)["ring"].seconds(2 * 8.3e9) == pytest.approx(2.6, abs=0.02)
    assert bubble(Plan(pipeline=4, micro_batches=16, schedule="1f1b")) == pytest.approx(0.158, abs=5e-4)


@pytest.mark.parametrize(
    ("precision", "optimizer", "each"),
    [("mixed", "adam", 16), ("float32", "adam", 16), ("float32", "momentum", 12), ("float32", "sgd", 8)],
)
def test_bytes_of_a_parameter(precision: str, optimizer: str, each: int) -> None:
    model = Model(params=1000, precision=precision, optimizer=optimizer)
    assert state_bytes(model, Plan()) == each * 1000
    assert state_bytes(model, Plan(data=4, shard="full")) == each * 1000 / 4


def test_one_machine_card_is_shared_by_its_devices() -> None:
    size, one = 2e9, replace(CLUSTER, cards=1)
    assert all_reduces(one, 8, 8)["ring"].seconds(size) == 8 * all_reduces(CLUSTER, 8, 8)["ring"].seconds(size)
    # A ring over all 64 ranks leaves each machine once, whatever the cards.
    assert all_reduces(one, 64, 1)["ring"] == all_reduces(CLUSTER, 64, 1)["ring"]
    assert cheapest(all_reduces(CLUSTER, 64, 1), size) == "hierarchical"


# ------------------------------------------------------------ a played pipeline


def orders(schedule: str, p: int, m: int, v: int, rank: int) -> list[tuple[str, int, int]]:
    """(F or B, micro-batch, stage of the rank) in the order in which a rank computes them, by the schedules' papers."""
    forwards = [("F", k // (p * v) * p + k % p, k // p % v) for k in range(m * v)]
    backwards = [("B", k // (p * v) * p + k % p, v - 1 - k // p % v) for k in range(m * v)]
    if schedule == "1f1b":
        forwards, backwards = [("F", k, 0) for k in range(m)], [("B", k, 0) for k in range(m)]
        ahead = min(m, p - rank - 1)
    elif schedule == "gpipe":
        return [("F", k, 0) for k in range(m)] + [("B", k, 0) for k in range(m)]
    else:
        ahead = min(m * v, 2 * (p - rank - 1) + (v - 1) * p)
    pairs = itertools.chain.from_iterable(zip(forwards[ahead:], backwards, strict=False))
    return [*forwards[:ahead], *pairs, *backwards[m * v - ahead :]]


def played(schedule: str, p: int, m: int, v: int, forward: int, backward: int) -> tuple[int, list[int]]:
    """When the last rank is done, and how many stages' activations each rank held at most."""
    ended: dict[tuple[str, int, int], int] = {}
    todo = [orders(schedule, p, m, v, rank) for rank in range(p)]
    clock, now, most = [0] * p, [0] * p, [0] * p
    while any(todo):
        moved = False
        for rank, queue in enumerate(todo):
            while queue:
                kind, micro, part = queue[0]
                stage = part * p + rank
                if kind == "F":
                    needs = [("F", micro, stage - 1)] if stage else []
                else:
                    needs = [("F", micro, stage)] + ([("B", micro, stage + 1)] if stage < p * v - 1 else [])
                if not all(need in ended for need in needs):
                    break
                start = max([clock[rank], *(ended[need] for need in needs)])
                clock[rank] = ended[kind, micro, stage] = start + (forward if kind == "F" else backward)
                now[rank] += 1 if kind == "F" else -1
                most[rank] = max(most[rank], now[rank])
                queue.pop(0)
                moved = True
        assert moved, "the schedule waits for itself"
    return max(clock), most


@pytest.mark.parametrize(("forward", "backward"), [(1, 2), (3, 3)])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_a_played_pipeline_has_the_bubble_and_holds_what_the_formulas_say(
    schedule: str, forward: int, backward: int
) -> None:
    for p, times in itertools.product((2, 3, 4, 8), (1, 2, 3, 4)):
        m = p * times
        plan = Plan(pipeline=p, micro_batches=m, schedule=schedule)  # type: ignore[arg-type]
        v = plan.stages
        took, most = played(schedule, p, m, v, forward, backward)
        busy = m * v * (forward + backward)
        assert took - busy == pytest.approx(bubble(plan) * took, abs=1e-9)
        assert bubble(plan) == pytest.approx((p - 1) / (v * m + p - 1))
        assert [held(plan, rank) * v for rank in range(p)] == most


def torchs_order(schedule: Any, p: int, m: int) -> list[list[list[Any]]]:
    """What each rank computes by torch's own schedule, without its stages: those at the same time in one list."""
    made = object.__new__(schedule)
    made.pp_group_size, made._n_microbatches, made.num_stages = p, m, 2 * p
    made._num_stages, made.n_local_stages, made._stages = 2 * p, 2, [None, None]
    orders = [made._calculate_single_rank_operations(rank) for rank in range(p)]
    return [[list(one.sub_actions or [one]) for one in order if one is not None] for order in orders]


def played_in_v(schedule: Any, p: int, m: int) -> tuple[int, list[int]]:
    """When the last rank is done, with one unit of time for each of F, B and W, and how many stages' activations each
    rank held at most."""
    todo, clock, now, most = torchs_order(schedule, p, m), [0] * p, [0] * p, [0] * p
    ended: dict[tuple[str, int, int], int] = {}
    while any(todo):
        moved = False
        for rank, queue in enumerate(todo):
            while queue:
                kinds = [(one.computation_type, one.stage_index, one.microbatch_index) for one in queue[0]]
                needs: list[tuple[str, int, int]] = []
                for kind, stage, micro in kinds:
                    if kind is Computed.FORWARD:
                        needs += [("F", stage - 1, micro)] if stage else []
                    elif kind is Computed.BACKWARD_WEIGHT:
                        needs += [("B", stage, micro)]
                    else:
                        needs += [("F", stage, micro)] + ([("B", stage + 1, micro)] if stage < 2 * p - 1 else [])
                if not all(need in ended for need in needs):
                    break
                length = sum(2 if kind is Computed.FULL_BACKWARD else 1 for kind, *_ in kinds)
                clock[rank] = max([clock[rank], *(ended[need] for need in needs)]) + length
                for kind, stage, micro in kinds:
                    if kind is not Computed.BACKWARD_WEIGHT:
                        ended["F" if kind is Computed.FORWARD else "B", stage, micro] = clock[rank]
                    now[rank] += {Computed.FORWARD: 1, Computed.BACKWARD_INPUT: 0}.get(kind, -1)
                    most[rank] = max(most[rank], now[rank])
                queue.pop(0)
                moved = True
        assert moved, "the schedule waits for itself"
    return max(clock), most


@pytest.mark.parametrize("p", [2, 3, 4, 8])
@pytest.mark.parametrize("schedule", ["zb", "dualpipev"])
def test_a_played_v_has_the_bubble_and_holds_what_the_formulas_say(schedule: str, p: int) -> None:
    kind = {"zb": ScheduleZBVZeroBubble, "dualpipev": ScheduleDualPipeV}[schedule]
    for m in range(1 if schedule == "zb" else 2 * p, 4 * p + 1):
        plan = Plan(pipeline=p, micro_batches=m, schedule=schedule)  # type: ignore[arg-type]
        took, most = played_in_v(kind, p, m)
        assert took - 6 * m == pytest.approx(bubble(plan) * took, abs=1e-9)
        assert held(plan) == max(most) / plan.stages


def test_gpipe_runs_with_fewer_micro_batches_than_stages() -> None:
    took, most = played("gpipe", 4, 2, 1, 1, 2)
    plan = Plan(pipeline=4, micro_batches=2, schedule="gpipe")
    assert (took - 6) / took == pytest.approx(bubble(plan))
    assert most == [held(plan)] * 4


# ------------------------------------------------------------ played all-reduces

Message = tuple[int, int, int, int, bool]
"""From, to, first and last element, and whether the receiver adds them."""


def ring(p: int, n: int) -> Iterator[list[Message]]:
    for add, step in itertools.product((True, False), range(p - 1)):
        parts = [(rank, (rank - step + (0 if add else 1)) % p) for rank in range(p)]
        yield [(rank, (rank + 1) % p, part * n // p, (part + 1) * n // p, add) for rank, part in parts]


def star(p: int, n: int) -> Iterator[list[Message]]:
    yield from ([(rank, 0, 0, n, True)] for rank in range(1, p))
    yield from ([(0, rank, 0, n, False)] for rank in range(1, p))


def tree(p: int, n: int) -> Iterator[list[Message]]:
    levels = [[(rank, rank - bit) for rank in range(bit, p, 2 * bit)] for bit in (2**k for k in range(9)) if bit < p]
    yield from ([(child, parent, 0, n, True) for child, parent in level] for level in levels)
    yield from ([(parent, child, 0, n, False) for child, parent in level] for level in levels[::-1])


def folded(p: int) -> tuple[list[tuple[int, int]], list[int]]:
    """The pairs of a number of ranks that is no power of two, and who goes on."""
    rest = p - 2 ** (p.bit_length() - 1)
    return [(2 * i, 2 * i + 1) for i in range(rest)], [*range(0, 2 * rest, 2), *range(2 * rest, p)]


def doubling(p: int, n: int) -> Iterator[list[Message]]:
    pairs, on = folded(p)
    yield [(odd, even, 0, n, True) for even, odd in pairs]
    for bit in (2**k for k in range(len(on).bit_length() - 1)):
        yield [(rank, on[place ^ bit], 0, n, True) for place, rank in enumerate(on)]
    yield [(even, odd, 0, n, False) for even, odd in pairs]


def halving_doubling(p: int, n: int) -> Iterator[list[Message]]:
    pairs, on = folded(p)
    half = n // 2
    yield [one for even, odd in pairs for one in ((even, odd, half, n, True), (odd, even, 0, half, True))]
    yield [(odd, even, half, n, False) for even, odd in pairs]
    spans = [(0, n)] * len(on)
    back = []
    for bit in [2**k for k in range(len(on).bit_length() - 1)][::-1]:
        level, kept = [], list(spans)
        for place, (first, last) in enumerate(spans):
            middle = (first + last) // 2
            lower, upper = (first, middle), (middle, last)
            kept[place], sent = (upper, lower) if place & bit else (lower, upper)
            level.append((on[place], on[place ^ bit], *sent, True))
        back.append([(on[place], on[place ^ bit], *kept[place], False) for place in range(len(on))])
        spans = kept
        yield level
    yield from back[::-1]
    yield [(even, odd, 0, n, False) for even, odd in pairs]


@pytest.mark.parametrize("p", range(2, 13))
@pytest.mark.parametrize("way", [ring, star, tree, doubling, halving_doubling])
def test_a_played_all_reduce_takes_what_its_line_says(way: object, p: int) -> None:
    """Each rank's number is one bit, so that counting one twice shows."""
    n, link, gamma = 16 * p, Link(1000.0, 10.0), 1.0
    values = np.array([np.full(n, 1 << rank) for rank in range(p)])
    seconds = 0.0
    for messages in way(p, n):  # type: ignore[operator]
        if not messages:
            continue
        assert len({one[0] for one in messages}) == len({one[1] for one in messages}) == len(messages)
        sent = [values[source, first:last].copy() for source, _, first, last, _ in messages]
        for (_, to, first, last, add), part in zip(messages, sent, strict=True):
            values[to, first:last] = part + (values[to, first:last] if add else 0)
        longest = max(last - first for _, _, first, last, _ in messages)
        seconds += link.alpha_s + longest * (link.beta_s + gamma * messages[0][4])
    assert (values == (1 << p) - 1).all()
    name = way.__name__.replace("_", "-")  # type: ignore[attr-defined]
    assert flat(p, link, gamma)[name].seconds(n) == pytest.approx(seconds)


def test_two_trees_send_halves_and_hierarchies_add_up() -> None:
    link, slow = Link(1.0, 2.0), Link(10.0, 20.0)
    one, two = flat(8, link)["tree"], flat(8, link)["two-tree"]
    assert two == Line(one.fixed_s, one.per_byte_s / 2)
    # 2(g-1) alpha + 2(g-1)/g n beta inside, 2(G-1) alpha + 2(G-1)/p n beta across
    assert hierarchical(4, 2, link, slow) == pytest.approx((6 * 1 + 2 * 10, 2 * 3 / 4 * 2 + 2 / 8 * 20))
    assert leaders(4, 2, link, slow) == pytest.approx((6 * 1 + 2 * 10, 6 * 2 + 20))


@pytest.mark.parametrize("p", range(2, 17))
@pytest.mark.parametrize("gamma", [0.0, 5e-11])
def test_crossings_name_the_cheapest_at_every_size(p: int, gamma: float) -> None:
    lines = flat(p, LINKS["ethernet25"], gamma)
    found = crossings(lines)
    assert found[0][0] == 0
    assert [size for size, _ in found] == sorted(size for size, _ in found)
    for size in np.geomspace(1, 1e10, 200):
        name = [name for begins, name in found if begins <= size][-1]
        assert lines[name].seconds(size) == pytest.approx(lines[cheapest(lines, size)].seconds(size))
    for size, name in found[1:]:
        before = found[[one for _, one in found].index(name) - 1][1]
        assert lines[before].seconds(size) == pytest.approx(lines[name].seconds(size))


# ------------------------------------------------------------ what is advised


def test_plans_are_of_all_devices_fit_and_are_sorted() -> None:
    model = replace(MEGATRON, global_batch=512)
    fitting, refused = advise(model, CLUSTER, local_steps=4)
    assert all(one.plan.data * one.plan.tensor * one.plan.pipeline == 64 for one in fitting)
    assert all(one.bytes <= CLUSTER.usable for one in fitting)
    plain = [one for one in fitting if one.plan.sync_every == 1]
    assert fitting[: len(plain)] == plain
    times = [one.step_s for one in plain]
    assert times == pytest.approx(sorted(times), rel=5e-3)
    reasons = {one.family: one.reason for one in refused}
    assert reasons["tensor 16"] == "24 heads do not divide by 16"
    assert reasons["pipeline 16"] == "72 layers do not divide by 16"
    assert reasons["data 64, tensor 1, pipeline 1, shard none"].startswith("needs 133.5 GB at least")
    assert len(refused) == len(set(refused))


def test_what_cannot_be_divided_is_refused() -> None:
    _, refused = advise(replace(MEGATRON, heads=48, global_batch=48), replace(CLUSTER, memory=1e9))
    reasons = {one.family: one.reason for one in refused}
    assert reasons["tensor 16"] == "its all-reduces within layers would cross machines of 8"
    assert reasons["data 64"] == "a batch of 48 does not divide by 64"
    assert reasons["data 16, tensor 1, pipeline 4, shard full"].endswith("and 0.9 may be used")
    unknown, reasons_of = advise(Model(params=1000), Machines(devices=2, per_machine=2))
    assert {(one.plan.tensor, one.plan.pipeline) for one in unknown} == {(1, 1)}
    assert [one.reason for one in reasons_of] == [
        "the model's layers are not known",
        "the model's heads are not known",
    ]


def test_equally_fast_plans_are_sorted_by_how_simple_they_are() -> None:
    fitting, _ = advise(Model(params=1e6, global_batch=64), Machines(devices=4, per_machine=4))
    assert fitting[0].plan == Plan(data=4)


def test_local_steps_send_less_and_are_of_plain_data_parallelism() -> None:
    fitting, _ = advise(Model(params=1e8), replace(CLUSTER, cards=1), local_steps=8)
    local = [one for one in fitting if one.plan.sync_every == 8]
    assert {(one.plan.data, one.plan.shard) for one in local} == {(64, "none")}
    every = predict(Model(params=1e8), replace(CLUSTER, cards=1), Plan(data=64))
    assert local[0].data_bytes == pytest.approx(every.data_bytes / 8)


def test_recomputation_trades_a_forward_pass_for_memory() -> None:
    plan = Plan(data=8, tensor=2, pipeline=4, micro_batches=16, schedule="1f1b")
    plain, again = (predict(replace(MEGATRON, global_batch=128), CLUSTER, replace(plan, recompute=r)) for r in (0, 1))  # type: ignore[arg-type]
    assert again.compute_s == pytest.approx(4 / 3 * plain.compute_s)
    assert again.tensor_s == pytest.approx(6 / 4 * plain.tensor_s)
    border, layer = 2 * 1024 * 3072, 3.145728e6 * (10 + 12 + 20)
    assert again.activation_bytes == pytest.approx(4 * 18 * border + layer)


def test_overlap_hides_gradients_but_the_last_bucket() -> None:
    model = Model(params=1e9, global_batch=64, precision="float32", optimizer="sgd")
    machines = Machines(devices=2, per_machine=2, link=Link(0, 1e-9), flops=1e10)
    alone = predict(model, replace(machines, overlap=0.0), Plan(data=2)).data_s
    assert alone == pytest.approx(4e9 * 1e-9)
    assert predict(model, machines, Plan(data=2)).data_s == pytest.approx(25e6 * 1e-9)
    assert predict(model, machines, Plan(data=1)).data_s == 0


def test_nothing_hides_the_all_reduce_of_schedules_that_divide_backward_passes() -> None:
    plan = Plan(data=8, pipeline=4, micro_batches=32, schedule="1f1b")
    slow = replace(CLUSTER, devices=32, overlap=1.0)
    hidden, shown = (
        predict(replace(MEGATRON, global_batch=256), slow, replace(plan, schedule=name)).data_s
        for name in ("1f1b", "zb")
    )
    unhidden = predict(replace(MEGATRON, global_batch=256), replace(slow, overlap=0.0), plan).data_s
    assert hidden < shown == unhidden


def test_the_lines_of_a_plan_name_what_differs_from_one_device() -> None:
    plan = Plan(data=2, tensor=2, pipeline=2, micro_batches=4, schedule="interleaved", recompute=True, shard="full")
    assert plan.section(replace(MEGATRON, precision="bfloat16")) == [
        "[datacenter]",
        "nproc = 8",
        "mesh = {data = 2, tensor = 2, pipeline = 2}",
        'schedule = "interleaved"',
        'shard = "full"',
        "recompute = true",
        "batch_size = 64",
        "accumulate = 4",
        'precision = "bfloat16"',
    ]
    local = Plan(data=8, sync_every=16).section(MEGATRON)
    assert local[:-1] == ["[datacenter]", "nproc = 8", "batch_size = 64", "sync_every = 16"]
    assert local[-1] == "# 16-bit weights beside float32 ones are not this trainer's"


def test_divisors() -> None:
    for n in range(1, 200):
        assert divisors(n) == [k for k in range(1, n + 1) if n % k == 0]


# ------------------------------------------------------------ calibration


def test_a_fit_finds_the_line_and_its_error() -> None:
    exact = {2**k: 3e-4 + 6e-10 * 2**k for k in range(10, 27, 2)}
    line = fitted(exact)
    assert line == pytest.approx((3e-4, 6e-10), rel=1e-9)
    assert largest_error(line, {2**20: 1.25 * line.seconds(2**20)}) == pytest.approx(0.2)
    skewed = {1024: 3.0, 4096: 2.0, 16384: 1.0}  # larger is faster: no negative slope
    assert fitted(skewed).per_byte_s == 0
    assert fitted({1000: 1e-6, 2000: 3e-6}).fixed_s == 0
    with pytest.raises(ValueError, match="two sizes"):
        fitted({1024: 1.0})


def test_a_fit_is_the_least_in_relative_error() -> None:
    rng = np.random.default_rng(5)
    times = {2**k: float((3e-4 + 6e-10 * 2**k) * rng.uniform(0.8, 1.2)) for k in range(10, 27)}
    line = fitted(times)

    def loss(one: Line) -> float:
        return math.fsum((one.seconds(n) / t - 1) ** 2 for n, t in times.items())

    for a, b in itertools.product((0.98, 1.0, 1.02), repeat=2):
        assert loss(line) <= loss(Line(line.fixed_s * a, line.per_byte_s * b))


def test_the_typical_time_ignores_the_slow_half() -> None:
    assert typical([*range(1, 11), *[1000] * 10]) == pytest.approx(np.mean(range(3, 11)))
    assert typical([7.0]) == 7.0


# ------------------------------------------------------------ the trainer's rules


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16", "mixed"])
@pytest.mark.parametrize("devices", [1, 2, 8, 16])
def test_the_trainer_takes_the_section_of_every_plan(devices: int, precision: str) -> None:
    model = Model(params=1e9, layers=32, hidden=1024, heads=16, sequence=128, global_batch=32, precision=precision)
    found, refused = advise(model, Machines(devices=devices, memory=400e9), local_steps=16)
    assert found
    for one in found:
        section = tomllib.loads("\n".join(one.plan.section(model)))["datacenter"]
        task = DatacenterTask(data="mnist", **section)
        assert task.nproc == devices
    kept = {(one.plan.shard, one.plan.tensor * one.plan.pipeline > 1) for one in found}
    assert ("optimizer", True) not in kept
    if precision == "float16" and devices > 1:
        assert kept == {("none", False)}
        assert any("float16 scales losses by a whole gradient" in one.reason for one in refused)
        assert any("mesh goes with no" in one.reason for one in refused)
