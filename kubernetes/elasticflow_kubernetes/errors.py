"""What comes of asking an API server, whatever carries it.

    RunError
    └── KubernetesError
        ├── ApiBusy        no answer, or not now: ask again later; it may have heard
        ├── QuotaReached   a quota of the namespace: fewer Pods may do
        ├── Stale          so old a version is not remembered: list anew
        └── ApiRefused     asking again for the same is no use

Their texts hold Kubernetes' own words.
"""

from __future__ import annotations

from elasticflow.errors import RunError


class KubernetesError(RunError):
    """Kubernetes did not do what it was asked for."""


class ApiBusy(KubernetesError):
    """No answer, or not now: ask again later. It may have heard."""


class QuotaReached(KubernetesError):
    """A quota of the namespace: fewer Pods, or smaller ones, may do."""


class Stale(KubernetesError):
    """So old a version is not remembered: list anew."""


class ApiRefused(KubernetesError):
    """Asking again for the same is no use."""


def error_of(status: int, message: str) -> KubernetesError:
    """Of an answer that is none. status: HTTP's; message: the API server's, see ``metav1.Status``."""
    words = " ".join(message.split()) or f"HTTP status {status}"
    if status == 403 and "exceeded quota" in words:
        return QuotaReached(words)
    if status == 410:
        return Stale(words)
    if status in (400, 403, 404, 405, 415, 422):
        return ApiRefused(words)
    return ApiBusy(words)  # 401 too: tokens are renewed
