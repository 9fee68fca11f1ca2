/* A message is sent with one call, and ZeroMQ reads its large arrays where they lie. Loaded by sending.py. */
#include <errno.h>
#include <stddef.h>
#include <string.h>

enum { DONTWAIT = 1, SNDMORE = 2 }; /* as in zmq.h */

struct frame {
    const void *at;
    size_t size;
};

/* Functions of the libzmq to which the socket belongs; zmq_msg_t takes 64 bytes. */
static struct {
    int (*init_size)(void *message, size_t size);
    int (*init_data)(void *message, void *data, size_t size, void (*free)(void *, void *), void *hint);
    void *(*data)(void *message);
    int (*send)(void *message, void *socket, int flags);
    int (*close)(void *message);
} zmq;

const char *sources(void) { return SOURCES; }

void use_zmq(void *init_size, void *init_data, void *data, void *send, void *close) {
    *(void **)&zmq.init_size = init_size, *(void **)&zmq.init_data = init_data, *(void **)&zmq.data = data;
    *(void **)&zmq.send = send, *(void **)&zmq.close = close;
}

/* Of a frame that has left, or never will. By any thread of ZeroMQ's. */
static void given_back(void *data, void *hint) {
    (void)data;
    __atomic_sub_fetch((long *)hint, 1, __ATOMIC_RELEASE);
}

static int put(void *socket, const void *at, size_t size, long *lent, int flags) {
    _Alignas(8) unsigned char message[64];
    int failed;
    if (lent) {
        __atomic_add_fetch(lent, 1, __ATOMIC_RELAXED);
        failed = zmq.init_data(message, (void *)at, size, given_back, lent);
        if (failed) given_back(NULL, lent);
    } else {
        failed = zmq.init_size(message, size);
        if (!failed && size) memcpy(zmq.data(message), at, size);
    }
    if (failed) return errno;
    do
        failed = zmq.send(message, socket, flags) < 0 ? errno : 0;
    while (failed == EINTR); /* a signal has come, and nothing was sent */
    if (failed) zmq.close(message);
    return failed;
}

/* Sends a route, if there is one, a header and frames: those of at least `least` bytes where they lie, as long
 * as `*lent`, their number, has not come down to 0. Does not wait. 0, or an error of ZeroMQ's. */
int send_message(void *socket, const char *route, size_t route_size, const char *header, size_t header_size,
                 const struct frame *frames, size_t num, size_t least, long *lent) {
    int failed = route ? put(socket, route, route_size, NULL, DONTWAIT | SNDMORE) : 0;
    if (!failed) failed = put(socket, header, header_size, NULL, DONTWAIT | (num ? SNDMORE : 0));
    for (; num && !failed; num--, frames++)
        failed = put(socket, frames->at, frames->size, frames->size < least ? NULL : lent,
                     DONTWAIT | (num > 1 ? SNDMORE : 0));
    return failed;
}
