import pytest

from tests.storage_contract import *  # noqa: F403

pytestmark = pytest.mark.hdfs
