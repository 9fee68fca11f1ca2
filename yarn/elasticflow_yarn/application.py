"""What a master asks of its own Skein application: to add and to end containers, and to tell of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from elasticflow_yarn.errors import ApplicationGone, SkeinNotInstalled, YarnBusy, YarnError, YarnRefused
from elasticflow_yarn.resources import Resources

LIVING = ("WAITING", "REQUESTED", "RUNNING")
OVER = ("SUCCEEDED", "FAILED", "KILLED")
CALL_S = 10.0
"""An ApplicationMaster answers in milliseconds, or it hangs."""

SPEECHLESS = "its ApplicationMaster failed at it, and does not say why; application.master.log may tell"
"""Of an error of which gRPC tells nothing: one that nobody there has caught."""


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """A container as Skein knows it now. Times are seconds since 1970; None: not known."""

    id: str
    """Skein's, such as ``worker_3``; of one attempt of the application alone."""
    service: str
    state: str
    """Skein's word: WAITING, REQUESTED, RUNNING, SUCCEEDED, FAILED, KILLED."""
    yarn_id: str = ""
    """``container_e01_..._000003``; "" while it is only requested."""
    node: str = ""
    """``host:port`` of the web page of its NodeManager; "" while it has none."""
    words: str = ""
    """Skein's, of why it is over."""
    started_at: float | None = None
    finished_at: float | None = None

    @property
    def over(self) -> bool:
        return self.state in OVER


class Application:
    """The one in whose container this process is.

    Raises ApplicationGone where nobody answers any more, and other errors of ``errors``. All but the
    constructor is called in one thread.
    """

    id: str
    """``application_1700000000000_0001``."""

    def __init__(self, client: Any) -> None:
        """client: Skein's."""
        self._client = client
        self.id = str(client.id)
        # Skein would wait for ever for one that hangs: its client passes no time-out on.
        client._stub = _LimitedChannel(client._stub)

    @classmethod
    def from_current(cls) -> Application:
        """Raises SkeinNotInstalled outside of a container of Skein's."""
        try:
            import skein
        except ImportError as error:
            raise SkeinNotInstalled(f"skein is not installed here: {error}; pip install skein.") from error
        try:
            return cls(skein.ApplicationClient.from_current())
        except (ValueError, OSError) as error:
            raise SkeinNotInstalled(f"this is no container of a Skein application: {error}") from error

    def containers(self) -> list[Container]:
        """All of this attempt, also those that are over."""
        with _translated():
            return [_container(each) for each in self._client.get_containers(states=(*LIVING, *OVER))]

    def add(self, service: str, env: Mapping[str, str]) -> Container:
        """Requests one more. env: is added to that of the service.

        A request for more than any node that is registered has ends the ApplicationMaster: look first.
        """
        with _translated():
            return _container(self._client.add_container(service, env=dict(env)))

    def kill(self, id: str) -> None:
        """Ends a container, or its request; if it is over, or was never there, does nothing."""
        with _translated(), contextlib.suppress(KeyError, ValueError):
            self._client.kill_container(id)

    def services(self) -> dict[str, Resources]:
        """What a container of each service asks for."""
        asked = {name: each.resources for name, each in self._specified().items()}
        return {name: Resources(each.memory, each.vcores, each.gpus) for name, each in asked.items()}

    def instances(self) -> dict[str, int]:
        """How many containers of each service the specification itself has asked for."""
        return {name: each.instances for name, each in self._specified().items()}

    def _specified(self) -> Mapping[str, Any]:
        with _translated():
            services: Mapping[str, Any] = self._client.get_specification().services
        return services

    def put(self, key: str, value: str) -> None:
        """Has the ApplicationMaster remember something, as long as it lives."""
        with _translated():
            self._client.kv[key] = value.encode()

    def get_prefix(self, prefix: str) -> dict[str, str]:
        """What was put under keys that begin so, by the whole keys."""
        with _translated():
            found = self._client.kv.get_prefix(prefix)
        return {key: value.decode() for key, value in found.items()}

    def add_page(self, route: str, target: str, title: str) -> None:
        """Shows a page (GET only) in the application's web UI, in place of any there. target: its address."""
        with _translated():
            if route in self._client.ui.get_pages():  # a master before this one had it
                self._client.ui.remove_page(route)
            self._client.ui.add_page(route, target, link_name=title)

    def set_progress(self, fraction: float) -> None:
        """Of the work, what is done, for YARN's lists. fraction: 0 to 1."""
        with _translated():
            self._client.set_progress(min(1.0, max(0.0, fraction)))


class _LimitedChannel:
    """A stub whose calls fail after ``CALL_S``."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._stub, name)

        def limited(request: Any, timeout: float | None = None) -> Any:
            return call(request, timeout=timeout or CALL_S)

        return limited


def _container(found: Any) -> Container:
    """Of Skein's own."""
    times = (found.start_time, found.finish_time)
    started_at, finished_at = (time.timestamp() if time else None for time in times)
    return Container(
        id=found.id,
        service=found.service_name,
        state=str(found.state),
        yarn_id=found.yarn_container_id,
        node=found.yarn_node_http_address,
        words=found.exit_message,
        started_at=started_at,
        finished_at=finished_at,
    )


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Skein's errors as ours."""
    from skein import exceptions

    try:
        yield
    except exceptions.TimeoutError as error:
        raise YarnBusy(f"the ApplicationMaster does not answer within {CALL_S:g} s") from error
    except exceptions.ConnectionError as error:
        raise ApplicationGone(f"the ApplicationMaster does not answer: {error}") from error
    except exceptions.SkeinError as error:
        raise YarnError(f"Skein: {str(error) or SPEECHLESS}") from error
    except (KeyError, ValueError) as error:
        raise YarnRefused(f"Skein refuses: {error}") from error
