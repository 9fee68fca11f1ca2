"""The same towers in a loop of their own, to compare: python plain.py [SEED [EPOCHS]]"""

import sys

import torch
from two_towers import BATCH, EPOCHS, LR, data, encode, forward, metrics, tower


def main(seed=0, epochs=EPOCHS):
    torch.manual_seed(seed)
    train, test = ({n: torch.from_numpy(c) for n, c in each.items()} for each in data().values())
    towers = torch.nn.ModuleDict({"query": tower(), "item": tower()})
    log_scale = torch.nn.Parameter(torch.tensor(2.0))
    params = {"query": towers["query"], "item": towers["item"], "log_scale": log_scale}
    optimizer = torch.optim.AdamW([*towers.parameters(), log_scale], lr=LR)
    for epoch in range(epochs):
        towers.train()
        for rows in torch.randperm(len(train["query"])).split(BATCH):
            optimizer.zero_grad()
            encoded = encode(**{name: column[rows] for name, column in train.items()}, params=params)
            forward(**encoded, params=params).backward()
            optimizer.step()
        towers.eval()
        with torch.no_grad():
            print(f"epoch {epoch + 1}: test accuracy {metrics(**test, params=params)['accuracy']:.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*map(int, sys.argv[1:]))
