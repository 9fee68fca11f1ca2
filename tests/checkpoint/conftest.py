import pytest
from saving import Model, make_model

from elasticflow.storage import DirectoryStorage


@pytest.fixture
def storage(tmp_path) -> DirectoryStorage:
    root = tmp_path / "storage"
    root.mkdir()
    return DirectoryStorage(root)


@pytest.fixture
def model() -> Model:
    return make_model()
