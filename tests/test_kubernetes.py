"""scripts/kubernetes/rayjob.yaml: its command and nodes fit each other."""

import shlex
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

MANIFEST = Path(__file__).parents[1] / "scripts" / "kubernetes" / "rayjob.yaml"


@pytest.fixture(scope="module")
def spec() -> dict:
    found = yaml.safe_load(MANIFEST.read_text())
    assert (found["apiVersion"], found["kind"]) == ("ray.io/v1", "RayJob")
    return found["spec"]


def test_the_command_is_one_that_a_node_can_take_a_task_of(spec):
    """That it parses at all is in tests/test_docs.py."""
    words = shlex.split(spec["entrypoint"])
    given = dict(pairwise(words))
    assert words[:2] == ["sa1bpack", "pack"] and given["--engine"] == "ray"
    workers = int(given["--workers"])
    (group,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    (container,) = group["template"]["spec"]["containers"]
    limits = container["resources"]["limits"]
    assert limits == container["resources"]["requests"]
    tasks = int(limits["cpu"]) // workers
    # A margin of 30 % for Ray itself, besides what its store takes.
    free = 0.7 * int(limits["memory"].removesuffix("Gi")) * 2**30
    store = int(group["rayStartParams"]["object-store-memory"])
    needed = 550e6 + workers * 140e6  # of a run that reads one tar, see docs/packing.md
    assert tasks >= 3 and free - store >= tasks * needed


def test_all_pods_see_the_folders_of_the_command_under_the_same_path(spec):
    cluster = spec["rayClusterSpec"]
    pods = [group["template"]["spec"]
            for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]  # fmt: skip
    for pod in pods:
        assert pod["volumes"] == pods[0]["volumes"]
        for container in pod["containers"]:
            assert container["volumeMounts"] == [{"name": "data", "mountPath": "/data"}]
            assert container["image"] == pods[0]["containers"][0]["image"]
    words = shlex.split(spec["entrypoint"])
    for path in (words[2], words[words.index("--output") + 1]):
        assert path.startswith("/data/")
