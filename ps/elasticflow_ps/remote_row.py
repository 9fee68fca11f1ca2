"""A worker's connections to one row of servers, all of the same generation: they live and end together."""

from __future__ import annotations

from collections.abc import Iterator

import zmq

from elasticflow.run.settings import MemberSettings
from elasticflow.step.layout import Layout
from elasticflow.wire.data import DataLink
from elasticflow.wire.messages import Assignment
from elasticflow.wire.sockets import Context, Socket
from elasticflow_ps import client_state as cs
from elasticflow_ps.compression import Compression
from elasticflow_ps.outgoing import Routes
from elasticflow_ps.reading import RowReading
from elasticflow_ps.remote import Remote
from elasticflow_ps.ways import guard_to, pass_to


class RemoteRow:
    """To the servers with chunks, the leading one first. Those without only stand by, and are left alone.

    state: what is decided of them. numbers: of questions for rows; never the same twice, since answers over
    other connections may come late.
    """

    def __init__(
        self,
        context: Context,
        settings: MemberSettings,
        layout: Layout,
        compression: Compression,
        wake_fd: int,
        numbers: Iterator[int],
        assignment: Assignment,
    ) -> None:
        self.schedule = assignment.schedule
        self._layout, self._wake_fd, self._numbers = layout, wake_fd, numbers
        self.remotes: list[Remote] = []
        for info in assignment.servers:
            if info.chunks:
                way = pass_to(info, settings.name, assignment)
                link = DataLink(context, way, info.endpoint, guard_to(info.endpoint, settings))
                self.remotes.append(Remote(info, link, layout, compression))
        self.state = cs.ClientState(
            [len(remote.parcels) for remote in self.remotes],
            assignment.schedule,
            has_first=not assignment.in_memory and assignment.restore_step is None,
        )
        self._look()

    def _look(self) -> None:
        """Of the remotes as they are now."""
        self.routes = Routes(self._layout, self.remotes)
        self.reading = RowReading(self._layout, self.remotes, self._wake_fd, self._numbers)
        self._poller = zmq.Poller()
        self._poller.register(self._wake_fd, zmq.POLLIN)
        for source in (each for remote in self.remotes for each in remote.sources):
            self._poller.register(source, zmq.POLLIN)

    @property
    def dropped(self) -> int:
        """Messages that made no sense to the links."""
        return sum(remote.link.dropped for remote in self.remotes)

    def wait(self) -> set[Socket | int]:
        """Waits until there is something to do; returns the sources that have something."""
        early = any(remote.has_more for remote in self.remotes)
        for remote in self.remotes:
            remote.link.flush()
        return {source for source, _ in self._poller.poll(0 if early else None)}

    def sever(self) -> None:
        """Lets go of all servers at once, and of what has not been sent yet: there are none then."""
        remotes, self.remotes = self.remotes, []
        self._look()
        for remote in remotes:
            remote.link.close(linger_ms=0)

    def close(self) -> None:
        """Lets go of them once all has been sent."""
        for remote in self.remotes:
            remote.link.close()
