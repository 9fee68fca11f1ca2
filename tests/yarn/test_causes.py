"""Skein's words for an end, in words for people."""

from __future__ import annotations

import pytest

from elasticflow.cluster.contract import How
from elasticflow.cluster.member import EXIT_ABANDONED
from elasticflow_yarn.application import Container
from elasticflow_yarn.causes import Cause, judge
from elasticflow_yarn.ending import NO_GPU, Ending

ID = "container_1795300049947_0001_01_000004"
NODE = "node1:8042"
FAILED = "Container failed during execution, see logs for more information."


def container(state: str, words: str, *, lasted_s: float = 60.0, service: str = "worker") -> Container:
    return Container(
        id=f"{service}_3",
        service=service,
        state=state,
        yarn_id=ID,
        node=NODE,
        words=words,
        started_at=1000.0,
        finished_at=1000.0 + lasted_s,
    )


def left(code: int, words: str = "", *, no_gpu: bool = False) -> Ending:
    return Ending(code, words, ID, "node1", no_gpu)


@pytest.mark.parametrize(
    ("state", "words", "cause", "how", "text"),
    [
        ("SUCCEEDED", "Completed successfully.", Cause.DONE, How.DONE, "ended on node1:8042"),
        (
            "FAILED",
            "Container preempted by scheduler",
            Cause.PREEMPTED,
            How.TAKEN,
            "was preempted on node1:8042",
        ),
        (
            "FAILED",
            "Container released on a *lost* node",
            Cause.NODE_LOST,
            How.TAKEN,
            "lost its node node1:8042",
        ),
        (
            "FAILED",
            "Container killed by YARN for exceeding memory limits. 2.1 GB of 2 GB physical memory used.",
            Cause.MEMORY,
            How.FAILED,
            "was killed by YARN on node1:8042: 2.1 GB of 2 GB physical memory used; "
            "yarn.memory gives it more",
        ),
        (
            "KILLED",
            "Killed by user request.",
            Cause.REQUESTED,
            How.TAKEN,
            "was killed on node1:8042 by somebody's request to Skein",
        ),
        (
            "FAILED",
            "\nFailed to download resource { hdfs://c/a.tar.gz }\n\tat java.lang.Thread",
            Cause.NOT_STARTED,
            How.TAKEN,
            "could not be started on node1:8042: Failed to download resource { hdfs://c/a.tar.gz }",
        ),
        (
            "FAILED",
            "Container killed by the ContainerScheduler\n",
            Cause.BY_YARN,
            How.TAKEN,
            "was ended by YARN on node1:8042: Container killed by the ContainerScheduler",
        ),
        ("FAILED", "", Cause.BY_YARN, How.TAKEN, "was ended by YARN on node1:8042: it does not say why"),
        (
            "FAILED",
            FAILED,
            Cause.SILENT,
            How.KILLED,
            "died on node1:8042 without a word; its log may tell why",
        ),
    ],
)
def test_an_end_is_told(state: str, words: str, cause: Cause, how: How, text: str) -> None:
    verdict = judge("worker-3", container(state, words))
    assert verdict.cause is cause
    assert verdict.ended == ("worker-3", how, f"{text} ({ID})")


@pytest.mark.parametrize(
    ("ending", "cause", "how", "text"),
    [
        (
            left(1, "ValueError: no such column"),
            Cause.FAILED,
            How.FAILED,
            "failed on node1:8042 with exit code 1: ValueError: no such column",
        ),
        (
            left(2),
            Cause.FAILED,
            How.FAILED,
            "failed on node1:8042 with exit code 2: it left no words",
        ),
        (left(137, "step 12"), Cause.KILLED, How.KILLED, "was killed by SIGKILL on node1:8042"),
        (
            left(EXIT_ABANDONED, "no master: silent for 60 s"),
            Cause.ABANDONED,
            How.KILLED,
            "ended on node1:8042 with exit code 75: no master: silent for 60 s",
        ),
        (
            left(NO_GPU, "all 2 GPUs of node1 are in use", no_gpu=True),
            Cause.NO_GPU,
            How.TAKEN,
            "found no free GPU on node1:8042: all 2 GPUs of node1 are in use",
        ),
    ],
)
def test_where_yarn_knows_no_more_than_that_it_failed_its_own_last_words_count(
    ending: Ending, cause: Cause, how: How, text: str
) -> None:
    verdict = judge("worker-3", container("FAILED", FAILED), ending)
    assert verdict.cause is cause
    assert verdict.ended == ("worker-3", how, f"{text} ({ID})")


def test_what_yarn_knows_counts_more_than_last_words() -> None:
    verdict = judge(
        "worker-3", container("FAILED", "Container preempted by scheduler"), left(143, "Terminated")
    )
    assert verdict.cause is Cause.PREEMPTED


def test_a_server_gets_more_memory_by_another_setting() -> None:
    words = "Container killed by YARN for exceeding memory limits"
    verdict = judge("server-0", container("FAILED", words, service="server"))
    assert verdict.ended.text == (
        f"was killed by YARN on node1:8042: it used more memory than it had asked for; yarn.server_memory "
        f"gives it more ({ID})"
    )


def test_of_one_that_hardly_ran_and_left_no_word_it_is_told_what_it_may_have_lacked() -> None:
    ended = judge("worker-3", container("FAILED", FAILED, lasted_s=2.0)).ended
    assert ended.text == (
        "died on node1:8042 without a word, 2 s after its start: the Python of yarn.python or "
        f"yarn.environment, or elasticflow in it, may be missing there; its log may tell why ({ID})"
    )


def test_last_words_of_one_of_that_name_in_an_application_of_before_are_not_its_own() -> None:
    words = Ending(1, "ValueError: no such column", "container_1_0001_01_000002", "node1")
    verdict = judge("worker-3", container("FAILED", FAILED, lasted_s=60.0), words)
    assert verdict.cause is Cause.SILENT and not verdict.blames_node
    assert "column" not in verdict.ended.text


@pytest.mark.parametrize(
    ("found", "ending", "blames"),
    [
        (container("FAILED", FAILED), left(1, "CUDA error"), True),
        (container("FAILED", FAILED), left(137), False),
        (container("FAILED", FAILED), left(NO_GPU, "in use", no_gpu=True), True),
        (container("FAILED", FAILED, lasted_s=1.0), None, True),
        (container("FAILED", FAILED, lasted_s=100.0), None, False),
        (container("FAILED", "Container released on a *lost* node"), None, False),
        (container("FAILED", "Failed to download resource x"), None, True),
    ],
)
def test_which_ends_speak_against_a_node(found: Container, ending: Ending | None, blames: bool) -> None:
    assert judge("worker-3", found, ending).blames_node is blames


def test_a_container_that_vanished_is_no_fault_of_its_own_unless_it_said_so() -> None:
    running = container("RUNNING", "")
    assert judge("worker-3", running, vanished=True).ended.how is How.TAKEN
    assert judge("worker-3", running, left(1, "KeyError: 'x'"), vanished=True).ended.how is How.FAILED
