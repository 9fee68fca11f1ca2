/* What TCP alone can do: wire BYTES ROUNDS prints, for each round, the seconds that it took one process to
 * push BYTES to another on this host and to have BYTES back, and does nothing else with them.
 * wire BYTES ROUNDS BACK: BYTES go there first, and then BACK bytes come back.
 *
 * Without BACK both ways run at once, in parts of 4 MB: the other side sends a part back as soon as it has it.
 * Each way has a connection of its own, which is faster than one for both. Both sides receive into buffers that
 * they use again. Congestion control and buffers are the system's.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PART (4L << 20)
#define RING (4 * PART)

static long least(long a, long b) { return a < b ? a : b; }

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void *filled(long bytes) {
    void *memory = malloc(bytes);
    if (!memory) die("malloc");
    return memset(memory, 1, bytes);
}

/* The connections on which one receives, and sends. */
struct ways {
    int in, out;
};

static void await(struct ways ways, int in, int out) {
    struct pollfd wanted[] = {{ways.in, in ? POLLIN : 0, 0}, {ways.out, out ? POLLOUT : 0, 0}};
    if (poll(wanted, 2, -1) < 0) die("poll");
}

/* Bytes received, or sent, without waiting. */
static long take(int fd, char *into, long bytes) {
    long got = bytes ? recv(fd, into, bytes, MSG_DONTWAIT) : 0;
    if (got < 0 ? errno != EAGAIN : bytes && !got) die("recv"); /* nothing: the other side is gone */
    return got < 0 ? 0 : got;
}

static long give(int fd, const char *from, long bytes) {
    long gone = bytes ? send(fd, from, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
    if (gone < 0 && errno != EAGAIN) die("send");
    return gone < 0 ? 0 : gone;
}

static void serve(struct ways ways, long bytes, long rounds) {
    char *ring = filled(RING);
    long received = 0, sent = 0, total = bytes * rounds;
    while (sent < total) {
        long begun = received % bytes, whole = received - begun + begun / PART * PART;
        long room = least(least(sent + RING, total) - received, RING - received % RING);
        long ready = least(whole - sent, RING - sent % RING);
        long got = take(ways.in, ring + received % RING, room);
        long gone = give(ways.out, ring + sent % RING, ready);
        if (!got && !gone) await(ways, room > 0, ready > 0);
        received += got, sent += gone;
    }
}

static void exchange(struct ways ways, const char *gradients, char *part, long bytes) {
    long received = 0, sent = 0;
    while (received < bytes) {
        long gone = give(ways.out, gradients + sent, bytes - sent);
        long got = take(ways.in, part + received % PART, least(bytes - received, PART - received % PART));
        if (!got && !gone) await(ways, 1, sent < bytes);
        received += got, sent += gone;
    }
}

/* All bytes, one way. */
static void give_all(struct ways ways, const char *from, long bytes) {
    for (long sent = 0, gone; sent < bytes; sent += gone)
        if (!(gone = give(ways.out, from + sent, bytes - sent))) await(ways, 0, 1);
}

static void take_all(struct ways ways, char *into, long bytes) {
    for (long received = 0, got; received < bytes; received += got)
        if (!(got = take(ways.in, into + received, bytes - received))) await(ways, 1, 0);
}

static void answer(struct ways ways, long bytes, long back, long rounds) {
    char *question = filled(bytes), *reply = filled(back);
    while (rounds--) {
        take_all(ways, question, bytes);
        give_all(ways, reply, back);
    }
}

static int connected(int listener, const struct sockaddr_in *address) {
    int one = 1, fd = address ? socket(AF_INET, SOCK_STREAM, 0) : accept(listener, NULL, NULL);
    if (fd < 0 || (address && connect(fd, (const void *)address, sizeof *address))) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    long bytes = argc > 2 ? atol(argv[1]) : 0, rounds = argc > 2 ? atol(argv[2]) : 0;
    long back = argc > 3 ? atol(argv[3]) : 0;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct ways ways;
    if (bytes < 1 || rounds < 1) return fprintf(stderr, "usage: wire BYTES ROUNDS [BACK]\n"), 2;
    if (bind(listener, (void *)&address, size) || listen(listener, 2)) die("listen");
    if (getsockname(listener, (void *)&address, &size)) die("getsockname");
    if (!fork()) {
        ways.in = connected(listener, &address);
        ways.out = connected(listener, &address);
        back ? answer(ways, bytes, back, rounds) : serve(ways, bytes, rounds);
        return 0;
    }
    char *gradients = filled(bytes), *part = filled(back > PART ? back : PART);
    ways.out = connected(listener, NULL);
    ways.in = connected(listener, NULL);
    for (long round = 0; round < rounds; round++) {
        double since = now();
        if (back) {
            give_all(ways, gradients, bytes);
            take_all(ways, part, back);
        } else
            exchange(ways, gradients, part, bytes);
        printf("%.9f\n", now() - since);
    }
    return wait(NULL) < 0;
}
