"""The real Kueue beside a cluster of ``kubernetes.py``: its controllers and webhooks, a process of this host.

`build` makes it from Go's modules, once; what it has an API server know is taken from there, too.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.clusters import kubernetes
from tests.clusters.kubernetes import CACHE, START_S, KubernetesCluster, build_once, go
from tests.clusters.processes import ClusterError, free_ports, wait

MODULE, VERSION = "sigs.k8s.io/kueue", "v0.17.0"
SUM = "h1:7hzb38M4eKGzYW+CFv2s1L+swzzacUCHOCXxZmAV90I="
"""Go's, of that version."""
COMMAND = "./cmd/kueue"
MANIFESTS = {"crds": "config/components/crd", "webhooks": "config/components/webhook"}
HOST = "127.0.0.1"
CERTIFICATES = "etc/kueue/metrics/certs"
"""Where it looks for those of its metrics, whatever it is told."""
WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")


def program() -> Path:
    """Where `build` puts it, and beside it the manifests."""
    return CACHE / f"kueue-{VERSION}" / "kueue"


def fetch() -> None:
    """Gets Go's modules: all that the building takes from elsewhere."""
    go(_source(), "list", "-deps", COMMAND)


def build() -> Path:
    """Takes some three minutes on two cores, after Kubernetes' own; nothing, if it was done before."""
    if not program().exists():
        kubectl, source = kubernetes.build(), _source()
        program().parent.mkdir(parents=True, exist_ok=True)
        for name, folder in MANIFESTS.items():
            with _manifests(name).open("w") as made:
                subprocess.run([kubectl, "kubectl", "kustomize", source / folder], check=True, stdout=made)
        build_once(program(), source, COMMAND)
    return program()


def _source() -> Path:
    """Its module, as Go keeps it, with the versions of all else that its makers have built it with."""
    with tempfile.TemporaryDirectory() as nowhere:
        known = json.loads(go(Path(nowhere), "mod", "download", "-json", f"{MODULE}@{VERSION}"))
    if known["Sum"] != SUM:
        raise ClusterError(f"{MODULE} {VERSION} is not what it was: {known['Sum']}")
    return Path(known["Dir"])


def _manifests(name: str) -> Path:
    return program().with_name(f"{name}.yaml")


def require() -> None:
    """As ``kubernetes.require``."""
    import pytest  # what builds it needs no more than Python

    is_required = bool(os.environ.get("ELASTICFLOW_REQUIRE_KUBERNETES"))
    if is_required:
        build()
    if not program().exists():
        pytest.skip("Kueue is not built here: .ci/kubernetes does that")


class Kueue:
    """Runs while it is a context manager. Pods and Jobs that name one of its queues wait for it; nothing else
    does. There it is left with no webhook."""

    def __init__(self, cluster: KubernetesCluster) -> None:
        self._cluster, self._home = cluster, cluster.folder / "kueue"
        self._port, self._health = free_ports(2)

    def __enter__(self) -> Kueue:
        self._write_files()
        self._cluster.kubectl("create", "namespace", "kueue-system", check=False)
        self._apply("crds")
        self.start()
        self._apply("webhooks")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for kind_ in WEBHOOKS:  # nobody would answer, and no Pod could be made
            self._cluster.kubectl("delete", kind_, "--all")
        self.kill()
        shutil.rmtree(self._home)

    def start(self) -> None:
        """Returns when it answers. Its certificates have one place: so it has a root of its own."""
        root = ("chroot", self._home, "/kueue", "--config=/config.json", "--kubeconfig=/kubeconfig")
        self._cluster.spawn("kueue", *root)
        wait(self._answers, "Kueue answers", START_S, self._cluster.story)

    def kill(self) -> None:
        """With SIGKILL."""
        self._cluster.kill("kueue")

    def _answers(self) -> bool:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://{HOST}:{self._health}/readyz", timeout=2) as answer,
        ):
            return bool(answer.status == 200)
        return False

    def _write_files(self) -> None:
        certificates = self._home / CERTIFICATES
        certificates.mkdir(parents=True)
        new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=kueue", "-days", "2"]
        new += ["-addext", f"subjectAltName=IP:{HOST}"]
        files = ["-keyout", certificates / "tls.key", "-out", certificates / "tls.crt"]
        subprocess.run([*new, *files], check=True, capture_output=True)
        self._authority = _base64(certificates / "tls.crt")
        shutil.copy(program(), self._home)
        access = json.loads(self._cluster.kubeconfig.read_text())
        server = access["clusters"][0]["cluster"]
        server["certificate-authority-data"] = _base64(Path(server.pop("certificate-authority")))
        config = {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": "kueue-system",
            "health": {"healthProbeBindAddress": f"{HOST}:{self._health}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": HOST, "port": self._port, "certDir": f"/{CERTIFICATES}"},
            "internalCertManagement": {"enable": False},
            "leaderElection": {"leaderElect": False},
            "featureGates": {"VisibilityOnDemand": False},
            "integrations": {"frameworks": ["batch/job", "pod"]},
        }
        for name, whole in (("kubeconfig", access), ("config.json", config)):
            (self._home / name).touch(mode=0o600)
            (self._home / name).write_text(json.dumps(whole))

    def _apply(self, name: str) -> None:
        import yaml

        things = [thing for thing in yaml.safe_load_all(_manifests(name).read_text()) if thing]
        things = [self._reached(thing) for thing in things if thing["kind"] != "Service"]
        whole = json.dumps({"apiVersion": "v1", "kind": "List", "items": things})
        self._cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=whole)
        if crds := [thing["metadata"]["name"] for thing in things if thing["kind"].startswith("Custom")]:
            self._cluster.wait_for_kinds(*crds)

    def _reached(self, thing: Any) -> Any:
        """It is no service of the cluster: its webhooks have an address on this machine."""
        if isinstance(thing, list):
            return [self._reached(each) for each in thing]
        if not isinstance(thing, dict):
            return thing
        if isinstance(service := thing.get("service"), dict) and "path" in service:
            return {"url": f"https://{HOST}:{self._port}{service['path']}", "caBundle": self._authority}
        return {name: self._reached(each) for name, each in thing.items()}


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Kueue, for tests with a Kubernetes on this machine.")
    parser.add_argument("command", choices=("fetch", "build"))
    (fetch if parser.parse_args(argv).command == "fetch" else build)()


if __name__ == "__main__":
    sys.exit(main())
