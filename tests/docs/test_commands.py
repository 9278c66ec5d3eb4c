"""Every command in the pages is one that the command line accepts; those that end soon are run as they stand."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from simulation.datasets import DataUnavailable, load
from tests.docs.pages_commands import PAGES, ROOT, PageCommand, commands, lines_of_blocks, of_line, parsed
from tests.rotating import on_day

BIN = Path(sys.executable).parent
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("QUORATE_")},
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
}

ALONE = (
    "privacy plan --noise 4 --rounds 10 --delta 1e-6 --goal 256 --values 50890",
    "privacy plan --epsilon 8 --rounds 6 --apart 300 --of 2000 --delta 1e-6 --goal 6500",
    "secagg parameters --n 300 --drop 44 --corrupt 0.1 --sigma 80",
    "secagg parameters --n 300 --drop 44 --corrupt 0.1 --sigma 80 --json",
    "plan cohort --median 40 --sigma 0.6 --dropout 0.1 --deadline 120 --goal 256",
    "datacenter plan --params 8.3e9 --layers 72 --hidden 3072 --devices 64 --memory 80GB --between ethernet25",
)
"""Commands of blocks that end by themselves within 30 s, and need nothing."""
LONG = (
    "simulate examples/mnist.toml --data mnist --clients 1000 --alpha 0.3 --folder run",
    "datacenter train quorate:mnist-mlp --data mnist --steps 500 --batch-size 512 --nproc 2 --out model.safetensors",
    "datacenter train quorate:mnist-mlp --data mnist --steps 500 --nproc 2 --out model.safetensors",
)
"""Commands that end by themselves, but later: they are run by ``make soak``."""
ELSEWHERE = {
    "doctor": "tests/client_sdk/commands/test_doctor.py runs it, on a machine without a coordinator",
    "serve": "runs until it is stopped; the scenarios below start it",
    "dashboard": "tests/dashboards and tests/browser run it",
    "device": "runs until it is stopped; the scenarios below start it",
    "datacenter join": "runs until it is stopped; tests/coordinator/datacenter/test_agent_join.py starts it",
    "datacenter follow": "runs until it is stopped; tests/coordinator/datacenter/test_multi_machine.py starts it",
    "datacenter train": "in docs/datacenter.md: minutes, or with placeholders",
    "authority ": "tests/coordinator/authority runs each of them, and serves an authority",
    "run create examples/fallback.toml": "tests/coordinator/datacenter/test_agent.py reads this plan",
    "rounds fallback": "of that run",
    "privacy audit": "tests/simulation/test_privacy_audit.py runs it",
    "privacy ledger": "tests/coordinator/test_cli.py runs each of them",
    "report": "tests/coordinator/commands/test_report.py runs it",
    "keys": "in docs/operators.md; tests/coordinator/test_cli.py runs them",
    "status --key-file": "tests/coordinator/test_cli.py runs it",
    "status --watch": "runs until it is stopped; tests/coordinator/commands/test_watching.py runs it",
    "status mnist --watch": "likewise",
    "plot mnist": "tests/coordinator/commands/test_plot.py runs it",
    "audit": "tests/coordinator/test_cli.py runs it",
    "flower": "in docs/from-flower.md: needs an app; tests/flower runs it, and with devices too",
    "verify quorate-data": "needs a folder: the scenario of the tutorial runs it",
    "verify DATA --head": "tests/coordinator/verify/test_audit_heads.py runs it",
    "verify postgresql": "tests/coordinator/verify/test_audit_heads.py runs it on SQLite",
}
"""How a command begins -> why it is not run by itself."""


def test_every_page_with_commands_is_read() -> None:
    assert len(commands()) > 70
    assert {"README.md", "docs/tutorial.md", "docs/datacenter.md"} <= {command.page for command in commands()}


def test_the_command_line_accepts_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    refused = {}
    for command in commands():
        try:
            parsed(command)
        except Exception as error:
            refused[str(command)] = str(error)
    assert refused == {}


def shell_blocks(page: Path) -> list[str]:
    """The page's blocks of shell commands, without those that show what a command prints."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    words = r"cp |curl |for |git |install |make |pip |python3? |quorate |source |torchrun |\(|(\w+=\S+ )+quorate "
    programs = re.compile(f"^({words})")
    return [block for language, block in blocks if not language and programs.match(block)]


