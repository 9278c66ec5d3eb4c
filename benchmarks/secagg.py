"""Measures secure aggregation: a device and the server at n = 300, beside the cost of masks, keys and signatures alone.

``python -m benchmarks.secagg [--quick] [--json]``. CPU seconds of one process, in interleaved pairs; the floor is
measured in the same run. Needs 1.5 GB of memory and 1 GB of disk; the full run takes about half an hour on one core,
``--quick`` (100,000 parameters instead of 1M) two minutes. Results are checked before a ratio is reported: a device's
vector without its masks is its input, and the unmasked sum is the integer sum.

    device_1m_n300_vs_floor    the device's generator through a whole attempt, *strict*: roster checked, secrets split
                               and sealed, peers' shares unsealed, vector clipped, quantized, masked and packed, list
                               and proof checked, shares revealed; every state encoded as for storage.
                               Floor, for each of 299 peers: a mask (AES-256-CTR key stream, added), two X25519
                               agreements, an Ed25519 check of the advertisement; its own mask; two secrets split; the
                               digests of 600 shares that it deals and of 598 that it holds; 201 checks of the survivor
                               list. Certificates were checked in an earlier round and count in neither
    device_1m_k110_vs_floor    *fast*, 110 neighbours: the same floor for 110 peers, and 256 checks of the list, by
                               which a device knows that all but 44 have signed. Of the 189 others it checks the
                               certificate alone (docs/secure-aggregation-proofs.md)
    device_1m_4_groups_vs_1    CPU of a device's whole attempt in one of 4 groups of 75, over that in one group of 300,
                               and the bytes that it sends in both
    ..._cold_vs_floor          both devices in their first round: 299 checks of certificates more in both parts. No aim
    unmask_1m_9_gone_vs_floor  the coordinator's own code from blobs to the stored sum, *strict*, 9 vanished after they
    unmask_1m_44_gone_vs_floor shared, or 44; t devices have revealed. Floor: a vector added and a mask for every
                               survivor, an agreement and a mask for every pair of one that is gone and one that is
                               not, 300 secrets combined from 201 shares each
    upload_vs_float32          bytes of a packed masked vector of 1M values over those of float32
    bytes_..._vs_float32       bytes that a device sends and receives in a round, without the model's download, over
                               those of a plain update: q = 16; q = 4 (rotated); q = 4 and half of the coordinates
    server_memory_models       most memory of the opening at 1M, 9 gone, in models of 4 bytes a parameter: a child
                               process, by ``tracemalloc``, the 6 MB of revealed shares included
    ..._vs_flower              CPU seconds of one step beside Flower's function for it; null where it is not installed

Each ratio is followed by its quartiles and its two parts in CPU seconds.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from benchmarks import _secagg_floor as floor
from benchmarks._secagg_bytes import beside_float32
from benchmarks._secagg_crowd import FAST, STRICT, Crowd, OneDevice, header_of
from benchmarks._secagg_server import Server
from benchmarks.harness import Pairs, Row, Spread, interleaved, main
from client_sdk.secagg.agreement import AgreementKey
from client_sdk.secagg.header import GraphRule
from client_sdk.secagg.lanes import lane_bits, packed_bytes
from client_sdk.secagg.masks import Masker, pair_seed
from client_sdk.secagg.opening import rebuild_mask_key
from client_sdk.secagg.shamir import split

N = 300
MILLION = 1_000_000
QUICK = 100_000
AIM = 1.3
DEVICE_AIM = 1.35
GROUPS_AIM = 0.5
MEMORY_AIM_MODELS = 4.0
MODEL = 4 * MILLION


def crowd_of(rule: GraphRule, dimension: int) -> Crowd:
    """300 devices that have shared. Their objects are frozen in the garbage collector, since neither one device nor a
    server has them."""
    crowd = Crowd(N, header_of(rule, dimension))
    crowd.share()
    gc.collect()
    gc.freeze()
    return crowd


def gone_of(count: int) -> tuple[int, ...]:
    """Places of devices that vanished, spread over the roster."""
    return tuple(range(1, N, N // count))[:count]


def beside_floor(name: str, found: Pairs, aim: float | None = AIM) -> Iterator[Row]:
    """The ratio with its quartiles, and its two parts."""
    ratio = found.ratio
    met = None if aim is None else ratio.met(aim)
    yield Row(name=name, value=ratio.median, unit="ratio", ratio=ratio.median, aim=aim, met=met)
    yield from quartiles(name, ratio)
    cost = name.removesuffix("_vs_floor") + "_cpu_s"
    yield Row(name=cost, value=found.ours_median, unit="CPU s", limit=found.other_median, ratio=ratio.median)


def quartiles(name: str, spread: Spread) -> Iterator[Row]:
    """Two rows: the quartiles."""
    yield Row(name=f"{name}_q1", value=spread.low, unit="ratio")
    yield Row(name=f"{name}_q3", value=spread.high, unit="ratio")


def devices(crowd: Crowd, name: str, pairs: int) -> Iterator[Row]:
    """One device of the crowd beside its floor: when it has checked the others' certificates before (the aim), and in
    its first round."""
    device = OneDevice(crowd)
    device.require_right(device.play())
    place = device.place
    yield from beside_floor(f"{name}_vs_floor", interleaved(device.play, floor.device(crowd, place), pairs), DEVICE_AIM)
    cold = interleaved(device.play_cold, floor.device(crowd, place, cold=True), pairs)
    yield from beside_floor(f"{name}_cold_vs_floor", cold, None)


def groups(whole: Crowd, name: str, pairs: int) -> Iterator[Row]:
    """One device of 4 groups beside one that masks with all."""
    crowd = Crowd(N, replace(whole.header, groups=min(4, N // whole.header.minimum_cohort)))
    crowd.share()
    device, other = OneDevice(crowd), OneDevice(whole)
    device.require_right(device.play())
    found = interleaved(device.play, other.play, pairs)
    yield from beside_floor(f"{name}_4_groups_vs_1", found, GROUPS_AIM)
    bodies = [sum(len(one.body) + len(one.blob) for one in each.play().values()) for each in (device, other)]
    yield Row(name=f"{name}_4_groups_sent_bytes", value=bodies[0], unit="bytes", limit=bodies[1])


def servers(crowd: Crowd, gone: int, name: str, pairs: int) -> Iterator[Row]:
    """The server beside its floor."""
    places = gone_of(gone)
    with Server(crowd, places) as server:
        server.open()
        server.require_right()
        found = interleaved(server.open, floor.unmask(crowd, places), pairs)
        server.require_right()
    yield from beside_floor(name, found)


def memory() -> None:
    """In a fresh interpreter: opens a sum of 1M parameters and prints the peak of its memory in bytes."""
    with Server(crowd_of(STRICT, MILLION), gone_of(9), workers=2) as server:
        gc.collect()
        tracemalloc.start()
        server.open()
        taken = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        server.require_right()
        print(taken)


def memory_models() -> float:
    """The peak of ``memory`` in models of 4 bytes a parameter."""
    source = "from benchmarks import secagg; secagg.memory()"
    output = subprocess.run([sys.executable, "-c", source], check=True, stdout=subprocess.PIPE, text=True).stdout
    return float(output.splitlines()[-1]) / MODEL


def flower(quick: bool) -> Iterator[Row]:
    """Steps beside Flower's. Its shares and keys would take minutes in seven pairs, so they get three pairs."""
    bits = lane_bits(N, 16)
    ours = packed_bytes(MILLION + 2, bits)
    names = ("agreement", "mask_1m", "client_shares", "rebuilt_key")
    if quick or importlib.util.find_spec("flwr") is None:
        yield Row(name="upload_vs_float32", value=ours / MODEL, unit="ratio", aim=1.0, met=ours < MODEL)
        for name in names:
            yield Row(name=f"{name}_vs_flower", value=None, unit="CPU s")
        return
    from benchmarks._secagg_flower import Client

    theirs = Client(MILLION, bits, N, 2 * N // 3 + 1)
    yield Row(
        name="upload_vs_float32",
        value=ours / MODEL,
        unit="ratio",
        peer=theirs.upload_bytes() / MODEL,
        aim=1.0,
        met=ours < MODEL,
    )
    steps = own_steps(theirs.threshold)
    held = theirs.shares()
    others: tuple[Callable[[], object], ...] = (theirs.agree, theirs.mask, theirs.shares, lambda: theirs.combine(held))
    for name, mine, other, pairs in zip(names, steps, others, (15, 15, 3, 3), strict=True):
        found = interleaved(mine, other, pairs)
        yield Row(
            name=f"{name}_vs_flower",
            value=found.ours_median,
            unit="CPU s",
            peer=found.other_median,
            ratio=found.ratio.median,
        )


def own_steps(threshold: int) -> tuple[Callable[[], object], ...]:
    """Ours: a key agreed with one peer and the mask's seed derived; a mask; both secrets split; a key rebuilt and
    checked."""
    crowd = Crowd(64, header_of(STRICT, 1))
    shown = crowd.cohort.roster.entries[0].advertisement
    private, seed = crowd.secrets[0].mask_key.private, crowd.secrets[0].self_mask
    peer = crowd.cohort.roster.entries[1].advertisement.mask_key
    masker, vector = Masker(lane_bits(N, 16)), np.zeros(MILLION, np.uint32)
    xs = range(1, N + 1)
    shares = dict(zip(xs, split(private, xs, threshold, os.urandom), strict=True))

    def both() -> None:
        split(seed, xs, threshold, os.urandom)
        split(private, xs, threshold, os.urandom)

    return (
        lambda: pair_seed(AgreementKey(private).agree(peer), bytes(32), 0, 1),
        lambda: masker.apply(vector, bytes(32), 1),
        both,
        lambda: rebuild_mask_key(shares, threshold, shown),
    )


def measure(quick: bool) -> Iterator[Row]:
    """The rows, one after the other."""
    dimension, size, pairs = (QUICK, "100k", 9) if quick else (MILLION, "1m", 25)
    strict = crowd_of(STRICT, dimension)
    yield from devices(strict, f"device_{size}_n300", pairs)
    yield from groups(strict, f"device_{size}", pairs)
    if not quick:
        yield from devices(crowd_of(FAST, dimension), "device_1m_k110", pairs)
    for gone in (9, 44):
        yield from servers(strict, gone, f"unmask_{size}_{gone}_gone_vs_floor", 7)
    yield from flower(quick)
    yield from beside_float32(N)
    models = None if quick else memory_models()
    met = None if models is None else models <= MEMORY_AIM_MODELS
    yield Row(name="server_memory_models", value=models, unit="models", aim=MEMORY_AIM_MODELS, met=met)


if __name__ == "__main__":
    main("secagg", measure)
