"""The same net in a loop of its own, to compare: python plain.py [SEED [EPOCHS]]"""

import sys

import torch
from texts import BATCH, EPOCHS, LR, TRAIN, Reader, texts
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence


def main(seed=0, epochs=EPOCHS):
    torch.manual_seed(seed)
    text, language = texts()
    records = list(zip(map(torch.from_numpy, text), language.tolist(), strict=True))
    train = torch.utils.data.DataLoader(records[:TRAIN], BATCH, shuffle=True, collate_fn=collate)
    test = torch.utils.data.DataLoader(records[TRAIN:], BATCH, collate_fn=collate)
    net = Reader()
    optimizer = torch.optim.Adam(net.parameters(), lr=LR)
    for epoch in range(epochs):
        for text, lengths, language in train:
            optimizer.zero_grad()
            F.cross_entropy(net(text, lengths), language).backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
        with torch.no_grad():
            hits = [
                (net(text, lengths).argmax(1) == language).sum().item() for text, lengths, language in test
            ]
        print(f"epoch {epoch + 1}: test accuracy {sum(hits) / len(records[TRAIN:]):.4f}")


def collate(records):
    text, language = zip(*records, strict=True)
    return pad_sequence(text, batch_first=True), torch.tensor([len(t) for t in text]), torch.tensor(language)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*map(int, sys.argv[1:]))
