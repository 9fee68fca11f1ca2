"""Nested records, such as a tuple of dicts, as columns by name, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Leaf(NamedTuple):
    """Stands in a nest where a column was."""

    column: str


def flat(name: str, value: Any) -> tuple[dict[str, Any], Any]:
    """Columns by name, and the nest with a ``Leaf`` in the place of each. None is no column, and stays."""
    if value is None:
        return {}, None
    if isinstance(value, Mapping):
        parts = {key: flat(f"{name}_{key}", each) for key, each in value.items()}
        nest: Any = {key: part for key, (_, part) in parts.items()}
        found = [columns for columns, _ in parts.values()]
    elif isinstance(value, (tuple, list)):
        listed = [flat(f"{name}_{place}", each) for place, each in enumerate(value)]
        nest = [part for _, part in listed]
        nest = type(value)(*nest) if hasattr(value, "_fields") else type(value)(nest)
        found = [columns for columns, _ in listed]
    else:
        return {name: value}, Leaf(name)
    return {column: each for columns in found for column, each in columns.items()}, nest


def rebuilt(nest: Any, columns: Mapping[str, Any]) -> Any:
    """The nest, with columns in their places."""
    if isinstance(nest, Leaf):
        return columns[nest.column]
    if isinstance(nest, Mapping):
        return {key: rebuilt(each, columns) for key, each in nest.items()}
    if isinstance(nest, (tuple, list)):
        parts = [rebuilt(each, columns) for each in nest]
        return type(nest)(*parts) if hasattr(nest, "_fields") else type(nest)(parts)
    return nest
