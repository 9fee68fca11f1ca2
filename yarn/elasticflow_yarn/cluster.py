"""What the cluster has, and who waits for it: asked of the ResourceManager's REST API."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from elasticflow.errors import ConfigError
from elasticflow.process.texts import clock_time
from elasticflow_yarn.errors import SkeinNotInstalled, YarnBusy, YarnError, YarnRefused
from elasticflow_yarn.resources import Measure, Resources

if TYPE_CHECKING:
    import requests

T = TypeVar("T")
API = "/ws/v1/cluster"
GPU = "yarn.io/gpu"
CALL_S = 5.0
"""A ResourceManager answers in milliseconds, or not at all."""
OVER = frozenset({"FINISHED", "FAILED", "KILLED"})
BEGINNING = frozenset({"NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED"})


class YarnNode(msgspec.Struct, frozen=True, kw_only=True):
    """A NodeManager. address: ``host:port`` of its web page, as containers name it."""

    id: str
    address: str
    state: str
    """YARN's word: RUNNING, UNHEALTHY, LOST, DECOMMISSIONED, ..."""
    total: Resources
    available: Resources
    labels: tuple[str, ...] = ()

    @property
    def live(self) -> bool:
        """Whether new containers may come up there."""
        return self.state == "RUNNING"

    def takes(self, label: str) -> bool:
        """Whether containers that ask for this label may; "": they ask for none."""
        return self.live and (not label or label in self.labels)


