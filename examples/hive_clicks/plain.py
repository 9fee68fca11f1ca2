"""The same net in a loop of its own, to compare: python plain.py [SEED [EPOCHS]]"""

import sys
import zlib

import numpy as np
import pyarrow.dataset as ds
import torch
from clicks import FOLDER, LR, SITES, TAGS, USERS, Net

EPOCHS, BATCH = 3, 64


def read(folder, filters):
    table = ds.dataset(folder, partitioning="hive").to_table(filter=filters)
    column = {name: table.column(name).to_pylist() for name in table.column_names}
    tags = [[TAGS.index(tag) + 1 for tag in each] for each in column["tags"]]
    longest = max(map(len, tags))
    arrays = (
        np.array([SITES.index(site) + 1 for site in column["site"]]),
        np.array([zlib.crc32(user.encode()) % USERS for user in column["user"]]),
        np.array([each + [0] * (longest - len(each)) for each in tags]),
        np.array([len(each) for each in tags]),
        np.array([45 if age is None else age for age in column["age"]]),
        np.array(column["since"], "datetime64[D]").astype(np.int64),
        np.array(column["price"], np.float64),
        np.array(column["click"]),
    )
    return [torch.from_numpy(array) for array in arrays]


def cost(net, columns):
    *features, click = columns
    return torch.nn.functional.binary_cross_entropy_with_logits(net(*features), click.float())


def main(seed=0, epochs=EPOCHS):
    torch.manual_seed(seed)
    train, test = (
        read(FOLDER, filters)
        for filters in (ds.field("date") < "2026-11-20", ds.field("date") == "2026-11-20")
    )
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=LR)
    for epoch in range(epochs):
        for batch in torch.randperm(len(train[0])).split(BATCH):
            optimizer.zero_grad()
            cost(net, [column[batch] for column in train]).backward()
            optimizer.step()
        with torch.no_grad():
            print(f"epoch {epoch + 1}: test cost {cost(net, test).item():.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*map(int, sys.argv[1:]))
