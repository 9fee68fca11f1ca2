"""The same nights in a loop of their own, to compare: python plain.py [SEED [EPOCHS [DAYS]]]"""

import sys

import torch
from make_data import DAYS, records
from sales import BATCH, EPOCHS, LR, forward, net

MORE = 1.02  # as in compare.py


def main(seed=0, epochs=EPOCHS, days=None):
    torch.manual_seed(seed)
    good = None
    for day in DAYS[:days]:
        train, test = ([torch.from_numpy(a) for a in records(day, part)] for part in ("train", "test"))
        today = net()
        if good:
            today.load_state_dict(good.state_dict())
        optimizer = torch.optim.Adam(today.parameters(), lr=LR)
        for epoch in range(epochs):
            for rows in torch.randperm(len(train[0])).split(BATCH):
                optimizer.zero_grad()
                forward(*(column[rows] for column in train), {"net": today}).backward()
                optimizer.step()
            with torch.no_grad():
                costs = [forward(*test, {"net": each}).item() for each in (today, good or today)]
            print(f"epoch {epoch + 1}: test cost {costs[0]:.4f}")
        if costs[0] <= MORE * costs[1]:
            good = today


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*map(int, sys.argv[1:]))
