"""A real Kubernetes on this machine: etcd, the control plane, and two nodes, each kubelet and containerd.

`KubernetesCluster` is for tests, `python -m tests.clusters.kubernetes up` for people; `build` makes the one
program that all but containerd is, from Go's modules, once, and `fetch` only gets those. GPUs are numbers
that the nodes are said to have. There is no kube-proxy: this machine has the address of the one service.
Its containers see this machine's own files, as those of Hadoop's and SLURM's nodes do.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import hashlib
import io
import json
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.clusters.processes import ClusterError, environ, free_ports, own_line, pids, tail, wait

SOURCE = Path(__file__).with_name("kube")
CACHE = Path.home() / ".cache" / "elasticflow"
SMALL = "-s -w"
"""For Go's linker: nothing for debuggers."""
FLAGS = f"{SMALL} -X k8s.io/component-base/version.gitVersion=v1.34.3"
"""Which version this is, as of its go.mod, is known to who builds it alone; Kueue asks for it."""
NODES = ("kn1", "kn2")
GPUS_PER_NODE = 2
IMAGE = "docker.io/elasticflow/tests:1"
PROGRAMS = ("containerd", "containerd-shim-runc-v2", "runc", "ctr")
CNI = "/usr/lib/cni"
MARK = "ELASTICFLOW_TEST_KUBERNETES"
"""Set in the environment of every daemon, to the cluster's folder."""
START_S = 60.0
PR_SET_PDEATHSIG = 1
API_SERVER = "10.96.0.1"
"""Of the service by which Pods know it."""
DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins/kubelet.sock")
HIERARCHIES = Path("/sys/fs/cgroup")
SHARED = ("bin", "etc", "home", "lib", "lib64", "opt", "root", "tmp", "usr", Path(__file__).parts[1])
"""Of this machine's folders, as far as they are there: what Pods see of it."""


def program() -> Path:
    """Where `build` puts it: another for other sources."""
    digest = hashlib.sha256(FLAGS.encode())
    for path in sorted(SOURCE.iterdir()):
        digest.update(path.read_bytes())
    return CACHE / f"kubernetes-{digest.hexdigest()[:12]}" / "kube"


def fetch() -> None:
    """Gets Go's modules: all that the building takes from elsewhere. Raises ClusterError, too, where
    nodes could not run in any case."""
    if reason := _refusal():
        raise ClusterError(reason)
    go(SOURCE, "mod", "download")


def build() -> Path:
    """Takes some six minutes on two cores, and 3 GB of Go's own cache; nothing, if it was done before."""
    return build_once(program(), SOURCE, ".", FLAGS)


