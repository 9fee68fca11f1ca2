"""Python runs this at each start while PYTHONPATH leads here: who is in a run reaches servers by a relay.

So members run as they always do; what differs is one option of the sockets with which they connect.
"""

import os

import zmq

AT = os.environ.get("ELASTICFLOW_TEST_RELAY")


def lead_through(relay):
    """Data links of this process, and of those that it forks, are made by a SOCKS proxy from now on."""
    from elasticflow.process.fingerprint import one_thread

    with one_thread():  # as the product does where it forks
        from elasticflow.wire import data
    original = data.new_data_socket

    def new_data_socket(context, kind):
        socket = original(context, kind)
        if kind == zmq.DEALER:
            socket.socks_proxy = relay.encode()
        return socket

    data.new_data_socket = new_data_socket


if AT:
    lead_through(AT)
