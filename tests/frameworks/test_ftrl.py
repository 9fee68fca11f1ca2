"""FTRL beside Keras'."""

from __future__ import annotations

import numpy as np
import pytest

from elasticflow import api
from elasticflow_ps.optimizers import kernel_for

tensorflow = pytest.importorskip("elasticflow.frameworks.tensorflow")
keras = pytest.importorskip("keras")


@pytest.fixture(scope="module", autouse=True)
def threads() -> None:
    tensorflow.set_up(seed=0, threads=1)


def test_ftrl_is_keras_s_where_conventions_agree() -> None:
    """Its l2 is half of lambda_2, n begins at 0.1, and beta is added to l2."""
    rng = np.random.default_rng(6)
    params, grads = np.zeros(64, np.float32), rng.standard_normal((10, 64)).astype(np.float32)
    n = np.full_like(params, 0.1)
    theirs = keras.optimizers.Ftrl(
        learning_rate=0.1, l1_regularization_strength=0.4, l2_regularization_strength=0.15, beta=1.0
    )
    variable = keras.Variable(params)
    kernel = kernel_for(api.Ftrl(lr=0.1, l1=0.4, weight_decay=0.3))
    slots = {**kernel.new_slots(params), "n": n}
    for update, grad in enumerate(grads, 1):
        theirs.apply([keras.ops.convert_to_tensor(grad)], [variable])
        out = np.empty_like(params)
        kernel.apply(params, grad, slots, out, slots, lr=0.1, update=update)
        params = out
    assert 0 < (params == 0).sum() < params.size
    np.testing.assert_allclose(params, variable.numpy(), rtol=1e-5, atol=1e-6)
