"""What holds for every test: one thread a process, order, hypothesis profiles, the time of a soak, services in CI.

It knows nothing of Quorate's rooms.
"""

from __future__ import annotations

import functools
import gc
import os
import re
import signal
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
import structlog
from hypothesis import HealthCheck, settings

# Until the tests are collected, nothing that is imported is garbage (``pytest_collection_finish``).
gc.disable()

# Before any test imports a numerical library: test machines have few cores and run many processes.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

# A shell starts what it runs in the background with Ctrl-C ignored, and so would every process that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The day by which cases take turns (``tests/rotating.py``): one for all processes, which must collect the same.
os.environ.setdefault("TESTS_OF_DAY", str(int(time.time() // 86_400)))


def _roomy(folder: str) -> bool:
    """Whether there is room for the files of a whole run, and programs in them can be run."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize > 8 << 30 and not found.f_flag & os.ST_NOEXEC


# A commit waits for its disk, which took half of the time of tests with databases in files; memory does not wait.
# No test cuts the power: `UnsyncedFiles` of the explorer does that, and knows by itself what was synced.
IN_MEMORY = "/dev/shm" if _roomy("/dev/shm") else None
if IN_MEMORY is not None and "TMPDIR" not in os.environ:
    os.environ["TMPDIR"] = tempfile.tempdir = IN_MEMORY

# Devices of tests count their sums where no other test run does.
os.environ.setdefault("QUORATE_SUMS_FOLDER", str(Path(tempfile.gettempdir()) / f"quorate-sums-{uuid.uuid4().hex}"))

IN_CI = os.environ.get("QUORATE_CI", "") not in ("", "0")


def lacking(reason: str) -> NoReturn:
    """Skips a test of `make fast` for want of a tool that CI has, such as a C compiler; in CI it fails."""
    if IN_CI:
        pytest.fail(f"CI must not skip this. {reason}", pytrace=False)
    pytest.skip(reason)


# No deadline: how long one example takes says more about the machine than about the code.
_COMMON = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("local", max_examples=30, **_COMMON)
settings.register_profile("ci", max_examples=100, derandomize=True, **_COMMON)
settings.register_profile("soak", max_examples=5_000, **_COMMON)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci" if IN_CI else "local")
settings.load_profile(PROFILE)
SOAKS = PROFILE == "soak"
SOAK_SECONDS = float(os.environ.get("SOAK_SECONDS", "600"))


_ALL_MARKED = re.compile(r"^pytestmark = (?:\[[^\]]*)?pytest\.mark\.(slow|whole|service)\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file whose tests are all left out, by `-m "not whole"` for example, is not even imported: every process of
    `make fast` would pay for what it imports."""
    if not (collection_path.name.startswith("test_") and collection_path.suffix == ".py"):
        return None
    left_out = config.getoption("markexpr").split(" and ")
    found = _ALL_MARKED.search(collection_path.read_text("utf-8"))
    return True if found and f"not {found[1]}" in left_out else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark property tests, leave soak tests to `make soak`, and choose the order: slow tests last. Where processes
    share the files, those with the most slow tests come first, for none of them to be the last."""
    bounded: list[object] = []
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.property)
            if SOAKS and item.obj.hypothesis not in bounded:
                bounded.append(item.obj.hypothesis)
                item.obj.hypothesis.inner_test = _until_the_soak_is_over(item.obj.hypothesis.inner_test)
    if "soak" not in config.getoption("markexpr"):
        left_out = {item for item in items if item.get_closest_marker("soak")}
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
    if hasattr(config, "workerinput"):
        slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
        items.sort(key=lambda item: -slow[item.path])


def pytest_collection_finish() -> None:
    """What was collected and imported lives until the end. Python's garbage collector need not look through it again
    and again, which took a tenth of the time of all fast tests."""
    gc.collect()
    gc.freeze()
    gc.enable()


def _until_the_soak_is_over(test: Callable[..., None]) -> Callable[..., None]:
    """The property for SOAK_SECONDS; later examples pass unseen, since hypothesis has no time after which it ends."""
    ends: list[float] = []

    @functools.wraps(test)
    def bounded(*arguments: object, **named: object) -> None:
        if not ends:
            ends.append(time.monotonic() + SOAK_SECONDS)
        if time.monotonic() < ends[0]:
            test(*arguments, **named)

    return bounded


@pytest.fixture(autouse=True, scope="session")
def _temporary_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Temporary folders of tests and of processes that they start, and what these note for their user, lie below
    pytest's own, which removes them after some runs: who is killed on purpose leaves one behind."""
    with pytest.MonkeyPatch.context() as patch:
        place = str(tmp_path_factory.mktemp("temporary"))
        patch.setenv("TMPDIR", place)
        patch.setattr(tempfile, "tempdir", place)
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _logs_are_not_remembered() -> Iterator[None]:
    """No logger remembers what a command that ran in this process has configured, and with it a stream that is
    closed."""
    configure = structlog.configure
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structlog, "configure", lambda **how: configure(**{**how, "cache_logger_on_first_use": False}))
        yield


@pytest.fixture(autouse=True)
def _logs_as_at_first() -> Iterator[None]:
    yield
    if structlog.is_configured():
        structlog.reset_defaults()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where services are promised (QUORATE_CI=1), a service test that skips has failed."""
    report = yield
    if IN_CI and report.skipped and item.get_closest_marker("service") and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} needs a service and must not be skipped in CI. {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """In CI no module skips itself as a whole: its marks go unseen then, and with them a missing service."""
    report = yield
    if IN_CI and report.skipped:
        report.outcome = "failed"
        report.longrepr = (
            f"{collector.nodeid} skips as a whole: mark its tests `service` and skip these. {report.longrepr}"
        )
    return report
