"""scripts/kubernetes/rayjob.yaml is valid for KubeRay, and its command and nodes fit each other."""

import copy
import re
import shlex
from pathlib import Path

import pytest
import yaml

from sa1bpack.cli.arguments import parse
from sa1bpack.packing.estimate import memory_bytes

MANIFEST = Path(__file__).parents[1] / "scripts" / "kubernetes" / "rayjob.yaml"

# From the CustomResourceDefinition rayjobs.ray.io of KubeRay, version v1: of each field that the
# manifest may use its type, a `*` at the names of those that are required. Integers are int32.
QUANTITY = re.compile(
    r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+))?"
)
QUANTITIES = {"cpu": QUANTITY, "memory": QUANTITY, "nvidia.com/gpu": QUANTITY}
TEXTS = {str: str}  # any names, texts as values
POD = {
    "metadata": {"labels": TEXTS, "annotations": TEXTS},
    "spec": {
        "containers*": [{
            "name*": str, "image": str, "imagePullPolicy": str, "command": [str], "args": [str],
            "env": [{"name*": str, "value": str}],
            "resources": {"limits": QUANTITIES, "requests": QUANTITIES},
            "volumeMounts": [{"name*": str, "mountPath*": str, "subPath": str, "readOnly": bool}],
        }],
        "volumes": [{
            "name*": str,
            "persistentVolumeClaim": {"claimName*": str, "readOnly": bool},
            "nfs": {"server*": str, "path*": str, "readOnly": bool},
            "emptyDir": {"medium": str, "sizeLimit": QUANTITY},
        }],
        "nodeSelector": TEXTS,
        "restartPolicy": str,
        "terminationGracePeriodSeconds": int,
    },
}  # fmt: skip
RAY_JOB = {
    "apiVersion*": "ray.io/v1",
    "kind*": "RayJob",
    "metadata*": {"name*": str, "namespace": str, "labels": TEXTS},
    "spec*": {
        "entrypoint*": str,  # the operator demands it, though the definition does not
        "submissionMode": str,
        "backoffLimit": int,
        "activeDeadlineSeconds": int,
        "shutdownAfterJobFinishes": bool,
        "ttlSecondsAfterFinished": int,
        "suspend": bool,
        "runtimeEnvYAML": str,
        "rayClusterSpec*": {
            "rayVersion": str,
            "headGroupSpec*": {"rayStartParams": TEXTS, "serviceType": str, "template*": POD},
            "workerGroupSpecs": [{
                "groupName*": str, "replicas": int, "minReplicas*": int, "maxReplicas*": int,
                "rayStartParams": TEXTS, "template*": POD,
            }],
        },
    },
}  # fmt: skip


def faults(found, schema, where: str = "") -> list[str]:
    """The places at which a value differs from a schema like RAY_JOB."""
    match schema:
        case dict() if not isinstance(found, dict):
            return [where]
        case dict() if str in schema:
            wrong = [name for name, each in found.items() if not isinstance(each, schema[str])]
            return [f"{where}.{name}" for name in wrong]
        case dict():
            fields = {name.removesuffix("*"): each for name, each in schema.items()}
            bad = [f"{where}.{name}" for name in found.keys() - fields.keys()]
            bad += [f"{where}.{n[:-1]}" for n in schema if n.endswith("*") and n[:-1] not in found]
            for name in found.keys() & fields.keys():
                bad += faults(found[name], fields[name], f"{where}.{name}")
            return bad
        case [each]:
            if not isinstance(found, list):
                return [where]
            return [
                bad for k, item in enumerate(found) for bad in faults(item, each, f"{where}[{k}]")
            ]
        case re.Pattern():
            whole = isinstance(found, int) and not isinstance(found, bool)
            return [] if whole or (isinstance(found, str) and schema.fullmatch(found)) else [where]
        case str():
            return [] if found == schema else [where]
        case _ if schema is int:
            return [] if type(found) is int and abs(found) < 2**31 else [where]
        case _:
            return [] if isinstance(found, schema) else [where]


@pytest.fixture(scope="module")
def manifest() -> dict:
    return yaml.safe_load(MANIFEST.read_text())


def test_the_manifest_is_valid(manifest):
    assert faults(manifest, RAY_JOB) == []


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("spec.entryPoint", "x", ".spec.entryPoint"),
        ("spec.backoffLimit", "3", ".spec.backoffLimit"),
        ("spec.shutdownAfterJobFinishes", 1, ".spec.shutdownAfterJobFinishes"),
        ("apiVersion", "ray.io/v1alpha1", ".apiVersion"),
        ("spec.rayClusterSpec.headGroupSpec.rayStartParams.num-cpus", 0,
         ".spec.rayClusterSpec.headGroupSpec.rayStartParams.num-cpus"),
        ("spec.rayClusterSpec.workerGroupSpecs", {}, ".spec.rayClusterSpec.workerGroupSpecs"),
        ("spec.rayClusterSpec.headGroupSpec.template", {"spec": {}},
         ".spec.rayClusterSpec.headGroupSpec.template.spec.containers"),
    ],
)  # fmt: skip
def test_the_check_finds_what_kubernetes_would_refuse(manifest, path, value, fault):
    changed = copy.deepcopy(manifest)
    *parents, last = path.split(".", path.count("."))
    at = changed
    for name in parents:
        at = at[name]
    at[last] = value
    assert faults(changed, RAY_JOB) == [fault]


def test_the_command_is_one_that_a_node_can_take_a_task_of(manifest):
    program, *arguments = shlex.split(manifest["spec"]["entrypoint"])
    given = parse(arguments)
    assert (program, given.engine) == ("sa1bpack", "ray")
    (group,) = manifest["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    (container,) = group["template"]["spec"]["containers"]
    limits = container["resources"]["limits"]
    assert limits == container["resources"]["requests"]
    tasks = int(limits["cpu"]) // given.workers
    # A margin of 30 % for Ray itself, besides what its store takes.
    free = 0.7 * int(limits["memory"].removesuffix("Gi")) * 2**30
    store = int(group["rayStartParams"]["object-store-memory"])
    assert tasks >= 3 and free - store >= tasks * memory_bytes(given.workers, 1)


def test_all_pods_see_the_folders_of_the_command_under_the_same_path(manifest):
    cluster = manifest["spec"]["rayClusterSpec"]
    pods = [group["template"]["spec"]
            for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]  # fmt: skip
    for pod in pods:
        assert pod["volumes"] == pods[0]["volumes"]
        for container in pod["containers"]:
            assert container["volumeMounts"] == [{"name": "data", "mountPath": "/data"}]
            assert container["image"] == pods[0]["containers"][0]["image"]
    given = parse(shlex.split(manifest["spec"]["entrypoint"])[1:])
    assert all(path.startswith("/data/") for path in (*given.sources, given.out))
