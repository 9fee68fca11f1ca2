"""Records of a table that grows meanwhile: in TABLE, of Delta Lake, or of Iceberg if that is its metadata."""

import os

import torch

import elasticflow as ef
from gates import pass_gate


def model():
    return {"net": torch.nn.Linear(2, 3), "optimizer": ef.Adam(lr=0.05)}


def learning_rate(step, epoch):
    pass_gate(f"step {step}")
    return 0.05


def forward(x, id, params):
    return torch.nn.functional.cross_entropy(params["net"](x / 100.0), id % 3)


def predict(x, params):
    return params["net"](x / 100.0)


def data():
    table, names = os.environ["TABLE"], {"x": ["age", "id"], "id": "id"}
    if "VERSION" in os.environ:
        return ef.data.Delta(table, names, version=int(os.environ["VERSION"]))
    if table.endswith(".json"):
        return ef.data.Iceberg(table, names)
    return ef.data.Delta(table, names)