def test_blocks_of_shell_commands_are_shell() -> None:
    found = {page.name: block for page in PAGES for block in shell_blocks(page)}
    assert {"README.md", "tutorial.md", "from-flower.md"} <= set(found)
    for page in PAGES:
        for block in shell_blocks(page):
            assert not re.search(r"(?<!<)<[a-z]+>", block), f"{page.name} has a placeholder that a shell reads: {block}"
            ran = subprocess.run(["bash", "-n"], input=block, text=True, capture_output=True, check=False)
            assert ran.returncode == 0, f"{page.name}: {ran.stderr}"


def test_what_pip_and_make_are_asked_for_is_there() -> None:
    """Quorate is on no index before its release: pages install it from a clone, and name extras that it has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    asked: set[str] = set()
    for page in PAGES:
        text = page.read_text("utf-8")
        for line in re.findall(r"pip install ([^`\n]*)", text):
            assert "quorate" not in line.partition("#")[0], f"{page.name}: pip install {line}"
            asked |= set(",".join(re.findall(r"\.\[([\w,]+)\]", line)).split(",")) - {""}
        named = re.findall(r"(?:^|`|&& )make ([a-z]+)", text, re.MULTILINE)
        assert set(named) <= targets, page.name
    assert {"coordinator", "torch"} <= asked <= set(project["optional-dependencies"])


def test_the_readme_begins_with_a_clone_and_what_puts_quorate_on_the_path() -> None:
    first = shell_blocks(ROOT / "README.md")[0].splitlines()
    assert [line.split("  #")[0].strip() for line in first] == [
        "git clone ADDRESS quorate && cd quorate",
        "make install",
        "source .venv/bin/activate",
        "quorate doctor",
        "make demo",
    ]


@pytest.mark.parametrize(
    "line", ["quorate stats", "quorate run create", "quorate device --shared 1/4", "quorate rounds"]
)
def test_a_wrong_command_is_found(line: str) -> None:
    (words,) = of_line(line)
    with pytest.raises(Exception, match=r"no command|Missing parameter|No such option"):
        parsed(PageCommand("page", words, in_block=True))


def test_every_command_is_run_or_says_why_not() -> None:
    scenarios = {f"quorate {' '.join(words)}" for page in ("README.md", "docs/tutorial.md") for words in scenario(page)}
    for command in commands():
        line = " ".join(command.words)
        if command.in_block and f"quorate {line}" not in scenarios:
            assert line in (*ALONE, *LONG) or any(line.startswith(begin) for begin in ELSEWHERE), line


@pytest.mark.slow
@pytest.mark.parametrize("line", ALONE)
def test_it_runs(line: str, tmp_path: Path) -> None:
    succeed(f"quorate {line}", tmp_path, ENVIRONMENT)


@pytest.mark.soak
@pytest.mark.parametrize("line", LONG)
def test_it_runs_for_long(line: str, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    succeed(f"quorate {line}", tmp_path, ENVIRONMENT, timeout_s=900)


# ------------------------------------------------------------ a page's commands in their order, against one coordinator


def scenario(page: str) -> list[tuple[str, ...]]:
    """The commands of a page's blocks, as words, without those that belong to other stories of the page."""
    others = ("datacenter", "serve --data", "authority")
    return [
        command.words
        for command in commands()
        if command.page == page and command.in_block and not " ".join(command.words).startswith(others)
    ]


