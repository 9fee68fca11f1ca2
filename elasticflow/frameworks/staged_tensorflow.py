"""TensorFlow programs in two stages: see ``elasticflow.frameworks.staged``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from elasticflow.frameworks.staged import PLACES, SHARE, THERE


def cost_of_batch(
    forward: Callable[..., Any], params: Any, own: Mapping[str, Any], whole: dict[str, Any]
) -> Any:
    """See ``staged``."""
    there, places, share = (whole.pop(name) for name in (THERE, PLACES, SHARE))
    there = there > 0
    seen = {name: tf.stop_gradient(tf.boolean_mask(tensor, there)) for name, tensor in whole.items()}
    through = {name: tensor for name, tensor in seen.items() if tensor.dtype.is_floating}
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(list(through.values()))
        cost = forward(**seen, params=params)
    # What is the program's fault is said by who asks for the cost.
    if not tf.is_tensor(cost) or cost.shape.rank != 0 or not cost.dtype.is_floating:
        return cost
    mine = tf.gather(tf.cumsum(tf.cast(there, tf.int64)) - 1, places)
    pulls = [
        tf.cast(tf.reduce_sum(tf.stop_gradient(tf.gather(gradient, mine)) * own[name]), cost.dtype)
        for name, gradient in zip(through, tape.gradient(cost, list(through.values())), strict=True)
        if gradient is not None
    ]
    if not pulls:
        return cost
    pull = tf.add_n(pulls)
    return cost + (pull - tf.stop_gradient(pull)) / tf.cast(share, cost.dtype)
