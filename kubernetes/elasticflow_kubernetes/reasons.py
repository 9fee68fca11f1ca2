"""Why a Pod waits, or is over: Kubernetes' words in words for people. Pure."""

from __future__ import annotations

import re

from elasticflow.cluster.contract import Ended, How
from elasticflow.cluster.member import EXIT_ABANDONED
from elasticflow.process.ending import signal_name
from elasticflow_kubernetes.pods import GATED, LOST, STARTING, TAKEN_BACK, TERMINATING, WAITING, Pod

_TAKEN_BY = {
    "PreemptionByScheduler": "was preempted{on}: a Pod of higher priority has its place",
    "DeletionByTaintManager": "lost its node{at}, which does not answer, or was tainted",
    "EvictionByEvictionAPI": "was evicted{on}: its node is being drained",
    "DeletionByPodGC": "lost its node{at}, which is gone",
    "TerminationByKubelet": "was ended by its node{at}: {message}",
    TAKEN_BACK: "was taken back{on} by its queue: {message}",
}
"""By its disruption."""
_NOT_ADMITTED = ("OutOf", "UnexpectedAdmissionError", "NodeAffinity", "NodeNotReady", "AppArmor", "Sysctl")
"""How reasons begin for which a kubelet did not take what the scheduler gave it."""
_NEVER_STARTS = frozenset(
    "ErrImagePull ImagePullBackOff ErrImageNeverPull InvalidImageName CreateContainerConfigError "
    "CreateContainerError RunContainerError StartError ContainerCannotRun".split()
)
_OF_QUEUE = re.compile(r"couldn't assign flavors to pod set \S+: | \(UID: [^)]*\)|; preemptor path: .*")
"""What of Kueue's words tells nothing to people."""
_OF_NODES = re.compile(r"(\d+)/(\d+) nodes are available: (.*?)\.(?: .*)?$")


def launch_failure(pod: Pod) -> str:
    """Why nothing could be started in its place, with what is likely; "": something could."""
    if pod.reason in _NEVER_STARTS and (pod.over or pod.state == STARTING):
        told = f": {pod.message}" if pod.message else ""
        return f"its container cannot be started{_on(pod)}: {pod.reason}{told}"
    if pod.state == "Failed" and pod.reason.startswith(_NOT_ADMITTED):
        return f"its node{_at(pod)} did not take it: {pod.reason}: {pod.message}"
    return ""


def blames_node(pod: Pod) -> bool:
    """Whether it failed by an error of its own, which may be its node's."""
    return pod.state == "Failed" and ending("", pod, "").how is How.FAILED and pod.reason != "OOMKilled"


def ending(name: str, pod: Pod, memory: str) -> Ended:
    """What its end means. memory: what it was given, for people."""
    on, code = _on(pod), pod.exit_code
    if pod.state == "Succeeded":
        return Ended(name, How.DONE, f"ended{on}")
    if pod.disruption in _TAKEN_BY:
        return Ended(name, How.TAKEN, _words(pod))
    if failure := launch_failure(pod):
        return Ended(name, How.TAKEN, failure)
    if pod.state == LOST:
        return Ended(name, How.TAKEN, f"lost its node{_at(pod)}: that does not say that it has ended")
    if pod.reason == "OOMKilled":
        given = f" ({memory})" if memory else ""
        text = f"was killed{on}: it used more memory than it is given{given}; kubernetes.memory gives it more"
        return Ended(name, How.FAILED, text)
    if code is None:  # the kubelet ended the Pod itself: Evicted, NodeShutdown, Terminated
        told = ": ".join(text for text in (pod.reason, pod.message) if text) or "nobody says why"
        return Ended(name, How.TAKEN, f"was ended{on}: {told}")
    if code == EXIT_ABANDONED:
        return Ended(
            name, How.KILLED, f"ended{on} with exit code {code}: it heard nothing of a master any more"
        )
    if code > 128:
        return Ended(
            name, How.KILLED, f"was killed{on} by {signal_name(code - 128) or f'signal {code - 128}'}"
        )
    return Ended(name, How.FAILED, f"failed{on} with exit code {code}; its log tells why")


def forgotten(name: str, pod: Pod | None, id: str) -> Ended:
    """Of one that is not shown any more. pod: as it was last seen."""
    if pod is not None and pod.disruption in _TAKEN_BY:
        return Ended(name, How.TAKEN, _words(pod))
    if pod is not None and pod.state == TERMINATING:
        return Ended(name, How.TAKEN, f"was deleted{_on(pod)}: somebody has removed Pod {id}")
    return Ended(
        name, How.TAKEN, f"is gone{_on(pod) if pod else ''}: Kubernetes does not know Pod {id} any more"
    )


def waiting(pods: list[Pod]) -> str:
    """Why these wait."""
    who = f"{len(pods)} Pod{'s' * (len(pods) != 1)} wait{'s' * (len(pods) == 1)} for a place"
    if pods and all(pod.reason == GATED for pod in pods):
        if held := next((pod.held for pod in pods if pod.held), ""):
            return f"{who} in {'its' if len(pods) == 1 else 'their'} queue: {held}"
        return f"{who}: nobody has admitted {'it' if len(pods) == 1 else 'them'} yet (scheduling gates)"
    told = next((pod.message for pod in pods if pod.message and pod.reason != GATED), "")
    if not told:
        return who
    if not (found := _OF_NODES.match(told)):
        return f"{who}: {told}"
    free, nodes, why = found.groups()
    return f"{who}: {free} of {nodes} nodes {'has' if free == '1' else 'have'} one ({why})"


def beginning(pods: list[Pod]) -> str:
    """What a leader waits for. pods: its own that are not over."""
    if not pods:
        return "waits for its Pod to be made"
    if waits := [pod for pod in pods if pod.state in WAITING]:
        return waiting(waits)
    pod = pods[0]
    return launch_failure(pod) or f"Pod {pod.id} starts{_on(pod)}"


def suspended(held: str) -> str:
    """What a leader waits for whose Job is. held: why its queue does not admit it, if that is known."""
    return f"waits for a place in its queue: {held}" if held else "its Job is suspended: nobody has let it in"


def of_queue(message: str) -> str:
    """Kueue's words, for people."""
    return " ".join(_OF_QUEUE.sub("", message).split())


def _words(pod: Pod) -> str:
    message = of_queue(pod.message) or "nobody says why"
    return _TAKEN_BY[pod.disruption].format(on=_on(pod), at=_at(pod), message=message)


def _on(pod: Pod) -> str:
    return f" on {pod.node}" if pod.node else ""


def _at(pod: Pod) -> str:
    return f" {pod.node}" if pod.node else ""
