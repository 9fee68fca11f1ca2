"""The same net in a loop of its own, to compare: python plain.py [SEED [EPOCHS]]"""

import copy
import sys

import torch
from imbalanced import BATCH, DECAY, EPOCHS, LR, PATIENCE, data, net
from sklearn.metrics import roc_auc_score
from torch.nn import functional as F


def main(seed=0, epochs=EPOCHS):
    torch.manual_seed(seed)
    train, test = ([torch.from_numpy(column) for column in each.values()] for each in data().values())
    scores = net()
    optimizer = torch.optim.AdamW(scores.parameters(), lr=LR, weight_decay=DECAY)
    best, waited = 0.0, 0
    for epoch in range(epochs):
        scores.train()
        for rows in torch.randperm(len(train[0])).split(BATCH):
            x, y, weight = (column[rows] for column in train)
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(scores(x), y, weight).backward()
            optimizer.step()
        scores.eval()
        with torch.no_grad():
            x, y, _ = test
            auc = roc_auc_score(y.numpy(), scores(x).numpy())
        print(f"epoch {epoch + 1}: test auc {auc:.4f}")
        waited += 1
        if auc > best:
            best, waited, kept = auc, 0, copy.deepcopy(scores.state_dict())
        if waited == PATIENCE:
            break
    scores.load_state_dict(kept)
    print(f"best: auc {best:.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*map(int, sys.argv[1:]))
