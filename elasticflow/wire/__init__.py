"""How it travels: messages, keys, and sockets that only members of a job can use.

Control plane: CURVE (encrypted, both sides authenticated by keys made for the job).

Data plane: plain TCP, so that a gigabyte of gradients is not encrypted, but authenticated: both
sides prove in a handshake that they hold the job's data key, derive a key for this connection from
it and two fresh nonces, and from then on every header ends with a MAC (BLAKE2b, 16 bytes) over its
bytes, its direction and its place in the row of messages. So nobody without the key can join,
forge, replay, drop or reorder a message unnoticed, and nobody outside learns the key; the arrays
themselves can be read, and in flight be altered, by somebody who owns the network in between. With
``encrypt_data`` the data plane uses CURVE too, which closes that hole and costs throughput
(``python -m benchmarks seal`` tells how much either costs).

A message is looked at only when all of it is in memory, so somebody must decide before that who may
send any. Under CURVE the handshake does. On the plain data plane ZeroMQ's PLAIN does: a password,
made from the data key, before the first message. It goes over the wire as it is, so it keeps out those
who can reach the port, not those who can listen on the network; all that the latter gain is what it
guards, which is memory: to be believed they still need the seal. The process itself decides who
passes (``admit_only_members``), and without that nobody does.

What strangers can take: a connection, for ``HANDSHAKE_MS``, in which one frame of at most
``CONTROL_BYTES`` or ``DATA_BYTES`` may arrive.
"""
