import pytest
from saving import Model, make_model

from elasticflow.storage import DirectoryStorage


@pytest.fixture
def storage(tmp_path) -> DirectoryStorage:
    return DirectoryStorage(tmp_path / "storage")


@pytest.fixture
def model() -> Model:
    return make_model()
