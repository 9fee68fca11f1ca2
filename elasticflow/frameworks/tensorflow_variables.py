"""A TensorFlow model's variables: what a slice makes of them is told, and put back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from elasticflow.step.layout import Array, Entry, Layout, Rule


class ModelVariables:
    """``pairs``: each with its entry of the layout. seeds: states of Keras's generators of random numbers.

    frozen: variables that are not trained, by name. ``names``: of the parameters, by their numbers.
    """

    def __init__(
        self,
        layout: Layout,
        entries: Sequence[Entry],
        variables: Sequence[tf.Variable],
        seeds: Sequence[tf.Variable],
        frozen: Mapping[str, tf.Variable],
    ) -> None:
        self.pairs = list(zip(entries, variables, strict=True))
        self.names = [entry.name for entry in entries if entry.rule is Rule.UPDATE]
        self._layout, self._seeds, self._frozen = layout, seeds, frozen
        self._leaves = [variable for entry, variable in self.pairs if entry.rule is Rule.UPDATE]

    @property
    def kept(self) -> dict[str, tf.Variable]:
        """Those that a loop of the program's own keeps, by name."""
        return {entry.name: variable for entry, variable in self.pairs if entry.rule is Rule.KEPT}

    def frozen(self) -> dict[str, Array]:
        return {name: variable.numpy() for name, variable in self._frozen.items()}

    def leaves(self, numbers: Collection[int]) -> list[tf.Variable]:
        """Parameters, in the order of their numbers."""
        return [self._leaves[number] for number in sorted(numbers)]

    def assign(self, groups: Sequence[tf.Tensor]) -> None:
        """A version's values, by group of the layout."""
        for entry, variable in self.pairs:
            if entry.rule is Rule.KEPT:  # what the loop makes of it is not the version's yet
                continue
            group, start = self._layout.places[entry.name]
            variable.assign(tf.reshape(groups[group][start : start + entry.size], entry.shape))

    # --- a slice ---------------------------------------------------------------------------------

    def seed(self, seed: int) -> None:
        """Sets the generators, outside of a graph."""
        self.set_seeds(tf.constant(states_of(seed, len(self._seeds)), tf.int64))

    def set_seeds(self, seeds: Any) -> None:
        for number, variable in enumerate(self._seeds):
            variable.assign(tf.cast(seeds[number], variable.dtype))

    def read(self) -> list[Any]:
        """What they hold."""
        return [variable.read_value() for _, variable in self.pairs]

    def put_back(self, values: Sequence[Any]) -> None:
        """What was read before."""
        for (_, variable), value in zip(self.pairs, values, strict=True):
            variable.assign(value)

    def changes(self, before: Sequence[Any], weight: Any) -> list[Any]:
        """What became of buffers that are averaged since they were read."""
        return [
            _change(old, variable.read_value(), weight)
            for (entry, variable), old in zip(self.pairs, before, strict=True)
            if entry.rule is Rule.MEAN
        ]

    def counters(self) -> list[Any]:
        return [variable.read_value() for entry, variable in self.pairs if entry.rule is Rule.FIRST]


def states_of(seed: int, number: int) -> Any:
    """Of so many generators."""
    return np.random.SeedSequence(seed).generate_state(2 * number).reshape(-1, 2)


def _change(old: Any, new: Any, weight: Any) -> Any:
    """A constant buffer, an infinite one too, changes by exactly 0."""
    return tf.where(old == new, tf.zeros_like(old), new - old) * tf.cast(weight, old.dtype)
