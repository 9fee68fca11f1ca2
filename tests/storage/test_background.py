import errno
import gc
import os
import select
import subprocess
import sys
import threading
import weakref

import pytest

from elasticflow.errors import CheckpointError, ConfigError
from elasticflow.storage.background import Background

FULL = OSError(errno.ENOSPC, "No space left on device")


class Story:
    """A Background, and what it told, in order."""

    def __init__(self, patience_s=60.0, first_s=0.001):
        self.background = Background(patience_s, first_s)
        self.told = []
        self.threads = set()

    def submit(self, job, name="a"):
        self.background.submit(
            job,
            lambda result, error: self.note(name, "done", result, error),
            lambda text: self.note(name, "trouble", text),
        )

    def note(self, *what):
        self.threads.add(threading.current_thread())
        self.told.append(what)

    def run(self):
        """Until all jobs are done."""
        while self.background.busy:
            assert select.select([self.background.fd], [], [], 30)[0], "no news"
            self.background.turn()
        return self.told


@pytest.fixture
def story():
    story = Story()
    yield story
    story.background.close()


def failing(*errors, result="well"):
    """A job that raises these one after the other, then returns ``result``."""
    left = list(errors)

    def job():
        if left:
            raise left.pop(0)
        return result

    return job


def test_jobs_come_one_after_the_other_and_are_told_in_the_callers_thread(story):
    order = []
    for number in range(20):
        story.submit(lambda number=number: order.append(number) or number, name=number)
    assert story.background.busy == 20
    assert story.run() == [(number, "done", number, "") for number in range(20)]
    assert order == list(range(20))
    assert story.threads == {threading.current_thread()}


def test_trouble_is_told_once_until_it_is_another(story):
    other = OSError(errno.EIO, "Input/output error")
    story.submit(failing(FULL, FULL, FULL, other, other, FULL))
    told = [what for _, kind, what, *_ in story.run() if kind == "trouble"]
    full, io = f"OSError: {FULL}", f"OSError: {other}"
    assert told == [full, io, full, ""]
    assert story.told[-1] == ("a", "done", "well", "")


def test_nothing_is_told_where_all_is_well(story):
    story.submit(failing())
    assert story.run() == [("a", "done", "well", "")]
    assert not select.select([story.background.fd], [], [], 0)[0]
    story.background.turn()


@pytest.mark.parametrize(
    "error",
    [ConfigError("no such name"), FileExistsError(errno.EEXIST, "taken"), ValueError("bug"), KeyError("bug")],
)
def test_what_no_second_try_cures_fails_at_once(story, error):
    story.submit(failing(error))
    ((_, kind, result, text),) = story.run()
    assert (kind, result) == ("done", None)
    assert str(error) in text


def test_an_error_is_judged_by_its_cause(story):
    def raise_from(cause):
        raise CheckpointError("part.h5: failed") from cause

    story.submit(failing_first(raise_from, FULL), "full")
    story.submit(failing_first(raise_from, FileExistsError(errno.EEXIST, "taken")), "taken")
    assert story.run() == [
        ("full", "trouble", "part.h5: failed"),
        ("full", "trouble", ""),
        ("full", "done", "well", ""),
        ("taken", "done", None, "part.h5: failed"),
    ]


def failing_first(fail, cause):
    calls = []

    def job():
        calls.append(1)
        return fail(cause) if len(calls) == 1 else "well"

    return job


def test_patience_ends_and_the_next_job_has_its_own():
    story = Story(patience_s=0.0)
    story.submit(failing(FULL), "first")
    story.submit(failing(), "second")
    assert story.run() == [("first", "done", None, f"OSError: {FULL}"), ("second", "done", "well", "")]
    story.background.close()


def test_trouble_that_one_job_gave_up_on_is_taken_back_by_the_next():
    story = Story(patience_s=0.02)
    full = threading.Event()

    def job():
        if not full.is_set():
            raise FULL

    story.submit(job, "first")
    story.run()
    full.set()
    story.submit(job, "second")
    assert story.run() == [
        ("first", "trouble", f"OSError: {FULL}"),
        ("first", "done", None, f"OSError: {FULL}"),
        ("second", "trouble", ""),
        ("second", "done", None, ""),
    ]
    story.background.close()


def test_a_job_may_be_submitted_from_a_callback(story):
    story.background.submit(failing(), lambda *_: story.submit(failing(), "after"), lambda text: None)
    assert story.run() == [("after", "done", "well", "")]


def test_nothing_of_a_finished_job_is_kept(story):
    class Arrays:
        pass

    arrays = Arrays()
    gone = weakref.ref(arrays)
    story.submit(lambda arrays=arrays: None)
    story.submit(failing(FULL))
    story.run()
    del arrays
    gc.collect()
    assert gone() is None


def test_close_interrupts_a_wait_and_tells_nothing_more():
    story = Story(first_s=60.0)
    story.submit(failing(FULL))
    story.submit(failing())
    assert select.select([story.background.fd], [], [], 30)[0]
    thread = story.background._thread
    story.background.close()
    story.background.close()
    thread.join(30)
    assert not thread.is_alive()
    assert story.told == []
    with pytest.raises(RuntimeError, match="close"):
        story.submit(failing())


def test_a_job_that_ends_after_close_touches_no_descriptor_of_others():
    story = Story()
    begun, go = threading.Event(), threading.Event()
    story.submit(lambda: (begun.set(), go.wait()))
    assert begun.wait(30)
    number = story.background.fd
    story.background.close()
    reader, writer = os.pipe()  # takes the number
    assert number in (reader, writer)
    go.set()
    story.background._thread.join(30)
    assert not select.select([reader], [], [], 0)[0]
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("closed", [True, False])
def test_a_job_that_hangs_does_not_hold_up_the_end_of_the_process(closed):
    code = f"""
import os
from elasticflow.storage.background import Background
reader, writer = os.pipe()
background = Background(60.0)
begun = os.pipe()
background.submit(lambda: (os.write(begun[1], b"x"), os.read(reader, 1)), print, print)
os.read(begun[0], 1)
if {closed}:
    background.close()
print("end")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "end\n", "")
