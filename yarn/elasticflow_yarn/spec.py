"""The application that is submitted, as a specification of Skein: pure, so that a dry run shows exactly
what would be."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from elasticflow.cluster.scripts import lead_again, script_of
from elasticflow.errors import ConfigError
from elasticflow.process.fingerprint import library_settings
from elasticflow.run.config import Config
from elasticflow_yarn import gpus
from elasticflow_yarn.config import ENVIRONMENT, PROGRAM, YarnConfig, mebibytes
from elasticflow_yarn.java import QUICK
from elasticflow_yarn.resources import Resources

MASTER, WORKER, SERVER = "master", "worker", "server"
"""The ApplicationMaster, and the services."""
PULSE = "pulse"
"""A service that asks for a container on a host that there is not, see ``_pulse``."""
NOWHERE = "0.0.0.0"
"""An address, since names are looked up."""
FOR_SKEIN = ("--add-opens=java.base/java.util=ALL-UNNAMED", QUICK)
"""Without the first, Skein's page in YARN's web UI fails on Java 17."""
ARCHIVES = (".tar.gz", ".tgz", ".zip")
"""What YARN unpacks."""
ACTIVATE = f'export PATH="$PWD/{ENVIRONMENT}/bin:$PATH" VIRTUAL_ENV="$PWD/{ENVIRONMENT}"'
CHECK = """\
# What is wrong with the environment is told in one line.
python={python}
fail() {{ echo "Error: $*; {hint}" >&2; exit 1; }}
command -v "$python" > /dev/null || fail "there is no $python on $HOSTNAME"
why=$("$python" -c 'import elasticflow.cli, elasticflow_yarn' 2>&1) ||
    fail "$python on $HOSTNAME cannot import elasticflow: ${{why##*$'\\n'}}\""""


def application_name(config: Config, yarn: YarnConfig) -> str:
    """What YARN's lists and the index call it."""
    return yarn.name or Path(config.program).stem


def resources(config: Config, yarn: YarnConfig) -> dict[str, Resources]:
    """What the ApplicationMaster and each container ask for."""

    def asked(key: str, memory: str, vcores: int, gpus: int = 0) -> Resources:
        return Resources(mebibytes(memory, f"yarn.{key}"), vcores, gpus)

    return {
        MASTER: asked("master_memory", yarn.master_memory, yarn.master_vcores),
        WORKER: asked("memory", yarn.memory, max(yarn.vcores, config.threads), yarn.gpus),
        SERVER: asked("server_memory", yarn.server_memory, max(yarn.server_vcores, config.server_threads)),
    }


def specification(
    config: Config,
    yarn: YarnConfig,
    *,
    run_dir: str,
    program: str,
    resume: bool = False,
    file_systems: Sequence[str] = (),
    first: bool = True,
) -> dict[str, Any]:
    """As ``skein.ApplicationSpec.from_dict`` takes it.

    program: where the archive of the program's folder lies. file_systems: those that hold something of the
    run, besides the cluster's default one. first: whether it asks for the first containers itself.
    """
    files: dict[str, Any] = {PROGRAM: {"source": program, "type": "archive"}}
    if yarn.environment:
        files[ENVIRONMENT] = _environment(yarn.environment)
    files.update(yarn.files)
    asked = resources(config, yarn)
    before = [yarn.setup.rstrip(), ACTIVATE if yarn.environment else ""]
    again = lead_again(_python(yarn), run_dir, resume, "--on", "yarn")
    container = shlex.join([_python(yarn), "-m", "elasticflow_yarn.container", run_dir])
    java = " ".join(filter(None, (*FOR_SKEIN, yarn.env.get("JDK_JAVA_OPTIONS", ""))))

    def service(name: str, least: int) -> dict[str, Any]:
        leases = {gpus.COUNT: str(asked[name].gpus), gpus.DEVICES: yarn.gpu_devices}
        return {
            "resources": _asked(asked[name]),
            "instances": least if first else 0,  # the master adds the others one by one
            # Skein counts preemptions as restarts, and ends the application with the first failure.
            "max_restarts": 0,
            "allow_failures": True,
            "files": files,
            "env": quoted({**library_settings(config.threads), **yarn.env, **leases}),
            "script": script_of(*before, f"exec {container}"),
        }

    described = {
        "name": application_name(config, yarn),
        "queue": yarn.queue,
        "user": yarn.user,
        "node_label": yarn.node_label,
        "tags": list(yarn.tags),
        "file_systems": list(file_systems),
        "acls": _acls(yarn),
        "max_attempts": yarn.max_attempts,
        MASTER: {
            "resources": _asked(asked[MASTER]),
            "files": files,
            "env": quoted({**yarn.env, "JDK_JAVA_OPTIONS": java}),
            "script": script_of(*before, _check(yarn), again),
        },
        "services": {
            WORKER: service(WORKER, config.worker_range[0]),
            SERVER: service(SERVER, config.num_servers),
            PULSE: _pulse([WORKER] if first else []),
        },
    }
    return {name: value for name, value in described.items() if value}


def quoted(env: Mapping[str, str]) -> dict[str, str]:
    """For YARN's own scripts, which put a value between double quotes as it is; $NAME stands for another."""
    return {name: re.sub(r'(["\\`])', r"\\\1", value) for name, value in env.items()}


def _check(yarn: YarnConfig) -> str:
    hint = "see yarn.environment" if yarn.environment else "see yarn.python and yarn.environment"
    return CHECK.format(python=shlex.quote(_python(yarn)), hint=hint)


def _python(yarn: YarnConfig) -> str:
    return "python" if yarn.environment else yarn.python or sys.executable


def _environment(archive: str) -> dict[str, str]:
    if not archive.endswith(ARCHIVES):
        raise ConfigError(
            f"yarn.environment: {archive}: YARN unpacks {', '.join(ARCHIVES)}; 'elasticflow pack "
            "environment.tar.gz' makes such an archive."
        )
    # One on HDFS is unpacked once on a node for all runs, a local one is sent with each of them.
    shared = {"visibility": "private"} if "://" in archive else {}
    return {"source": archive, "type": "archive", **shared}


def _asked(asked: Resources) -> dict[str, Any]:
    counted = {"gpus": asked.gpus} if asked.gpus else {}
    return {"memory": f"{asked.memory_mb} MiB", "vcores": asked.vcores, **counted}


def _pulse(after: list[str]) -> dict[str, Any]:
    """Has Skein's ApplicationMaster speak to YARN every second from its start, and not every five: it does so
    while something is asked for. So the first containers come sooner.

    The master takes the request back as soon as it has made its own.

    after: services that must have their containers before. While those are asked for there is no need of a
    pulse; and of a request that has just been fulfilled Skein gives the number to the next one, which YARN
    then takes back together with the former, unless there is a higher one by then: that of the pulse.
    """
    return {
        **({"depends": after} if after else {}),
        "instances": 1,
        "max_restarts": 0,
        "allow_failures": True,
        "resources": {"memory": "1 MiB", "vcores": 1},
        "nodes": [NOWHERE],
        "relax_locality": False,
        "script": "true\n",
    }


def _acls(yarn: YarnConfig) -> dict[str, Any]:
    acls = yarn.acls
    if not acls.enable:
        return {}
    lists = {name: list(getattr(acls, name)) for name in acls.__struct_fields__ if name != "enable"}
    return {"enable": True, **{name: users for name, users in lists.items() if users}}
