# SPDX-License-Identifier: Apache-2.0
"""The variables of Slurm and Kubernetes are enough: set by hand, around real ranks; manifests by their schemas."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from hopsum_topologies.free_port import free_port

from ...support.printed import parse_printed
from .embedded import EXAMPLES
from .job import RANKS_S

pytestmark = pytest.mark.system
CONTRIB = Path(__file__).resolve().parents[3] / "contrib" / "training"
JOBSET = CONTRIB / "jobset.yaml"
TRAINING = [str(EXAMPLES / "ddp_digits.py"), "--steps", "20"]
FROM_OUTSIDE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")

SRUN = """#!{python}
import os, subprocess, sys
tasks = [subprocess.Popen(sys.argv[2:], env={{**os.environ, "SLURM_NTASKS": "2", "SLURM_PROCID": str(task),
                                             "SLURM_LOCALID": "0"}}) for task in range(2)]
assert sys.argv[1] == "--kill-on-bad-exit=1"
sys.exit(max(task.wait() for task in tasks))
"""
SCONTROL = """#!/bin/sh
test "$*" = "show hostnames node[1-2]" && printf 'localhost\\nelsewhere\\n'
"""


def clean_environment(**more: str) -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if name not in FROM_OUTSIDE and "HOPSUM" not in name}
    return {**kept, "OMP_NUM_THREADS": "1", **more}


def require_equal(printed: str, ranks: int) -> None:
    figures: list[dict[str, Any]] = parse_printed(printed)
    assert len(figures) == ranks
    assert len({each["parameters_sha256"] for each in figures}) == 1
    assert all(each["allreduces"] >= 20 for each in figures)


def test_slurms_script_starts_the_ranks(tmp_path: Path) -> None:
    """srun and scontrol are made up: they set what Slurm's manual says. The script and the ranks are real."""
    python = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
    for name, text in (("srun", SRUN.format(python=sys.executable)), ("scontrol", SCONTROL), ("python", python)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = clean_environment(
        PATH=f"{tmp_path}:{os.environ['PATH']}",
        SLURM_JOB_NODELIST="node[1-2]",
        SLURM_JOB_ID="77",
        MASTER_PORT=str(free_port(socket.SOCK_STREAM)),
    )
    command = ["bash", str(CONTRIB / "train.sbatch"), *TRAINING]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=RANKS_S, env=environment)
    assert done.returncode == 0, done.stderr
    require_equal(done.stdout, 2)


def jobset() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    document: dict[str, Any] = yaml.safe_load(JOBSET.read_text())
    return document


def variables(index: int, place: str, ip: str) -> dict[str, str]:
    """Return what the pod of an index has in its environment."""
    (workers,) = jobset()["spec"]["replicatedJobs"]
    (container,) = workers["template"]["spec"]["template"]["spec"]["containers"]
    fields = {"metadata.annotations['batch.kubernetes.io/job-completion-index']": str(index), "status.podIP": ip}
    found = {}
    for each in container["env"]:
        found[each["name"]] = each["value"] if "value" in each else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
    name = jobset()["metadata"]["name"]
    assert found["MASTER_ADDR"] == f"{name}-{workers['name']}-0-0.{name}", "JobSet's name of the first pod"
    assert int(found["WORLD_SIZE"]) == workers["template"]["spec"]["completions"]
    return {**found, "MASTER_ADDR": place}


def test_the_pods_variables_are_enough() -> None:
    """Two pods of the manifest, as processes; Kubernetes also sets variables for Services."""
    port = str(free_port(socket.SOCK_STREAM))
    links = {"HOPSUM_CONTROLLER_SERVICE_HOST": "10.96.0.7", "HOPSUM_CONTROLLER_PORT": "tcp://10.96.0.7:9600"}
    pods = []
    try:
        for index in range(2):
            own = {**variables(index, "127.0.0.1", "127.0.0.1"), "MASTER_PORT": port, "WORLD_SIZE": "2", **links}
            command = [sys.executable, *TRAINING]
            pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            pods.append(subprocess.Popen(command, env=clean_environment(**own), **pipes))
        told = [pod.communicate(timeout=RANKS_S) for pod in pods]
    finally:
        for pod in pods:
            pod.kill()
    for pod, (_, errors) in zip(pods, told, strict=True):
        assert pod.returncode == 0, errors
    require_equal(told[0][0], 2)


def pod_job(document: dict[str, Any]) -> dict[str, Any]:
    """Return the Job that JobSet makes of its template."""
    (workers,) = document["spec"]["replicatedJobs"]
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "workers"}, **workers["template"]}


def test_the_pods_are_of_kubernetes_schema() -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    kubernetes_validate.validate(pod_job(jobset()), "1.31", strict=True)
    wrong = pod_job(jobset())
    wrong["spec"]["completionsMode"] = wrong["spec"].pop("completionMode")
    with pytest.raises(kubernetes_validate.ValidationError, match="completionsMode"):
        kubernetes_validate.validate(wrong, "1.31", strict=True)


def test_the_manifest_is_a_jobset() -> None:
    """By the models that Kubeflow's Trainer publishes: they drop what JobSet does not know."""
    reason = "kubeflow-trainer-api is not installed"
    model = pytest.importorskip("kubeflow_trainer_api.models.jobset_v1alpha2_job_set", reason=reason)
    read = model.JobsetV1alpha2JobSet.from_dict
    assert read(jobset()).to_dict() == jobset()
    wrong = jobset()
    wrong["spec"]["failurePolicy"]["maxRestart"] = wrong["spec"]["failurePolicy"].pop("maxRestarts")
    assert read(wrong).to_dict() != wrong