class QueueUser(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody in a queue. most: all that the queue lets this user have, which YARN works out anew as others
    come and go; the last container may go beyond it."""

    name: str
    used: Resources
    most: Resources | None
    """No vcores: memory alone is counted. None: that is not told."""

    def may_have(self, more: Resources) -> bool:
        if self.most is None:
            return True
        wanted = self.used.plus(more)
        return wanted.fits(self.most) if self.most.vcores else wanted.memory_mb <= self.most.memory_mb


class YarnQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue without queues in it. share: what the cluster guarantees it. most: what it may ever have."""

    name: str
    path: str
    share: Resources
    most: Resources
    used: Resources
    pending: Resources | None
    """What is waited for; None: that is not told."""
    largest: Resources = Resources()
    """The most that one container may ask for; nothing: that is not told."""
    state: str = "RUNNING"
    users: tuple[QueueUser, ...] = ()
    """Who has something in it; nobody: that is not told."""

    def user(self, name: str) -> QueueUser | None:
        """None: nothing is told of this user."""
        return next((user for user in self.users if user.name == name), None)

    def is_called(self, name: str) -> bool:
        """Queues may be named with the names of those in which they lie, or without."""
        return name in (self.name, self.path) or self.path.endswith(f".{name}")

    def lacks(self, measure: Measure) -> int:
        """What it waits for, and is to have."""
        pending = self.pending or Resources()
        return min(measure.of(pending), max(0, measure.of(self.share) - measure.of(self.used)))

    def forgets(self, asked: Iterable[Resources]) -> bool:
        """Whether it has room for all that was asked for, and tells that less is pending.

        Where there is none, the fair scheduler tells no more than what the queue may still have.
        """
        owed = reduce(Resources.plus, asked, Resources())
        is_told = self.pending is not None and self.pending.memory_mb < owed.memory_mb
        return is_told and owed.plus(self.used).fits(self.most)


class App(msgspec.Struct, frozen=True, kw_only=True):
    """An application. Times are seconds since 1970; None: not yet."""

    id: str
    user: str
    name: str
    queue: str
    state: str
    """YARN's word: ACCEPTED, RUNNING, FINISHED, ..."""
    final: str
    """UNDEFINED, SUCCEEDED, FAILED, KILLED."""
    diagnostics: str = ""
    node: str = ""
    """Address of the NodeManager that has the ApplicationMaster; "": none yet."""
    started_at: float | None = None
    finished_at: float | None = None
    logs: str = ""
    """YARN's word for how far it has gathered them: DISABLED, RUNNING, ...; "": it does not tell."""

    @property
    def over(self) -> bool:
        return self.state in OVER

    @property
    def begins(self) -> bool:
        """Whether no ApplicationMaster has registered yet, or the next one has not."""
        return self.state in BEGINNING


class ResourceManager:
    """Of several addresses whichever answers; to be used in one thread.

    Raises YarnBusy where none answers, YarnRefused where it forbids it, or knows no such thing.
    """

    def __init__(self, urls: Sequence[str], user: str, *, kerberos: bool = False) -> None:
        if not urls:
            raise SkeinNotInstalled(
                "no ResourceManager is known: HADOOP_CONF_DIR must name a folder with a yarn-site.xml that "
                "says yarn.resourcemanager.hostname."
            )
        self._urls = [url.rstrip("/") for url in urls]
        self._user, self._kerberos = user, kerberos
        self._kept: requests.Session | None = None

    @classmethod
    def of(cls, environ: Mapping[str, str] = os.environ) -> ResourceManager:
        """That of the cluster to which this machine belongs. Raises SkeinNotInstalled."""
        from elasticflow.storage.hadoop import HadoopConf

        try:
            conf = HadoopConf.load(environ)
        except ConfigError as error:
            raise SkeinNotInstalled(str(error)) from error
        return cls(conf.resource_managers(), conf.user(environ), kerberos=conf.is_secure)

    def nodes(self) -> list[YarnNode]:
        """All that are known, those that are lost as well."""
        return read_nodes(self._get("/nodes"))

    def queues(self) -> list[YarnQueue]:
        """Those in which applications can be."""
        return read_queues(self._get("/scheduler"))

    def queue(self, name: str) -> YarnQueue | None:
        """None: there is none of this name yet, and YARN may make it for the first application in it.

        Raises YarnRefused if there is none, and none is made.
        """
        queues = self.queues()
        for queue in queues:
            if queue.is_called(name):
                return queue
        if self.makes_queues():
            return None
        raise YarnRefused(f"queue {name!r} is unknown; there are {', '.join(q.name for q in queues)}.")

    def makes_queues(self) -> bool:
        """Whether YARN makes queues for applications that name others than there are."""
        return read_makes_queues(self._get("/scheduler"))

    def application(self, id: str) -> App | None:
        """None: the ResourceManager does not know it, or not any more."""
        answer = self._get(f"/apps/{id}", missing={})
        if not answer:
            self._check_awake()
            answer = self._get(f"/apps/{id}", missing={})
        return read_app(answer) if answer else None

    def why_unknown(self, id: str) -> str:
        """Of an application that was there, and is not known: that, and why, to follow its id."""
        info: Mapping[str, Any] = {}
        with contextlib.suppress(YarnError):
            info = self._get("/info", missing={}).get("clusterInfo") or {}
        return text_of_unknown(id, info)

    def attempt(self, id: str) -> int:
        """Number of an application's newest attempt; 0: it has none."""
        return read_attempt(self._get(f"/apps/{id}/appattempts", missing={}))

    def master(self, id: str) -> tuple[str, str] | None:
        """Of an application's newest ApplicationMaster: YARN's id of its container, and its node's address.

        None: there is none.
        """
        return read_master(self._get(f"/apps/{id}/appattempts", missing={}))

    def containers(self, id: str, attempt: int) -> list[str]:
        """YARN's ids of the containers that an attempt has, that of its ApplicationMaster among them."""
        path = f"/apps/{id}/appattempts/{attempt_id(id, attempt)}/containers"
        return read_containers(self._get(path, missing={}))

    def signal(self, container: str, signal: str = "GRACEFUL_SHUTDOWN") -> None:
        """Ends a container without its ApplicationMaster's doing."""
        self._ask("POST", f"/containers/{container}/signal/{signal}")

    def _check_awake(self) -> None:
        """One that has been started answers some time before it remembers its applications: YarnBusy."""
        info = self._get("/info", missing={}).get("clusterInfo") or {}
        if (state := info.get("haState")) in _ASLEEP:
            raise YarnBusy(f"the ResourceManager is {state}, and does not know its applications yet")

    # --- requests --------------------------------------------------------------------------------

    def _get(self, path: str, missing: dict[str, Any] | None = None) -> dict[str, Any]:
        """missing: what to answer where there is no such thing; None: YarnRefused is raised."""
        answer = self._ask("GET", path)
        if answer.status_code == 404:
            if missing is not None:
                return missing
            raise YarnRefused(f"{answer.url}: the ResourceManager knows no such thing.")
        return _read(lambda: dict(answer.json()))

    def _ask(self, method: str, path: str) -> requests.Response:
        import requests

        said = []
        for url in list(self._urls):
            try:
                answer = self._session().request(
                    method, f"{url}{API}{path}", params=self._who, timeout=CALL_S, headers=_HEADERS
                )
            except requests.RequestException as error:
                said.append(f"{url}: {_reason(error)}")
                continue
            if answer.status_code in (401, 403):
                raise YarnRefused(
                    f"{url}: {answer.status_code} {answer.reason}: {self._user} may not ask for it."
                )
            if answer.status_code < 500 and "json" in answer.headers.get("Content-Type", "json"):
                self._urls.remove(url)
                self._urls.insert(0, url)  # the next call begins with the one that is active
                return answer
            said.append(f"{url}: {answer.status_code} {answer.reason}")  # one on standby answers in words
        raise YarnBusy(f"the ResourceManager does not answer ({'; '.join(said)})")

    def _session(self) -> requests.Session:
        self._kept = self._kept or new_session(self._kerberos)
        return self._kept

    @property
    def _who(self) -> dict[str, str]:
        return {} if self._kerberos else {"user.name": self._user}


_ASLEEP = ("INITIALIZING", "STOPPING")
"""States of a ResourceManager in which an application that it does not know may be there all the same."""
_HEADERS = {"Accept": "application/json"}


def new_session(kerberos: bool) -> requests.Session:
    """To ask YARN's daemons."""
    import requests

    session = requests.Session()
    session.trust_env = False  # no proxies between the nodes of a cluster
    if kerberos:
        with contextlib.suppress(ImportError):  # without it the answer is 401, which is told
            from requests_kerberos import OPTIONAL, HTTPKerberosAuth

            session.auth = HTTPKerberosAuth(mutual_authentication=OPTIONAL)
    return session


def _reason(error: Exception) -> str:
    """Without the object's address that requests puts into it."""
    text = str(error.args[0] if error.args else error)
    return text.rpartition(">: ")[2].strip("()'\" ") or type(error).__name__


# --- ids ------------------------------------------------------------------------------------------


def attempt_id(application: str, attempt: int) -> str:
    """``appattempt_1700000000000_0001_000002``"""
    return f"appattempt_{application.removeprefix('application_')}_{attempt:06}"


def attempt_of(container: str) -> int:
    """The number of the attempt to which a container belongs. Raises ValueError."""
    return int(_parts(container)[2])


def application_of(container: str) -> str:
    """The application to which a container belongs. Raises ValueError."""
    return f"application_{_parts(container)[1]}"


def text_of_unknown(application: str, info: Mapping[str, Any]) -> str:
    """info: of a ResourceManager, as far as it is known. In the id of each application is the moment,
    in ms, at which the ResourceManager that took it had begun."""
    found = re.fullmatch(r"application_(\d+)_\d+", application)
    began_ms = info.get("startedOn")
    if not found or not isinstance(began_ms, int) or began_ms <= int(found[1]):
        return "is not known to YARN any more, which forgets applications"
    return (
        f"is not known to YARN any more, whose ResourceManager began anew ({clock_time(began_ms / 1000)}) "
        "and has kept no word of it (yarn.resourcemanager.recovery.enabled has it keep applications)"
    )


def _parts(container: str) -> re.Match[str]:
    found = re.fullmatch(r"container_(?:e\d+_)?(\d+_\d+)_(\d+)_\d+", container)
    if not found:
        raise ValueError(f"{container!r} is no id of a container of YARN's")
    return found


# --- answers --------------------------------------------------------------------------------------


def read_nodes(answer: Mapping[str, Any]) -> list[YarnNode]:
    """Of ``/nodes``. Raises YarnBusy if it is none."""
    return _read(lambda: [_node(each) for each in listed(answer["nodes"], "node")])


def read_queues(answer: Mapping[str, Any]) -> list[YarnQueue]:
    """Of ``/scheduler``, of the capacity or the fair scheduler. Raises YarnBusy if it is none."""
    return _read(lambda: list(_queues(answer["scheduler"]["schedulerInfo"])))


def read_makes_queues(answer: Mapping[str, Any]) -> bool:
    """Of ``/scheduler``: whether queues are made for applications that name others than there are.

    The fair scheduler does so but where that is forbidden, which it does not tell; the capacity scheduler
    in queues of which an administrator has said so. Raises YarnBusy if it is no answer.
    """
    return _read(lambda: _makes_queues(answer["scheduler"]["schedulerInfo"]))


def read_app(answer: Mapping[str, Any]) -> App:
    """Of ``/apps/ID``. Raises YarnBusy if it is none."""
    return _read(lambda: _app(answer["app"]))


def read_attempt(answer: Mapping[str, Any]) -> int:
    """Of ``/apps/ID/appattempts``: the newest. Raises YarnBusy if it is none."""
    found = _read(lambda: [int(each["id"]) for each in listed(answer.get("appAttempts"), "appAttempt")])
    return max(found, default=0)


def read_master(answer: Mapping[str, Any]) -> tuple[str, str] | None:
    """Of ``/apps/ID/appattempts``: the newest. Raises YarnBusy if it is none."""

    def read() -> tuple[str, str] | None:
        attempts = listed(answer.get("appAttempts"), "appAttempt")
        newest: Any = max(attempts, key=lambda each: int(each["id"]), default={})
        return (newest["containerId"], newest["nodeHttpAddress"]) if newest.get("containerId") else None

    return _read(read)


def read_containers(answer: Mapping[str, Any]) -> list[str]:
    """Of ``/apps/ID/appattempts/ID/containers``: those that are not over. Raises YarnBusy if it is none."""

    def read() -> list[str]:
        containers = listed(answer, "container") or listed(answer.get("containers"), "container")
        return [str(each["containerId"]) for each in containers if each.get("containerState") != "COMPLETE"]

    return _read(read)


def _read(read: Callable[[], T]) -> T:
    """An answer that cannot be read was cut off, or is a proxy's: as if there was none."""
    try:
        return read()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise YarnBusy(f"the ResourceManager's answer cannot be read: {error!r}") from error


def listed(holder: Any, name: str) -> list[Any]:
    """YARN writes null, or "", for an empty list, and some versions one object for a list of one."""
    found = (holder or {}).get(name) or []
    return found if isinstance(found, list) else [found]


def _node(found: Mapping[str, Any]) -> YarnNode:
    used = Resources(found.get("usedMemoryMB", 0), found.get("usedVirtualCores", 0))
    free = Resources(found.get("availMemoryMB", 0), found.get("availableVirtualCores", 0))
    both = Resources(used.memory_mb + free.memory_mb, used.vcores + free.vcores)
    return YarnNode(
        id=found["id"],
        address=found.get("nodeHTTPAddress", ""),
        state=found["state"],
        total=_resources(found.get("totalResource"), both),
        available=_resources(found.get("availableResource"), free),
        labels=tuple(found.get("nodeLabels") or ()),
    )


def _resources(found: Mapping[str, Any] | None, default: Resources | None = None) -> Resources:
    """default: for versions that do not tell."""
    if not found:
        return default or Resources()
    named = listed(found.get("resourceInformations"), "resourceInformation")
    gpus = next((int(each["value"]) for each in named if each["name"] == GPU), 0)
    return Resources(int(found["memory"]), int(found["vCores"]), gpus)


def _queues(found: Mapping[str, Any], within: str = "") -> Iterator[YarnQueue]:
    if root := found.get("rootQueue"):  # of the fair scheduler
        yield from _fair_queues(root)
        return
    name = found["queueName"]
    path = found.get("queuePath") or (f"{within}.{name}" if within else name)
    children = listed(found.get("queues"), "queue")
    for child in children:
        yield from _queues(child, path)
    if not children:
        yield _capacity_queue(found, name, path)


def _makes_queues(found: Mapping[str, Any]) -> bool:
    children = listed(found.get("queues"), "queue")
    makes = found.get("autoCreateChildQueueEnabled") is True
    makes = makes or found.get("autoCreationEligibility", "off") not in ("off", "")
    return "rootQueue" in found or makes or any(map(_makes_queues, children))


def _capacity_queue(found: Mapping[str, Any], name: str, path: str) -> YarnQueue:
    usages = listed(found.get("resources"), "resourceUsagesByPartition")
    pending = [_resources(each["pending"]) for each in usages if each.get("pending")]
    return YarnQueue(
        name=name,
        path=path,
        share=_resources(found.get("minEffectiveCapacity")),
        most=_resources(found.get("maxEffectiveCapacity")),
        used=_resources(found.get("resourcesUsed")),
        pending=reduce(Resources.plus, pending) if pending else None,
        largest=_resources(found.get("maximumAllocation")),
        state=found.get("state", "RUNNING"),
        users=tuple(map(_user, listed(found.get("users"), "user"))),
    )


def _user(found: Mapping[str, Any]) -> QueueUser:
    """On nodes without labels, to which the limit applies."""
    usages = listed(found.get("resources"), "resourceUsagesByPartition")
    unlabelled = [each.get("used") for each in usages if not each.get("partitionName")]
    used = _resources(next(iter(unlabelled), found.get("resourcesUsed")))
    most = _resources(limit) if (limit := found.get("userResourceLimit")) else None
    if most is not None and most.vcores <= 1:  # so the DefaultResourceCalculator tells of any limit
        most = Resources(most.memory_mb)
    return QueueUser(name=found["username"], used=used, most=most)


def _fair_queues(found: Mapping[str, Any]) -> Iterator[YarnQueue]:
    children = listed(found.get("childQueues"), "queue")
    for child in children:
        yield from _fair_queues(child)
    if not children:
        path, used = found["queueName"], _resources(found.get("usedResources"))
        demand = found.get("demandResources")
        yield YarnQueue(
            name=path.rpartition(".")[2],
            path=path,
            share=_resources(found.get("steadyFairResources") or found.get("minResources")),
            most=_resources(found.get("maxResources")),
            used=used,
            pending=_beyond(_resources(demand), used) if demand else None,
        )


def _beyond(much: Resources, little: Resources) -> Resources:
    """What ``much`` has more; nothing of what it has less of."""
    return Resources(
        max(0, much.memory_mb - little.memory_mb),
        max(0, much.vcores - little.vcores),
        max(0, much.gpus - little.gpus),
    )


def _app(found: Mapping[str, Any]) -> App:
    started, finished = found.get("startedTime"), found.get("finishedTime")
    return App(
        id=found["id"],
        user=found.get("user", ""),
        name=found.get("name", ""),
        queue=found.get("queue", ""),
        state=found["state"],
        final=found.get("finalStatus", "UNDEFINED"),
        diagnostics=str(found.get("diagnostics") or "").strip(),
        node=str(found.get("amHostHttpAddress") or ""),
        started_at=started / 1000 if started else None,
        finished_at=finished / 1000 if finished else None,
        logs=str(found.get("logAggregationStatus") or ""),
    )
