"""The same in a loop of its own, to compare: python plain.py [SEED [EPOCHS]]"""

import sys

import torch
from finetune import BATCH, EPOCHS, LR, LR_BODY, THAWS, data, prepared
from torch.nn import functional as F


def main(seed=0, epochs=EPOCHS):
    torch.manual_seed(seed)
    train, test = (
        {name: torch.from_numpy(column) for name, column in each.items()} for each in data().values()
    )
    body, head = prepared()
    late = [body[int(layer)] for layer in THAWS]
    groups = [{"params": head.parameters()}, *({"params": each.parameters(), "lr": LR_BODY} for each in late)]
    optimizer = torch.optim.AdamW(groups, lr=LR)
    for epoch in range(epochs):
        for layer, since in THAWS.items():
            body[int(layer)].requires_grad_(epoch >= since)
        for rows in torch.randperm(len(train["y"])).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(head(body(train["x"][rows])), train["y"][rows]).backward()
            optimizer.step()
        with torch.no_grad():
            hits = head(body(test["x"])).argmax(1) == test["y"]
        print(f"epoch {epoch + 1}: test accuracy {hits.float().mean().item():.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*map(int, sys.argv[1:]))
