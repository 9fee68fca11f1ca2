"""A net whose gradients are larger than what a connection holds.

With EARLY in a worker that uses memory again before it is sent: it believes the tracker of a message's last
frame, which is small. EARLY=twice: it writes there itself, which an allocator does only now and then.
"""

import os

import numpy as np
import torch
import zmq

import elasticflow as ef
from elasticflow.wire import data, router, sending

LENT = []


def _send_and_forget(socket, head, arrays):
    if os.environ["EARLY"] == "twice":
        while LENT:
            LENT.pop()[:1] = 0.5
        LENT.extend(array.ravel() for array in arrays if array.dtype == np.float32 and array.flags.writeable)
    if not arrays:
        socket.send_multipart(head, zmq.NOBLOCK)
        return None
    frames = [memoryview(array.reshape(-1).view(np.uint8)) for array in arrays]
    large = any(frame.nbytes >= sending.COPY_BELOW_BYTES for frame in frames)
    return socket.send_multipart([*head, *frames], zmq.NOBLOCK, copy=not large, track=large)


if os.environ.get("EARLY"):
    data.send_frames = router.send_frames = _send_and_forget


def model():
    net = torch.nn.Sequential(
        torch.nn.Linear(512, 2048), torch.nn.BatchNorm1d(2048), torch.nn.ReLU(), torch.nn.Linear(2048, 3)
    )
    return {"net": net, "optimizer": ef.SGD(lr=0.01, momentum=0.9)}


def forward(x, y, params):
    return torch.nn.functional.cross_entropy(params["net"](x), y)


def data():
    rng = np.random.default_rng(7)
    return ef.data.Arrays(x=rng.normal(size=(640, 512)).astype(np.float32), y=rng.integers(0, 3, 640))