@contextmanager
def served(folder: Path) -> Iterator[dict[str, str]]:
    """``quorate serve --dev-authority`` in this folder; the environment for the other commands. On another port than
    the page's, for several tests run at once."""
    environment = {**ENVIRONMENT, "XDG_STATE_HOME": str(folder / "state")}
    with subprocess.Popen(
        [BIN / "quorate", "serve", "--dev-authority"],
        cwd=folder,
        env={**environment, "QUORATE_PORT": "0", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        try:
            printed = ""
            while "--token-file" not in printed and (line := server.stdout.readline()):
                printed += line
            url = re.search(r"http://[\d.:]+", printed)
            file = re.search(r"quorate device --token-file (\S+) --data", printed)
            assert url is not None
            assert file is not None
            assert (folder / file[1]).read_text().startswith("qe1_")
            assert "qe1_" not in printed
            yield {**environment, "QUORATE_URL": url[0]}
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(30)


def succeed(line: str, folder: Path, environment: dict[str, str], *, timeout_s: float = 120) -> str:
    """Run a line of the page in a shell; its output."""
    path = f"{BIN}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        ["sh", "-c", line],
        cwd=folder,
        env={**environment, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    assert done.returncode == 0, f"{line}: {done.stderr}"
    return done.stdout


@contextmanager
def devices(line: str, folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """The devices of a page's loop, in the background."""
    path = f"{BIN}{os.pathsep}{environment['PATH']}"
    with subprocess.Popen(
        ["sh", "-c", f"{line}; wait"],
        cwd=folder,
        env={**environment, "PATH": path},
        stdout=subprocess.DEVNULL,
        process_group=0,
    ) as shell:
        try:
            yield
        finally:
            os.killpg(shell.pid, signal.SIGINT)
            time.sleep(0.5)
            os.killpg(shell.pid, signal.SIGTERM)


def lines(page: str, *containing: str) -> list[str]:
    """The lines of the page's blocks that have one of these words."""
    found = lines_of_blocks((ROOT / page).read_text("utf-8"))
    return [line for line in found if any(word in line for word in containing)]


@on_day(2, of=4)
def test_the_tutorial_works_as_it_stands(tmp_path: Path) -> None:
    page = "docs/tutorial.md"
    for file in (ROOT / "examples" / "wine").iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    succeed(lines(page, "make_data.py")[0], tmp_path, ENVIRONMENT)
    loop, secure_loop = lines(page, "quorate device --data")
    scored, secure_scored = lines(page, "quorate evaluate")
    created, secure_created = lines(page, "quorate run create")
    *looks, secure_rounds = lines(page, "quorate rounds", "quorate checkpoint", "quorate device history")
    with served(tmp_path) as environment:
        succeed(created, tmp_path, environment)
        with devices(loop, tmp_path, environment):
            scores = succeed(scored, tmp_path, environment)
        assert "wine is finished: reached 10 rounds." in scores
        assert float(re.findall(r"version 10: .*accuracy (0\.\d+)", scores)[0]) > 0.8
        for line in looks:
            assert succeed(line, tmp_path, environment)
        succeed(secure_created, tmp_path, environment)
        with devices(secure_loop, tmp_path, environment):
            scores = succeed(secure_scored, tmp_path, environment)
        assert "wine-secure is finished: reached 5 rounds." in scores
        assert float(re.findall(r"version 5: .*accuracy (0\.\d+)", scores)[0]) > 0.8
        assert "it could see no single update" in succeed(secure_rounds, tmp_path, environment)
    assert (tmp_path / "wine.safetensors").exists()
    succeed("quorate verify quorate-data", tmp_path, ENVIRONMENT)


@pytest.mark.slow
@pytest.mark.service
def test_the_readme_works_as_it_stands(tmp_path: Path) -> None:
    try:
        load("mnist")
    except DataUnavailable as error:
        pytest.skip(str(error))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    with served(tmp_path) as environment:
        succeed(lines("README.md", "quorate run create")[0], tmp_path, environment)
        with devices(lines("README.md", "quorate device --data")[0], tmp_path, environment):
            shown = succeed(lines("README.md", "quorate status;")[0], tmp_path, environment)
        assert "mnist is finished: reached 5 rounds." in shown
        succeed(lines("README.md", "quorate checkpoint")[0], tmp_path, environment)
    assert (tmp_path / "model.safetensors").exists()


def test_pages_name_no_folder_of_this_machine() -> None:
    for page in PAGES:
        assert str(ROOT) not in page.read_text("utf-8")


MAKES = ("--folder", "--out", "-o", "--checkpoints", "new")
"""What stands before the name of a file or folder that a command makes."""


def test_git_ignores_what_the_pages_commands_make() -> None:
    """But for the tutorial, whose project lies elsewhere, and for paths that begin with a slash."""
    made = {
        after
        for command in commands()
        if command.page != "docs/tutorial.md"
        for word, after in pairwise(command.words)
        if word in MAKES and not after.startswith("/")
    }
    for command in commands():  # and the folders that they make by default
        values = parsed(command) if command.in_block and command.page != "docs/tutorial.md" else {}
        folder = values["joining"].folder if "joining" in values else values.get("folder")
        made |= {str(folder)} if folder is not None and not str(folder).startswith("/") else set()
    assert {"run", "steps", "device-1", "credit-risk", "quorate-worker"} <= made
    names = [name if "." in name else f"{name}/" for name in [*made, "quorate-data", "plan.schema.json"]]
    ran = subprocess.run(
        ["git", "check-ignore", "--no-index", *names], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert sorted(ran.stdout.split()) == sorted(names)
