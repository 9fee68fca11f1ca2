"""How it travels: messages, keys, and sockets that only members of a job can use.

Each member has a key of its own (``keys.py``), and its name is what it can prove.

Control plane: CURVE (encrypted; the master proved by its key, members let in by one made for the job),
and each message is signed by the key of the member that it names. Whoever signs for another, or says what
its role does not, is dropped, counted and told on.

Data plane: plain TCP, so that a gigabyte of gradients is not encrypted, but authenticated. The master
gives each member a *pass* for each server and generation, which that server can make as well, and nobody
else. In a handshake both sides prove that they have it, derive a key for this connection from it and two
fresh nonces, and from then on every header ends with a MAC (BLAKE2b, 16 bytes) over its bytes, its
direction and its place in the row of messages. So nobody can come in another's name, or answer for
another server, and nobody can forge, replay, drop or reorder a message unnoticed. Between hosts the header
has a GMAC of each array as well: arrays can be read by somebody who owns the network in between, and not be
altered. With ``encrypt_data`` headers and arrays are encrypted by AES-GCM, with a key of a Diffie-Hellman
exchange (``seal.py``; ``python -m benchmarks seal`` tells how much either costs).

A message is looked at only when all of it is in memory, so somebody must decide before that who may send
any. Under CURVE the handshake does. On the data plane ZeroMQ's PLAIN does: a password, made from the
pass, before the first message. It goes over the wire as it is, so it keeps out those who can reach the
port, not those who can listen on the network; all that the latter gain is what it guards, which is
memory: to be believed they still need the seal. The process itself decides who passes
(``admit_only_members``), and without that nobody does.

What strangers can take: a connection, for ``HANDSHAKE_MS``, in which one frame of at most
``CONTROL_BYTES`` or ``DATA_BYTES`` may arrive.
"""