def build_once(target: Path, source: Path, package: str, flags: str = SMALL) -> Path:
    """A Go program. flags: for its linker. Of several processes one builds, and the others wait."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name("lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            made = target.with_name(f"{target.name}-{os.getpid()}")
            go(source, "build", "-trimpath", "-ldflags", flags, "-o", str(made), package)
            made.rename(target)
    return target


def go(folder: Path, *command: str) -> str:
    """What Go says there. Raises ClusterError."""
    if shutil.which("go") is None:
        raise ClusterError("to build Kubernetes takes a Go compiler, 1.25 or newer: there is no `go` here")
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOWORK": "off"}
    done = subprocess.run(["go", *command], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise ClusterError(f"Kubernetes cannot be built: go {command[0]}: {done.stderr[-2000:]}")
    return done.stdout


def skip_reason() -> str:
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        return f"no {', '.join(missing)} on this machine: .ci/kubernetes installs them"
    if not Path(CNI, "bridge").exists():
        return f"no network plugins in {CNI}: .ci/kubernetes installs them"
    if reason := _refusal():
        return reason
    if not program().exists():
        return "Kubernetes is not built here: .ci/kubernetes does that"
    return ""


def _refusal() -> str:
    """Why this machine has no nodes, whatever is installed."""
    if os.geteuid() != 0:
        return "Kubernetes' nodes need root here"
    made = subprocess.run(["ip", "link", "add", "ef-probe", "type", "bridge"], capture_output=True, text=True)
    subprocess.run(["ip", "link", "delete", "ef-probe"], capture_output=True)
    if made.returncode:
        return f"Kubernetes' nodes need network bridges, which cannot be made here: {made.stderr.strip()}"
    return ""


def require() -> None:
    """Where the tests need one, it is built, or waited for: it may be under way."""
    import pytest  # what builds it needs no more than Python

    is_required = bool(os.environ.get("ELASTICFLOW_REQUIRE_KUBERNETES"))
    if is_required:
        build()
    if reason := skip_reason():
        (pytest.fail if is_required else pytest.skip)(reason)


class KubernetesCluster:
    """One control plane and two nodes; all that it writes is in one folder, which is removed at the end."""

    def __init__(self, gpus_per_node: int = GPUS_PER_NODE) -> None:
        self._gpus_per_node = gpus_per_node
        self.folder = Path(tempfile.mkdtemp(prefix="kubernetes-"))
        self.kubeconfig = self.folder / "kubeconfig"
        self._token = secrets.token_hex(16)
        self._ports = free_ports(2 + len(NODES))
        self._environment = dict(os.environ)
        """Of all daemons: what a test adds to it is not theirs."""
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._has_address = False
        """Whether the API server's address, and so the networks, are this cluster's, and not another's."""

    def __enter__(self) -> KubernetesCluster:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Returns when both nodes are ready, with their GPUs."""
        if reason := skip_reason():
            raise ClusterError(reason)
        try:
            self._write_files()
            self._start_control_plane()
            for number, node in enumerate(NODES):
                self._start_containerd(number, node)
            self._import_image()
            for number, node in enumerate(NODES):
                self.start_kubelet(node, number)
            wait(self._are_ready, "the nodes are ready", START_S, self.story)
            for node in NODES:
                self._give_gpus(node)
            for name, value in (("train", 100), ("serve", 1000)):
                self.apply(
                    {
                        "apiVersion": "scheduling.k8s.io/v1",
                        "kind": "PriorityClass",
                        "metadata": {"name": name},
                        "value": value,
                    }
                )
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends every process of the cluster, and of its containers."""
        for name in [name for name in self._children if name.startswith("kubelet")]:
            self._end(name)
        for node in NODES:
            with contextlib.suppress(ClusterError, subprocess.TimeoutExpired):
                self._kill_containers(node)
        for name in list(self._children):
            self._end(name)
        self._kill_rest()
        if self._has_address:
            for node in NODES:
                subprocess.run(["ip", "link", "delete", f"ef-{node}"], capture_output=True)
            subprocess.run(["ip", "address", "delete", f"{API_SERVER}/32", "dev", "lo"], capture_output=True)
        self._unmount()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _kill_rest(self) -> None:
        """Shims, and what runs under them: they were started with the mark, or below the folder."""
        mine = f"{MARK}={self.folder}"
        for pid in pids():
            if pid not in own_line() and mine in environ(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _unmount(self) -> None:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        for line in reversed(mounts):
            if (place := line.split()[1]).startswith(f"{self.folder}/"):
                subprocess.run(["umount", "--lazy", place], capture_output=True)

    # --- what tests ask ---------------------------------------------------------------------------

    def kubectl(self, *command: str, stdin: str = "", check: bool = True, timeout_s: float = 60.0) -> str:
        done = subprocess.run(
            [program(), "kubectl", "--kubeconfig", self.kubeconfig, *command],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        if check and done.returncode:
            raise ClusterError(f"kubectl {' '.join(command)}: {(done.stderr + done.stdout).strip()}")
        return done.stdout

    def kubeconfig_of(self, account: str, path: Path) -> Path:
        """Writes there how a service account comes in."""
        config = json.loads(self.kubeconfig.read_text())
        config["users"][0]["user"]["token"] = self.kubectl("create", "token", account).strip()
        path.touch(mode=0o600)
        path.write_text(json.dumps(config))
        return path

    def apply(self, thing: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", stdin=json.dumps(thing))

    def pods(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", "pods", "-o", "json"))["items"]
        return found

    def wait_until(self, is_so: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
        wait(is_so, what, timeout_s, self.story, every_s=0.1)

    def wait_for_kinds(self, *crds: str) -> None:
        """Until these can be made. (``kubectl wait`` fails for a kind that has no conditions yet.)"""

        def are_served() -> bool:
            found = json.loads(self.kubectl("get", "crd", *crds, "--output=json"))
            kinds = found["items"] if found["kind"] == "List" else [found]
            known = [each for kind in kinds for each in kind.get("status", {}).get("conditions") or ()]
            return len(crds) == sum(
                each["type"] == "Established" and each["status"] == "True" for each in known
            )

        self.wait_until(are_served, "its new kinds are known")

    def clear(self) -> None:
        """No Pods; every node takes some."""
        self.kubectl("delete", "jobs", "--all", "--wait=false", check=False)
        self.kubectl("delete", "pods", "--all", "--force", "--grace-period=0", check=False)
        for node in NODES:
            self.kubectl("uncordon", node, check=False)
        self.wait_until(lambda: not self.pods(), "no Pod is left")

    # --- faults -----------------------------------------------------------------------------------

    def kill(self, name: str) -> None:
        """With SIGKILL: apiserver, scheduler, controller-manager, kubelet-NODE, containerd-NODE."""
        self._children[name].kill()
        self._children.pop(name).wait()

    def lose(self, node: str) -> None:
        """Its containers are killed, and nobody says so: its kubelet was before them."""
        self.kill(f"kubelet-{node}")
        self._kill_containers(node)

    def _kill_containers(self, node: str) -> None:
        for container in self._ctr(node, "containers", "list", "--quiet").split():
            self._ctr(node, "tasks", "kill", "--signal", "SIGKILL", "--all", container, check=False)

    # --- starting ---------------------------------------------------------------------------------

    def spawn(self, name: str, *command: str | Path) -> None:
        log = self.folder / f"{name}.log"
        with log.open("ab") as output:
            self._children[name] = subprocess.Popen(
                command,
                env={**self._environment, MARK: str(self.folder)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_end_with_tests,
            )

    def _end(self, name: str) -> None:
        child = self._children.pop(name)
        child.terminate()
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    @property
    def _server(self) -> str:
        return f"https://{API_SERVER}"

    def _write_files(self) -> None:
        authority = f"{self.folder}/certificates/apiserver.crt"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "tests", "cluster": {"server": self._server, "certificate-authority": authority}}
            ],
            "users": [{"name": "admin", "user": {"token": self._token}}],
            "contexts": [
                {"name": "tests", "context": {"cluster": "tests", "user": "admin", "namespace": "default"}}
            ],
            "current-context": "tests",
        }
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(json.dumps(config))
        tokens = self.folder / "tokens.csv"
        tokens.touch(mode=0o600)
        tokens.write_text(f"{self._token},admin,1,system:masters\n")
        key = self.folder / "accounts.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        _image(self.folder / "image.tar")

    def _start_control_plane(self) -> None:
        client, peer = self._ports[:2]
        self.spawn(
            "etcd",
            program(),
            "etcd",
            f"--data-dir={self.folder}/etcd",
            f"--listen-client-urls=http://127.0.0.1:{client}",
            f"--advertise-client-urls=http://127.0.0.1:{client}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster=default=http://127.0.0.1:{peer}",
            "--unsafe-no-fsync",
        )
        self.start_apiserver()
        common = [f"--{name}={self.kubeconfig}" for name in KUBECONFIGS]
        self.spawn("scheduler", program(), "scheduler", *common, "--leader-elect=false", "--secure-port=0")
        self.spawn(
            "controller-manager",
            program(),
            "controller-manager",
            *common,
            "--leader-elect=false",
            "--secure-port=0",
            "--use-service-account-credentials=false",
            f"--service-account-private-key-file={self.folder}/accounts.key",
            f"--root-ca-file={self.folder}/certificates/apiserver.crt",
            "--node-monitor-grace-period=10s",
            "--node-monitor-period=1s",
        )

    def start_apiserver(self) -> None:
        """Returns when it answers. There can be one on this machine at a time."""
        wait(_is_free, f"another cluster on this machine gives back {API_SERVER}", START_S, lambda: "")
        self._has_address = True
        subprocess.run(["ip", "address", "replace", f"{API_SERVER}/32", "dev", "lo"], check=True)
        self.spawn(
            "apiserver",
            program(),
            "apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._ports[0]}",
            f"--service-account-key-file={self.folder}/accounts.key",
            f"--service-account-signing-key-file={self.folder}/accounts.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--authorization-mode=RBAC",
            f"--token-auth-file={self.folder}/tokens.csv",
            "--secure-port=443",
            f"--cert-dir={self.folder}/certificates",
            f"--bind-address={API_SERVER}",
            "--service-cluster-ip-range=10.96.0.0/16",
        )
        wait(self._answers, "the API server answers", START_S, self.story)

    def _answers(self) -> bool:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        request = urllib.request.Request(
            f"{self._server}/readyz", headers={"Authorization": f"Bearer {self._token}"}
        )
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(request, timeout=2, context=context) as answer,
        ):
            return bool(answer.status == 200)
        return False

    def _start_containerd(self, number: int, node: str) -> None:
        home = self.folder / node
        (home / "cni").mkdir(parents=True)
        network = {
            "cniVersion": "0.4.0",
            "name": f"ef-{node}",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": f"ef-{node}",
                    "isGateway": True,
                    "ipMasq": False,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": f"{home}/ipam",
                        "ranges": [[{"subnet": f"10.88.{number}.0/24"}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                },
                {"type": "loopback"},
            ],
        }
        (home / "cni" / "10.conflist").write_text(json.dumps(network))
        (home / "containerd.toml").write_text(
            f"""version = 2
root = "{home}/root"
state = "{home}/state"
[grpc]
  address = "{home}/containerd.sock"
[ttrpc]
  address = "{home}/containerd.sock.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{IMAGE}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  stream_server_port = "0"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI}"
    conf_dir = "{home}/cni"
"""
        )
        self.spawn(f"containerd-{node}", "containerd", "--config", home / "containerd.toml")
        socket = home / "containerd.sock"
        wait(socket.exists, f"containerd of {node} answers", START_S, self.story)

    def _import_image(self) -> None:
        for node in NODES:
            self._ctr(node, "images", "import", str(self.folder / "image.tar"))

    def start_kubelet(self, node: str, number: int | None = None) -> None:
        number = NODES.index(node) if number is None else number
        home = self.folder / node
        for hierarchy in HIERARCHIES.iterdir():
            if not (hierarchy / "cgroup.procs").exists():
                continue
            place = hierarchy / node
            place.mkdir(exist_ok=True)
            for name in ("cpuset.cpus", "cpuset.mems") if hierarchy.name == "cpuset" else ():
                (place / name).write_text((hierarchy / name).read_text())
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{node}",
            "failSwapOn": False,
            "failCgroupV1": False,
            "port": self._ports[2 + number],
            "healthzPort": 0,
            "makeIPTablesUtilChains": False,
            "enforceNodeAllocatable": [],
            "evictionHard": {"memory.available": "1Mi"},
            "containerRuntimeEndpoint": f"unix://{home}/containerd.sock",
            "podLogsDir": f"{home}/pods",
            "localStorageCapacityIsolation": False,
            "resolvConf": "/dev/null",
            "nodeStatusUpdateFrequency": "1s",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
        }
        (home / "kubelet.json").write_text(json.dumps(config))
        before = _bound()
        self.spawn(
            f"kubelet-{node}",
            program(),
            "kubelet",
            f"--config={home}/kubelet.json",
            f"--kubeconfig={self.kubeconfig}",
            f"--root-dir={home}/kubelet",
            f"--cert-dir={home}/certificates",
            f"--hostname-override={node}",
        )
        wait(lambda: _bound() != before, f"kubelet of {node} has its plugins' socket", START_S, self.story)

    def _are_ready(self) -> bool:
        found = self.kubectl("get", "nodes", "--no-headers", check=False).split()
        return found.count("Ready") == len(NODES)

    def _give_gpus(self, node: str) -> None:
        patch = []
        for what in ("capacity", "allocatable"):
            gpus = {"op": "add", "path": f"/status/{what}/nvidia.com~1gpu", "value": str(self._gpus_per_node)}
            # More CPUs than there are, too: tests are about GPUs.
            patch += [gpus, {"op": "replace", "path": f"/status/{what}/cpu", "value": "64"}]
        self.kubectl("patch", "node", node, "--subresource=status", "--type=json", "-p", json.dumps(patch))

    def _ctr(self, node: str, *command: str, check: bool = True) -> str:
        done = subprocess.run(
            ["ctr", "--address", self.folder / node / "containerd.sock", "--namespace", "k8s.io", *command],
            capture_output=True,
            text=True,
            timeout=60,
        )
        if check and done.returncode:
            raise ClusterError(f"ctr {' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def story(self) -> str:
        logs = sorted(self.folder.glob("*.log"))
        return "; ".join(f"{log.stem}: {tail(log)}" for log in logs)


def _is_free() -> bool:
    shown = subprocess.run(["ip", "-brief", "address", "show", "dev", "lo"], capture_output=True, text=True)
    if f"{API_SERVER}/" not in shown.stdout:
        return True
    with socket.socket() as probe:
        return probe.connect_ex((API_SERVER, 443)) != 0


def _end_with_tests() -> None:
    """Daemons of tests that are killed would have the address, which the next ones need."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


KUBECONFIGS = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
PAUSE = """\
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void end(int number) { _exit(0); }
static void reap(int number) { while (waitpid(-1, 0, WNOHANG) > 0) {} }
int main(void) { signal(SIGTERM, end); signal(SIGINT, end); signal(SIGCHLD, reap); for (;;) pause(); }
"""
"""What holds a Pod's network and processes together, and has nothing to do."""


def _image(path: Path) -> None:
    """One program, statically linked."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "pause.c")
        source.write_text(PAUSE)
        subprocess.run(["cc", "-O1", "-static", "-o", f"{folder}/pause", str(source)], check=True)
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as tar:
            tar.add(f"{folder}/pause", "pause")
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/pause"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as tar:
        for name, data in (
            ("config.json", json.dumps(config).encode()),
            ("layer.tar", layer.getvalue()),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


def _bound() -> int:
    """Changes when a kubelet takes the socket, whose place is the same for all: two at once, and one ends."""
    return DEVICE_PLUGINS.stat().st_mtime_ns if DEVICE_PLUGINS.exists() else 0


def host_volumes() -> dict[str, str]:
    """Settings by which Pods see this machine's Python, and what tests write."""
    return {f"/{name}": f"host:/{name}" for name in SHARED if Path("/", name).is_dir()}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="A Kubernetes on this machine, for trying things out.")
    parser.add_argument("command", choices=("fetch", "build", "up"))
    command = parser.parse_args(argv).command
    if command != "up":
        (fetch if command == "fetch" else build)()
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with KubernetesCluster() as cluster:
        print(f"export KUBECONFIG={cluster.kubeconfig}\nalias kubectl='{program()} kubectl'", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    sys.exit(main())
