"""Records by SQL, of two tables that lie beside this file's run: in TABLES."""

import os

import torch

import elasticflow as ef
from gates import pass_gate

SQL = """
SELECT ids.id % 3 AS y, [ids.id / 500.0, avg(n) OVER (PARTITION BY ids.id % 7), size] AS x
FROM ids JOIN sizes ON ids.id % 5 = sizes.id
"""


def model():
    return {"net": torch.nn.Linear(3, 3), "optimizer": ef.SGD(lr=0.05)}


def learning_rate(step, epoch):
    pass_gate(f"step {step}")
    return 0.05


def forward(x, y, params):
    return torch.nn.functional.cross_entropy(params["net"](x.float()), y)


def data():
    folder = os.environ["TABLES"]
    tables = {"ids": f"{folder}/ids.parquet", "sizes": f"{folder}/sizes.csv"}
    return ef.data.Query(SQL, tables, folder=f"{folder}/{os.environ['KEPT_IN']}")
