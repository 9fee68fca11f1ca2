import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.errors import CheckpointError, ConfigError
from elasticflow.process.retry import Backoff, is_curable


def test_delays_grow_up_to_the_most_and_the_last_try_is_at_the_end():
    backoff = Backoff(first_s=0.5, factor=2, most_s=30, patience_s=100)
    now_s, delays = 0.0, []
    while (delay_s := backoff.delay_s(now_s, len(delays) + 1)) is not None:
        delays.append(delay_s)
        now_s += delay_s
    assert delays == [0.5, 1, 2, 4, 8, 16, 30, 30, 8.5]


@given(st.floats(0, 1e9), st.integers(1, 10**9), st.floats(0, 1e9))
def test_no_try_after_the_patience(passed_s, failures, patience_s):
    delay_s = Backoff(patience_s=patience_s).delay_s(passed_s, failures)
    if delay_s is None:
        assert passed_s >= patience_s
    else:
        assert 0 < delay_s <= 30


def raised(error, cause=None):
    try:
        raise error from cause
    except Exception as caught:  # noqa: BLE001  (whichever the case raises)
        return caught


@pytest.mark.parametrize(
    ("error", "curable"),
    [
        (OSError(errno.EROFS, "read-only"), True),
        (FileNotFoundError(errno.ENOENT, "gone"), True),
        (FileExistsError(errno.EEXIST, "taken"), False),
        (MemoryError(), True),
        (ConfigError("wrong"), False),
        (RuntimeError("bug"), False),
        (CheckpointError("8 bytes, its server wrote 9"), True),
        (raised(CheckpointError("full"), OSError(errno.ENOSPC, "full")), True),
        (raised(CheckpointError("taken"), FileExistsError(errno.EEXIST, "taken")), False),
        (raised(CheckpointError("damaged"), ValueError("SHA-256")), False),
    ],
)
def test_what_a_second_try_may_cure(error, curable):
    assert is_curable(error) is curable
