"""The templates in ``deploy/``: scripts run with a pretended SLURM, files are parsed, and all
command lines are held against the real commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.command_lines import options_of

DEPLOY = Path(__file__).parents[2] / "deploy"
SCRIPTS = sorted(DEPLOY.glob("*.sh"))
JOB = {
    "SLURM_JOB_NODELIST": "gpu[7-9]",
    "SLURM_JOB_ID": "123456",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_JOB_NAME": "mine",
    "SLURM_GPUS_PER_NODE": "4",
    "SLURM_CPUS_PER_TASK": "16",
}
REPORT = 'import json, os, sys\nprint(json.dumps({"words": sys.argv[1:], "env": dict(os.environ)}))'
EACH_MACHINE = """
import os, subprocess, sys
words = sys.argv[1:]
assert words.pop(0) == "--kill-on-bad-exit=1", words
for machine in range(3):
    subprocess.run(words, env={**os.environ, "SLURM_NODEID": str(machine)}, check=True)
"""
HOSTS = """
import sys
assert sys.argv[1:] == ["show", "hostnames", "gpu[7-9]"]
for number in range(7, 50_000):  # more than a pipe holds: whoever reads only the first line kills the writer
    print(f"gpu{number}")
"""
AGENT = (
    REPORT
    + """
import pathlib
died = pathlib.Path(os.environ["SLURM_SUBMIT_DIR"], "died-" + os.environ["SLURM_NODEID"])
if not died.exists():
    died.touch()
    sys.exit(int(os.environ.get("ENDS_WITH", "137")))
"""
)


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Runs a script under a pretended SLURM; what its commands reported."""

    def program(name: str, source: str) -> None:
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!{sys.executable}\n{source}\n")
        path.chmod(0o755)

    def run(script: str, srun: str = REPORT, code: int = 0, **more: str) -> list[dict[str, Any]]:
        program("scontrol", HOSTS)
        program("srun", srun)
        program("quorate", AGENT)
        program("sleep", "")
        env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(tmp_path), **JOB, **more}
        done = subprocess.run(["bash", str(DEPLOY / script)], env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


def after(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


@pytest.mark.parametrize(("granted", "gpus", "threads"), [("4", "4", 4), ("a100:4", "4", 4), ("a100:2,v100:6", "8", 2)])
def test_a_training_under_slurm(run: Any, granted: str, gpus: str, threads: int) -> None:
    (srun,) = run("slurm.sh", SLURM_GPUS_PER_NODE=granted)
    words = srun["words"]
    assert srun["env"]["SRUN_CPUS_PER_TASK"] == "16", "srun does not take --cpus-per-task from sbatch since 22.05"
    assert words[:2] == ["--kill-on-bad-exit=1", "torchrun"]
    assert (after(words, "--nproc-per-node"), after(words, "--nnodes")) == (gpus, "3")
    assert after(words, "--rdzv-endpoint") == "gpu7:29956"
    train = options_of(words[words.index("client_sdk.cli") + 1 :])
    assert (train["batch_size"], train["threads"], train["resume"]) == (2048, threads, True)


def test_a_worker_under_slurm_leads_on_the_first_machine_and_starts_killed_agents_again(run: Any) -> None:
    token = {"COORDINATOR": "https://c:8470", "QUORATE_ENROLMENT_TOKEN": "secret"}
    agents = run("slurm-worker.sh", EACH_MACHINE, SLURM_GPUS_PER_NODE="a100:4", **token)
    assert [agent["env"]["SLURM_NODEID"] for agent in agents] == ["0", "0", "1", "1", "2", "2"], "each was killed once"
    assert all("secret" not in agent["words"] for agent in agents), "a command line is seen by all users"
    join, *follow = [options_of(agent["words"]) for agent in agents[1::2]]
    assert agents[0]["words"][:2] == ["datacenter", "join"]
    assert (join["nnodes"], join["rdzv_endpoint"], join["coordinator"]) == (3, "gpu7:29956", "https://c:8470")
    assert [options["node"] for options in follow] == [1, 2]
    for options in follow:
        for name in ("folder", "data", "nproc", "threads", "device", "lost_s"):
            assert options[name] == join[name], name


def test_a_worker_that_ends_with_an_error_is_not_started_again_and_ends_the_job(run: Any) -> None:
    token = {"COORDINATOR": "https://c:8470", "QUORATE_ENROLMENT_TOKEN": "not valid"}
    assert len(run("slurm-worker.sh", EACH_MACHINE, code=1, ENDS_WITH="1", **token)) == 1


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def test_both_kubeflow_jobs_train_alike() -> None:
    runtime, job = documents("trainjob.yaml")
    (legacy,) = documents("pytorchjob.yaml")
    assert {runtime["apiVersion"], job["apiVersion"]} == {"trainer.kubeflow.org/v1alpha1"}
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert (job["spec"]["runtimeRef"]["kind"], runtime["kind"]) == ("TrainingRuntime", "TrainingRuntime")
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert node["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    pods = [node["template"]["spec"]["template"]["spec"]]
    pods += [legacy["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]]
    for pod in pods:
        mounted = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
    trainings = []
    for command in (job["spec"]["trainer"]["command"], pods[1]["containers"][0]["command"]):
        assert command[0] == "torchrun"
        trainings.append(options_of(command[command.index("client_sdk.cli") + 1 :]))
    assert trainings[0] == trainings[1]
    assert (
        job["spec"]["trainer"]["numProcPerNode"]
        == 4
        == job["spec"]["trainer"]["resourcesPerNode"]["limits"]["nvidia.com/gpu"]
    )


def test_a_worker_on_kubernetes_leads_in_pod_0(tmp_path: Path) -> None:
    service, pods = documents("worker.yaml")
    agent = pods["spec"]["template"]["spec"]["containers"][0]
    (tmp_path / "quorate").write_text(f"#!{sys.executable}\n{REPORT}\n")
    (tmp_path / "quorate").chmod(0o755)
    token = {
        "COORDINATOR": "https://c:8470",
        "QUORATE_ENROLMENT_TOKEN": "secret",
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }
    assert {entry["name"] for entry in agent["env"]} >= {"COORDINATOR", "QUORATE_ENROLMENT_TOKEN", "MACHINE"}
    found = []
    for machine in range(pods["spec"]["replicas"]):
        done = subprocess.run(agent["command"], env={**token, "MACHINE": str(machine)}, capture_output=True, text=True)
        found.append(options_of(json.loads(done.stdout)["words"]))
    join, follow = found
    name, inside = service["metadata"]["name"], pods["metadata"]["name"]
    assert join["rdzv_endpoint"] == f"{inside}-0.{name}:{service['spec']['ports'][0]['port']}"
    assert (join["nnodes"], follow["node"], pods["spec"]["serviceName"]) == (pods["spec"]["replicas"], 1, name)
    for option in ("folder", "data", "nproc", "threads", "device"):
        assert follow[option] == join[option]


@pytest.mark.slow
@pytest.mark.datacenter
def test_torchrun_takes_its_part_of_the_command_lines(run: Any) -> None:
    from torch.distributed.run import get_args_parser

    _, job = documents("trainjob.yaml")
    (legacy,) = documents("pytorchjob.yaml")
    pod = legacy["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    for words in (run("slurm.sh")[0]["words"][1:], job["spec"]["trainer"]["command"], pod["containers"][0]["command"]):
        found = get_args_parser().parse_args(words[1:])
        assert (found.module, found.training_script, found.training_script_args[1]) == (True, "client_sdk.cli", "train")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_scripts_hold_no_usual_mistake(script: Path) -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([shellcheck, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
