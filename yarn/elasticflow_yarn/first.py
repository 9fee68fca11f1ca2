"""The first containers: the servers and the least number of workers, asked for by the specification itself.

Skein speaks to YARN once a second. What its specification asks for goes along when the ApplicationMaster
registers, what the master asks for a second later, or two. So these begin while the master does. Which member
each of them is follows from its number: Skein's ``server_0`` is server-0, ``worker_0`` is worker-1. The rest
it finds in the run's folder: the settings, and, as soon as it listens, the master.

Members of these names there are in an application's first attempt alone. In the next one YARN starts such
containers again, and they end at once: the master asks for those that it needs.

``python -m elasticflow_yarn.first MEMBER`` is the process of one, see ``member``. This module starts with
each container, so it imports next to nothing.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping

TYPE_CHECKING = False  # to import it from typing takes its time
if TYPE_CHECKING:
    from elasticflow_yarn.finder import YarnFinder

NUMBERS = {"server": 0, "worker": 1}
"""Those of a service's first member, as the master counts."""
LOOK_S, LOOK_MOST_S = 0.1, 1.0
"""Between two looks for the master, at first and at last: a file tells nobody that it is there."""


def name_of(id: str) -> str:
    """The member in a container. id: Skein's, of one of the first."""
    service, _, number = id.rpartition("_")
    return f"{service}-{int(number) + NUMBERS[service]}"


def members(counts: Mapping[str, int]) -> dict[str, str]:
    """Skein's ids of the first containers, by the names of their members. counts: by service."""
    ids = [f"{service}_{number}" for service in NUMBERS for number in range(counts.get(service, 0))]
    return {name_of(id): id for id in ids}


def member(run_dir: str, environ: Mapping[str, str]) -> str:
    """Who is in this container, as JSON: ``name`` and ``run_dir``; "" if nobody is, in a later attempt."""
    import json

    attempt = int(environ["CONTAINER_ID"].split("_")[-2])
    name = name_of(environ["SKEIN_CONTAINER_ID"])
    return json.dumps({"name": name, "run_dir": run_dir}) if attempt == 1 else ""


def main() -> int:
    """A member's whole life, as in ``elasticflow.launch``, once its master listens; returns its exit code."""
    import json

    import msgspec

    from elasticflow import launch
    from elasticflow.cluster.finder import Orphaned
    from elasticflow.cluster.member import EXIT_ABANDONED
    from elasticflow.run.folder import RunDir
    from elasticflow.run.settings import MemberSettings
    from elasticflow_yarn.backend import YarnBackend
    from elasticflow_yarn.config import read

    told = json.loads(sys.argv[1])
    config = RunDir(told["run_dir"]).config()
    settings = MemberSettings.of(
        config,
        role=told["name"].rpartition("-")[0],
        host=read(config.yarn).host,
        master="",
        started_s=time.time(),
        **told,
    )
    try:
        master = wait(YarnBackend.finder(settings))
    except Orphaned as orphaned:
        print(f"no master: {orphaned}", file=sys.stderr, flush=True)
        return EXIT_ABANDONED
    keys = RunDir(told["run_dir"]).keys_of(told["name"])
    until_s = time.monotonic() + settings.lost_s
    while not keys.exists() and time.monotonic() < until_s:  # it listens, and is about to ask for its members
        time.sleep(LOOK_S)
    return launch.run(msgspec.structs.replace(settings, master=master))


def wait(finder: YarnFinder) -> str:
    """Where the master listens, once it does. Raises Orphaned."""
    from elasticflow.cluster.finder import Orphaned
    from elasticflow.errors import ElasticFlowError

    if found := finder.find():
        return found
    pause_s, until_s = LOOK_S, time.monotonic() + finder.patience_s
    while (found := finder.find()) is None:
        if time.monotonic() > until_s:
            raise Orphaned(f"none has begun within {finder.patience_s:g} s")
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, LOOK_MOST_S)
    with contextlib.suppress(ElasticFlowError, ValueError):
        finder.ask()  # that may be the master of a later attempt
    return found


if __name__ == "__main__":
    sys.exit(main())
