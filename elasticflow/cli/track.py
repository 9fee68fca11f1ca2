"""``elasticflow track``: draws a run's curves in trackers, of one that is under way or over.

A master whose run has ``track`` in its settings starts this, and then forgets it.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from elasticflow import checkpoint
from elasticflow.checkpoint import Manifest
from elasticflow.cli.connection import Connection
from elasticflow.cli.digests import digest_of
from elasticflow.cli.folders import find_run
from elasticflow.cli.report import remembered
from elasticflow.cluster.presence import Presence, presence_of
from elasticflow.errors import ConfigError, ElasticFlowError, RunError, UnknownError
from elasticflow.master.log import say
from elasticflow.process.decoding import from_json
from elasticflow.process.stamps import stamp_output
from elasticflow.run import tracks
from elasticflow.run.config import differences
from elasticflow.run.folder import ENDED, RunDir, publish
from elasticflow.run.telling import Past, Status
from elasticflow.run.tracks import TRACKERS, TrackDir
from elasticflow.trackers.drawing import Drawing, make_tracker
from elasticflow.trackers.following import CurveFollowing
from elasticflow.trackers.points import read_begun, read_points, write_begun, write_points
from elasticflow.trackers.tracker import About

NEWS = 20
"""So much the master has to tell before it is asked again; or after ten seconds."""
END_S, END_BY_HAND_S = 20.0, 120.0
"""So long trackers may take to end once the run is over."""
LOOK_S = 0.05
NICE = 10
LEFT_OUT = ("kubernetes", "slurm", "yarn", "run_dir", "program", "track")
"""Settings that no tracker is told: of clusters, where secrets may be, and what is told anyway."""


def track(arguments: argparse.Namespace) -> int:
    """Draws until the run is over; 1 if a tracker has not drawn all."""
    run = find_run(arguments.run, arguments.trust)
    if isinstance(run.path, Path):
        run = RunDir(os.path.abspath(run.path))  # as it is told to people who look from elsewhere
    config = run.config()
    names = [each.strip() for each in arguments.trackers.split(",") if each.strip()] or config.track
    if not names:
        raise ConfigError(f"track: which tracker? Name some of {', '.join(TRACKERS)} by --with NAME,...")
    tracks.check_names(names)
    tracks.check_packages(names)
    if not arguments.to and not isinstance(run.path, Path):
        raise ConfigError(f"track: {run.path} is no folder of this machine; name one by --to FOLDER.")
    folder = TrackDir(Path(arguments.to or run.folder / "tracks"))
    hold = folder.hold()
    logging.raiseExceptions = False  # a library whose own log is on a full disk says so in pages
    if arguments.own:
        stamp_output()
        os.nice(NICE)
    beside = arguments.own and run.host() is not None
    presence = BesideMaster(str(run.path)) if beside else presence_of(run)
    tracking = Tracking(run, folder, names, say if arguments.own else _tell, presence)
    try:
        done = tracking.run(END_S if arguments.own else END_BY_HAND_S)
    except KeyboardInterrupt:
        return 130
    if not arguments.own:
        drawn = ", ".join(name for name in names if name not in tracking.problems)
        lacking = "".join(f"; not all in {name}: {why}" for name, why in tracking.problems.items())
        print(f"{folder.path}: {tracking.count} points of {run.path}{drawn and f' in {drawn}'}{lacking}")
    if threading.active_count() > 1:  # a library that hangs would be waited for
        sys.stdout.flush()
        os._exit(0 if done else 1)
    os.close(hold)
    return 0 if done else 1


def _tell(text: str) -> None:
    print(f"Warning: {text}", file=sys.stderr)


class BesideMaster(Presence):
    """Of a run in whose job this process is, and with which it ends: its cluster need not be asked."""

    def is_alive(self) -> bool:
        return not self._run.report.exists()


class Tracking:
    """Follows one run, and hands what is committed to each tracker. presence: of the run."""

    def __init__(
        self,
        run: RunDir,
        folder: TrackDir,
        names: Sequence[str],
        tell: Callable[[str], None],
        presence: Presence,
    ) -> None:
        self._run, self._folder, self._tell, self._presence = run, folder, tell, presence
        self._points = read_points(folder)
        self._following = CurveFollowing(self._points, read_begun(folder))
        self._names, self._drawings = names, list[Drawing]()
        self._fingerprint_of: int | None = None
        """The step of the checkpoint whose fingerprint was told."""

    @property
    def count(self) -> int:
        """Points that were drawn."""
        return len(self._points)

    @property
    def problems(self) -> dict[str, str]:
        """By tracker, why it has not drawn all."""
        return {each.tracker: each.problem for each in self._drawings if each.problem}

    def run(self, end_s: float) -> bool:
        """Until the run is over, and for ``end_s`` more at most. Whether all is drawn. Raises RunError."""
        self._follow()
        told = self._last()
        if told is None:
            return False
        self._take(told, last=True)
        state = told.state if isinstance(told, Status) else "killed"
        self._end(told, state)
        return self._wait(end_s)

    # --- the run -----------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Until its report is there, or its processes are gone."""
        while not self._run.report.exists():
            with contextlib.suppress(UnknownError):  # a master that is gone, a cluster that is silent
                if not self._presence.is_alive():
                    return
                with contextlib.suppress(RunError):  # it has just ended
                    if self._presence.has_master():
                        self._listen()
            time.sleep(LOOK_S)  # whoever writes the report, or takes over, tells nobody

    def _listen(self) -> None:
        """To one master, until it says that the run has ended."""
        with Connection(self._run, self._presence) as connection:
            while True:
                if status := connection.next_status(news=NEWS):
                    self._take(status)
                    if status.state in ENDED:
                        return

    def _last(self) -> Past | None:
        """What is known of a run that is over; None: nothing."""
        if report := self._run.read_report():
            return report
        try:
            return remembered(self._run, presence_of(self._run))
        except RunError as error:
            self._tell(str(error))
            return None

    # --- trackers ------------------------------------------------------------------------------------

    def _take(self, told: Past, *, last: bool = False) -> None:
        """News of the run. Trackers begin with the first point: before, the run needs the processors."""
        undone = self._following.undone_after(told)
        points = self._following.heard(told)
        if not self._drawings and (points or last):
            self._begin(told)
        if undone is not None:
            self._points = [point for point in self._points if point.step <= undone]
        self._points += points
        with contextlib.suppress(OSError):  # first: trackers that begin again draw what is written there
            if points or undone is not None:
                write_points(self._folder, self._points)
            if begun := self._following.begun():
                write_begun(self._folder, begun)
        if undone is not None:
            self._each(lambda drawing: drawing.undo(self._points))
        elif points:
            self._each(lambda drawing: drawing.draw(points))
        if self._drawings and self._fingerprint_of is None:
            self._tell_fingerprint()

    def _begin(self, told: Past) -> None:
        about = self._about(told)
        for name in self._names:
            make = partial(make_tracker, name, self._folder, about)
            drawing = Drawing(name, make, self._points, self._complain)
            self._drawings.append(drawing)
            drawing.start()

    def _about(self, told: Past) -> About:
        """Raises OSError."""
        token = self._folder.path / "token"
        if not token.exists():
            publish(token, secrets.token_hex(8), durable=False)
        settings = {name: v for name, v in differences(self._run.config()).items() if name not in LEFT_OUT}
        arguments = {f"args.{name}": value for name, value in settings.pop("args", {}).items()}
        return About(
            path=str(self._run.path),
            name=self._run.path.name,
            program=told.program,
            started_at=told.started_at,
            settings={"program": os.path.basename(told.program), **settings, **arguments},
            token=from_json(token.read_bytes(), str),
        )

    def _each(self, act: Callable[[Drawing], None]) -> None:
        for drawing in self._drawings:
            act(drawing)

    def _tell_fingerprint(self) -> None:
        if manifest := self._newest():
            self._fingerprint_of = manifest.step
            facts = {f"fingerprint.{name}": str(value) for name, value in manifest.fingerprint.items()}
            facts["program_sha256"] = manifest.programs[-1].sha256 if manifest.programs else ""
            self._each(lambda drawing: drawing.tell(facts))

    def _newest(self) -> Manifest | None:
        with contextlib.suppress(ElasticFlowError, OSError):
            steps = checkpoint.commits(storage := self._run.checkpoints())
            return checkpoint.load_manifest(storage, steps[-1]) if steps else None
        return None

    def _end(self, told: Past, state: str) -> None:
        facts: dict[str, str] = {"state": state, "text": str(getattr(told, "text", ""))}
        if self._run.report.exists():
            facts["report"] = str(self._run.report)
        if manifest := self._newest():
            facts["checkpoint"] = str(self._run.path / manifest.folder)
            with contextlib.suppress(ElasticFlowError, OSError):
                facts["digest"] = digest_of(self._run, manifest)
        if told.best:
            facts["best"] = f"{told.best.metric} {told.best.value:g} at step {told.best.step}"
        self._each(lambda drawing: drawing.tell(facts))
        self._each(lambda drawing: drawing.end(state))

    def _wait(self, end_s: float) -> bool:
        deadline = time.monotonic() + end_s
        for drawing in self._drawings:
            drawing.join(max(0.0, deadline - time.monotonic()))
            if drawing.is_alive():
                drawing.problem = f"has not ended {end_s:g} s after the run; its curves may not be whole"
                self._tell(f"tracker {drawing.tracker}: {drawing.problem}")
        self._note_problems()
        return not self.problems

    def _complain(self, text: str) -> None:
        self._tell(text)
        self._note_problems()

    def _note_problems(self) -> None:
        """For who looks at the run."""
        with contextlib.suppress(OSError):
            if (found := self.problems) or self._folder.problems.exists():
                publish(self._folder.problems, found, durable=False)
