"""What an API server has of one kind, kept as it is now: a list, and after it each change as it comes.

As Kubernetes' own informers do it (client-go's Reflector): a stream that breaks goes on where it was, and
where the API server does not remember that any more, all is listed anew.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from threading import Condition
from typing import Generic, TypeVar

import msgspec

from elasticflow.process.decoding import from_json
from elasticflow.process.guard import guarded_thread
from elasticflow_kubernetes.client import KubernetesClient, ObjectKind
from elasticflow_kubernetes.errors import ApiBusy, ApiRefused, KubernetesError, Stale
from elasticflow_kubernetes.objects import AnyObject
from elasticflow_kubernetes.pods import Pod, read_item, shown

T = TypeVar("T")
FIRST_LIST_S = 20.0
FIRST_S, MOST_S = 0.2, 10.0
"""Pauses after the API server did not answer, doubled from the first to the most."""
BOOKMARK, DELETED = "BOOKMARK", "DELETED"
REMEMBERED = 1000
"""So many that are gone are known, so that nobody takes one for new."""


class Mirror(Generic[T]):
    """All methods may be called from any thread.

    read: of one as JSON; raises msgspec.MsgspecError, and that one is left out. changed: is called in the
    mirror's own thread whenever there is something new, or nobody answers any more.
    """

    def __init__(
        self,
        client: KubernetesClient,
        kind: ObjectKind,
        read: Callable[[bytes], T],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._client, self._kind, self._read, self._changed = client, kind, read, changed
        self._condition = Condition()
        self._items: dict[str, T] = {}
        self._uids: dict[str, str] = {}
        self._gone: dict[str, None] = {}
        """Uids, the oldest first."""
        self._added: set[str] = set()
        """Names of those that were added since a list was asked for, which may lack them."""
        self._error: KubernetesError | None = None
        self._is_listed = self._closed = False
        guarded_thread(self._run, f"mirror of {kind.value}").start()

    def items(self, timeout_s: float) -> dict[str, T]:
        """By name. Waits for the first list, so long at most. Raises KubernetesError if nobody answers."""
        with self._condition:
            self._condition.wait_for(lambda: self._is_listed or self._error, timeout_s)
            if self._error:
                raise self._error
            if not self._is_listed:
                raise ApiBusy(f"the list of {self._kind.value} has not come within {timeout_s:g} s")
            return dict(self._items)

    def add(self, answer: bytes) -> None:
        """One that was just made, of which no change may have been told yet."""
        meta = from_json(answer, AnyObject).metadata
        with self._condition:
            self._added.add(meta.name)
            if self._uids.get(meta.name) != meta.uid:  # else more is known of it by now
                self._put(answer)

    def close(self) -> None:
        """Its thread ends with the next change, or with its process."""
        self._closed = True

    # --- in its thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s, version = FIRST_S, ""
        while not self._closed:
            try:
                if not version:
                    version = self._list()
                for change, raw in self._client.changes(self._kind, version):
                    version, pause_s = self._take(change, raw) or version, FIRST_S
                    if self._closed:
                        return
            except Stale:
                version = ""
            except KubernetesError as error:
                with self._condition:
                    self._error, version = error, ""
                    self._condition.notify_all()
                self._changed()
                time.sleep(pause_s)  # whoever brings an API server back tells nobody
                pause_s = MOST_S if isinstance(error, ApiRefused) else min(2 * pause_s, MOST_S)

    def _list(self) -> str:
        """Returns the version from which on changes are new."""
        with self._condition:
            self._added.clear()
        listed, version = self._client.listed(self._kind)
        with self._condition:
            before = set(self._items)
            shown = {self._put(bytes(raw)) for raw in listed}
            for name in before - shown - self._added:
                self._drop(name)
            self._error, self._is_listed = None, True
            self._condition.notify_all()
        self._changed()
        return version

    def _take(self, change: str, raw: msgspec.Raw) -> str:
        """Returns its version."""
        known = from_json(raw, AnyObject).metadata
        if change == BOOKMARK:
            return known.resource_version
        with self._condition:
            if change == DELETED:
                self._drop(known.name, known.uid)
            else:
                self._put(bytes(raw))
        self._changed()
        return known.resource_version

    def _put(self, raw: bytes) -> str:
        """Returns its name."""
        known = from_json(raw, AnyObject).metadata
        with contextlib.suppress(msgspec.MsgspecError):
            if known.uid not in self._gone:
                self._items[known.name] = self._read(raw)
                self._uids[known.name] = known.uid
        return known.name

    def _drop(self, name: str, uid: str = "") -> None:
        """uid: of the one that is gone; "": of whichever it is."""
        uid = uid or self._uids.get(name, "")
        self._gone[uid] = None
        while len(self._gone) > REMEMBERED:
            del self._gone[next(iter(self._gone))]
        if self._uids.get(name) == uid:
            del self._items[name], self._uids[name]


class WatchedPods:
    """Those of all runs in the namespace."""

    def __init__(self, client: KubernetesClient, changed: Callable[[], None]) -> None:
        self._client = client
        self._mirror = Mirror(client, ObjectKind.PODS, read_item, changed)
        self.add, self.close = self._mirror.add, self._mirror.close

    def now(self) -> list[Pod]:
        """As they are. Raises KubernetesError if nobody answers."""
        now_s = self._client.now_s()
        return [shown(item, now_s) for item in self._mirror.items(FIRST_LIST_S).values()]
