/* The updates of optimizers.py in one pass over memory, and the threads that share a large one.

Bits: elements are only added, subtracted, multiplied, divided and compared, and their square roots taken, in
the order in which optimizers.py does it with NumPy. Compiled without fused multiply-adds, each result is the
one that IEEE 754 prescribes, whatever the width of the vectors, the alignment, or the number of threads.

The second half of this file is compiled twice, for each kind of number: the first half includes it. */

#ifndef REAL

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || \
    FLT_EVAL_METHOD != 0
#error "results would not be those of IEEE 754: servers use NumPy instead"
#endif

#include "vectors.h"

enum {
    LINE_BYTES = 64,
    LARGE_BYTES = 1 << 20,   /* of parameters: will not stay in cache, and are worth waking threads for */
    PIECE_BYTES = 128 << 10, /* of parameters: what a thread takes at a time */
    BLOCK_BYTES = 256,       /* what is worked out before it is written past the caches */
    AHEAD_BYTES = 768,       /* so far ahead of it memory is asked for */
    PIECE_SUMS = 4096,       /* of the sums of squares: likewise */
    LANES = 16,              /* sums that go on side by side */
};

/* --- threads ------------------------------------------------------------------------------------ */

/* Does the elements start..stop of a job. */
typedef void Range(const void *job, size_t start, size_t stop);

/* Of one job at a time; ``busy`` is held by who gave it. A child has no threads after a fork: there the
caller does all the pieces itself. */
static struct {
    pthread_mutex_t busy, lock;
    pthread_cond_t begun, ended;
    _Atomic long threads;
    long started;
    Range *range;
    const void *job;
    size_t next, stop, piece, running;
} pool = {
    .busy = PTHREAD_MUTEX_INITIALIZER,
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .begun = PTHREAD_COND_INITIALIZER,
    .ended = PTHREAD_COND_INITIALIZER,
    .threads = 1,
    .started = 1,
};

/* Does pieces as long as there are any. With ``lock`` held, but for the work. */
static void take_pieces(void)
{
    while (pool.next < pool.stop) {
        Range *range = pool.range;
        const void *job = pool.job;
        const size_t start = pool.next, left = pool.stop - start;
        const size_t stop = start + (left > pool.piece ? pool.piece : left);
        pool.next = stop;
        pool.running++;
        pthread_mutex_unlock(&pool.lock);
        range(job, start, stop);
        pthread_mutex_lock(&pool.lock);
        if (--pool.running == 0 && pool.next == pool.stop)
            pthread_cond_signal(&pool.ended);
    }
}

static void *help(void *number)
{
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        if ((intptr_t)number < pool.threads)
            take_pieces();
        pthread_cond_wait(&pool.begun, &pool.lock);
    }
    return NULL;
}

/* A child would get them locked for ever, by a thread that it has not got. In the order in which ``share``
takes them. */
static void before_fork(void)
{
    pthread_mutex_lock(&pool.busy);
    pthread_mutex_lock(&pool.lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&pool.lock);
    pthread_mutex_unlock(&pool.busy);
}

/* A digest of the sources of this library: see compiled.py. */
const char *sources(void) { return SOURCES; }

/* Updates from now on are shared by so many threads, the caller included; or by fewer, if no more could be
started: returns how many. */
long set_threads(long threads)
{
    static int told_of_forks;
    pthread_mutex_lock(&pool.lock);
    if (!told_of_forks && threads > 1)
        told_of_forks = pthread_atfork(before_fork, after_fork, after_fork) == 0;
    for (pthread_t id; pool.started < threads; pool.started++) {
        if (pthread_create(&id, NULL, help, (void *)(intptr_t)pool.started) != 0)
            break;
        pthread_detach(id);
    }
    pool.threads = threads < pool.started ? threads : pool.started;
    pthread_mutex_unlock(&pool.lock);
    return pool.threads;
}

/* Does the elements 0..n of a job in pieces; alone and in one, if somebody else has the pool. */
static void share(Range *range, const void *job, size_t n, size_t piece)
{
    if (n <= piece || pool.threads < 2 || pthread_mutex_trylock(&pool.busy) != 0) {
        range(job, 0, n);
        return;
    }
    pthread_mutex_lock(&pool.lock);
    pool.range = range, pool.job = job, pool.next = 0, pool.stop = n, pool.piece = piece;
    pthread_cond_broadcast(&pool.begun);
    take_pieces();
    while (pool.running > 0)
        pthread_cond_wait(&pool.ended, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
    pthread_mutex_unlock(&pool.busy);
}

typedef struct {
    char *to;
    const char *from;
} Copy;

static void copy_range(const void *job, size_t start, size_t stop)
{
    const Copy *copy = job;
    memcpy(copy->to + start, copy->from + start, stop - start);
}

/* As memcpy, by all threads. */
void copy_bytes(void *to, const void *from, size_t n)
{
    const Copy job = {to, from};
    share(copy_range, &job, n, LARGE_BYTES);
}

/* Every `stride` bytes, `size` of them, one after the other. */
void gather_windows(char *to, const char *from, size_t stride, size_t size, size_t num)
{
    for (; num; num--, to += size, from += stride)
        memcpy(to, from, size);
}

/* --- writing past the caches -------------------------------------------------------------------- */

/* Otherwise memory is first read into the cache, to be overwritten there: a fourth stream to SGD's three. */
#ifdef __SSE2__
#include <emmintrin.h>

INLINE int may_stream(const void *to) { return (uintptr_t)to % LINE_BYTES == 0; }

INLINE void stream_block(void *to, const void *from)
{
    for (size_t i = 0; i < BLOCK_BYTES / sizeof(__m128i); i++)
        _mm_stream_si128((__m128i *)to + i, _mm_load_si128((const __m128i *)from + i));
}

INLINE void end_stream(void) { _mm_sfence(); }
#else
INLINE int may_stream(const void *to) { return (void)to, 0; }
INLINE void stream_block(void *to, const void *from) { memcpy(to, from, BLOCK_BYTES); }
INLINE void end_stream(void) {}
#endif

/* --- for each kind of number -------------------------------------------------------------------- */

/* Arrays that arrived in a message may lie at any address. */
typedef float float32 __attribute__((aligned(1), may_alias));
typedef double float64 __attribute__((aligned(1), may_alias));

#define JOIN(a, b) a##_##b
#define JOINED(a, b) JOIN(a, b)
#define NAME(name) JOINED(name, REAL)

#define REAL float32
#define PLAIN float
#define SQRT sqrtf
#include "native.c"
#undef REAL
#undef PLAIN
#undef SQRT
#define REAL float64
#define PLAIN double
#define SQRT sqrt
#include "native.c"

#else /* REAL: the second half */

/* One span, and the numbers of its update: as native.py packs it, see ``Kernel.numbers``; ``constants`` are those
of the rule. An array of ``after`` may be the one of ``before``. ``spoiled`` is for the threads that do
the work: set if they find a parameter that is no number any more. */
typedef struct {
    const REAL *params, *grad;
    REAL *out;
    const REAL *before[3];
    REAL *after[3];
    double factor, decay, shrink, bound, constants[8];
    int *spoiled;
} NAME(Update);

/* For native.py, to know whether this was compiled from the same source. */
size_t NAME(update_bytes)(void) { return sizeof(NAME(Update)); }

INLINE REAL NAME(gradient)(NAME(Update) u, size_t i)
{
    REAL grad = u.grad[i] * (REAL)u.factor;
    if (u.bound < (double)INFINITY)
        grad = grad > (REAL)u.bound ? (REAL)u.bound : grad < -(REAL)u.bound ? -(REAL)u.bound : grad; /* NaN too */
    return u.decay != 0 ? grad + u.params[i] * (REAL)u.decay : grad;
}

INLINE REAL NAME(moved)(NAME(Update) u, size_t i, REAL step) { return u.params[i] * (REAL)u.shrink - step; }

INLINE void NAME(sgd_block)(NAME(Update) u, size_t n)
{
    const REAL rate = u.constants[0];
    EACH(i, n) u.out[i] = NAME(moved)(u, i, NAME(gradient)(u, i) * rate);
}

INLINE void NAME(momentum_block)(NAME(Update) u, size_t n)
{
    const REAL rate = u.constants[0], momentum = u.constants[1], intake = u.constants[2];
    const REAL newest = u.constants[5];
    const int nesterov = u.constants[3] != 0, first = u.constants[4] != 0;
    EACH(i, n)
    {
        const REAL grad = NAME(gradient)(u, i);
        const REAL buffer = first ? grad : u.before[0][i] * momentum + grad * intake;
        u.after[0][i] = buffer;
        u.out[i] = NAME(moved)(u, i, (nesterov ? grad * newest + buffer * momentum : buffer) * rate);
    }
}

/* torch.lerp rounds 1 - intake first, and starts from the nearer end. */
INLINE REAL NAME(lerp)(REAL from, REAL to, REAL intake)
{
    const REAL keep = 1 - (double)intake;
    return intake < 0.5 ? from + (to - from) * intake : to - (to - from) * keep;
}

INLINE void NAME(any_adam)(NAME(Update) u, size_t n, int amsgrad)
{
    const REAL rate = u.constants[0], eps = u.constants[1];
    const REAL intake1 = u.constants[2], intake2 = u.constants[3], keep2 = u.constants[4];
    EACH(i, n)
    {
        const REAL grad = NAME(gradient)(u, i), mean = NAME(lerp)(u.before[0][i], grad, intake1);
        const REAL square = u.before[1][i] * keep2 + grad * grad * intake2;
        REAL largest = square;
        u.after[0][i] = mean;
        u.after[1][i] = square;
        if (amsgrad) {
            const REAL before = u.before[2][i];
            largest = before >= square || before != before ? before : square; /* passes NaN on */
            u.after[2][i] = largest;
        }
        u.out[i] = NAME(moved)(u, i, mean / (SQRT(largest) + eps) * rate);
    }
}

INLINE void NAME(adam_block)(NAME(Update) u, size_t n) { NAME(any_adam)(u, n, 0); }
INLINE void NAME(amsgrad_block)(NAME(Update) u, size_t n) { NAME(any_adam)(u, n, 1); }

INLINE void NAME(adagrad_block)(NAME(Update) u, size_t n)
{
    const REAL rate = u.constants[0], inside = u.constants[1], eps = u.constants[2];
    EACH(i, n)
    {
        const REAL grad = NAME(gradient)(u, i), sum = u.before[0][i] + grad * grad;
        u.after[0][i] = sum;
        u.out[i] = NAME(moved)(u, i, grad / (SQRT(sum + inside) + eps) * rate);
    }
}

INLINE void NAME(ftrl_block)(NAME(Update) u, size_t n)
{
    const REAL inverse = u.constants[0], least = u.constants[1], l1 = u.constants[2];
    EACH(i, n)
    {
        const REAL grad = NAME(gradient)(u, i), before = u.before[0][i], after = before + grad * grad;
        const REAL root = SQRT(after), sigma = (root - SQRT(before)) * inverse;
        const REAL z = u.before[1][i] + grad - sigma * u.params[i];
        const REAL beyond = z - (z > l1 ? l1 : z < -l1 ? -l1 : z); /* passes NaN on */
        u.after[0][i] = after;
        u.after[1][i] = z;
        u.out[i] = NAME(moved)(u, i, beyond != 0 ? beyond / (root * inverse + least) : 0);
    }
}

INLINE void NAME(any_rmsprop)(NAME(Update) u, size_t n, int centered, int momentum)
{
    const REAL keep = u.constants[0], intake = u.constants[1], inside = u.constants[2], eps = u.constants[3];
    const REAL keep_buffer = u.constants[4], kept_rate = u.constants[5], rate = u.constants[6];
    EACH(i, n)
    {
        const REAL grad = NAME(gradient)(u, i), square = u.before[0][i] * keep + grad * grad * intake;
        REAL spread = square;
        u.after[0][i] = square;
        if (centered) {
            const REAL mean = NAME(lerp)(u.before[1][i], grad, intake);
            u.after[1][i] = mean;
            spread = square - mean * mean;
        }
        REAL step = grad / (SQRT(spread + inside) + eps);
        if (momentum) {
            step = u.before[1 + centered][i] * keep_buffer + step * kept_rate;
            u.after[1 + centered][i] = step;
        }
        u.out[i] = NAME(moved)(u, i, step * rate);
    }
}

INLINE void NAME(rmsprop_block)(NAME(Update) u, size_t n) { NAME(any_rmsprop)(u, n, 0, 0); }
INLINE void NAME(rmsprop_momentum_block)(NAME(Update) u, size_t n) { NAME(any_rmsprop)(u, n, 0, 1); }
INLINE void NAME(rmsprop_centered_block)(NAME(Update) u, size_t n) { NAME(any_rmsprop)(u, n, 1, 0); }
INLINE void NAME(rmsprop_centered_momentum_block)(NAME(Update) u, size_t n) { NAME(any_rmsprop)(u, n, 1, 1); }

INLINE void NAME(adadelta_block)(NAME(Update) u, size_t n)
{
    const REAL keep = u.constants[0], intake = u.constants[1], eps = u.constants[2], rate = u.constants[3];
    EACH(i, n)
    {
        const REAL grad = NAME(gradient)(u, i), square = u.before[0][i] * keep + grad * grad * intake;
        const REAL change = SQRT(u.before[1][i] + eps) / SQRT(square + eps) * grad;
        u.after[0][i] = square;
        u.after[1][i] = u.before[1][i] * keep + change * change * intake;
        u.out[i] = NAME(moved)(u, i, change * rate);
    }
}

INLINE void NAME(adamax_block)(NAME(Update) u, size_t n)
{
    const REAL intake1 = u.constants[0], keep2 = u.constants[1];
    const REAL least = u.constants[2], eps = u.constants[3], rate = u.constants[4];
    EACH(i, n)
    {
        const REAL grad = NAME(gradient)(u, i), mean = NAME(lerp)(u.before[0][i], grad, intake1);
        const REAL size = (grad <= 0 ? 0 - grad : grad) + least, before = u.before[1][i] * keep2;
        const REAL norm = before >= size || before != before ? before : size; /* passes NaN on */
        u.after[0][i] = mean;
        u.after[1][i] = norm;
        u.out[i] = NAME(moved)(u, i, mean / (norm + eps) * rate);
    }
}

INLINE void NAME(nadam_block)(NAME(Update) u, size_t n)
{
    const REAL of_grad = u.constants[0], of_mean = u.constants[1], eps = u.constants[2];
    const REAL intake1 = u.constants[3], intake2 = u.constants[4], keep2 = u.constants[5];
    EACH(i, n)
    {
        const REAL grad = NAME(gradient)(u, i), mean = NAME(lerp)(u.before[0][i], grad, intake1);
        const REAL square = u.before[1][i] * keep2 + grad * grad * intake2;
        u.after[0][i] = mean;
        u.after[1][i] = square;
        u.out[i] = NAME(moved)(u, i, (grad * of_grad + mean * of_mean) / (SQRT(square) + eps));
    }
}

INLINE void NAME(lion_block)(NAME(Update) u, size_t n)
{
    const REAL rate = u.constants[0], keep1 = u.constants[1], intake1 = u.constants[2];
    const REAL keep2 = u.constants[3], intake2 = u.constants[4];
    EACH(i, n)
    {
        const REAL grad = NAME(gradient)(u, i), old = u.before[0][i], way = old * keep1 + grad * intake1;
        const REAL sign = way != way ? way : (REAL)((way > 0) - (way < 0)); /* passes NaN on */
        u.after[0][i] = old * keep2 + grad * intake2;
        u.out[i] = NAME(moved)(u, i, sign * rate);
    }
}

/* Adds to each of ``LANES`` sums 0, or NaN for what is NaN or infinite. Reads what has just been written, and is
in the nearest cache: in the loops above it would keep them from being vectors. */
INLINE void NAME(note)(PLAIN *odd, const REAL *out, size_t n)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        EACH(lane, LANES) odd[lane] += out[i + lane] * 0;
    for (; i < n; i++)
        odd[0] += out[i] * 0;
}

/* Whether one has become so: what was infinite, or NaN, may stay so. Looks again only if there is anything to be seen. */
INLINE int NAME(is_spoiled)(const PLAIN *odds, const REAL *params, const REAL *out, size_t n)
{
    PLAIN odd = 0;
    EACH_ADDING(lane, LANES) odd += odds[lane];
    if (odd == 0)
        return 0;
    odd = 0;
    EACH_ADDING(i, n) odd += out[i] == params[i] || params[i] != params[i] ? 0 : out[i] * 0;
    return odd != 0;
}

/* The same update from element ``start`` on. */
INLINE NAME(Update) NAME(from)(NAME(Update) u, size_t start, int slots)
{
    u.params += start, u.grad += start, u.out += start;
    for (int slot = 0; slot < slots; slot++)
        u.before[slot] += start, u.after[slot] += start;
    return u;
}

INLINE void NAME(ask_ahead)(NAME(Update) u, int slots)
{
    for (size_t at = AHEAD_BYTES; at < AHEAD_BYTES + BLOCK_BYTES; at += LINE_BYTES) {
        __builtin_prefetch((const char *)u.params + at);
        __builtin_prefetch((const char *)u.grad + at);
        for (int slot = 0; slot < slots; slot++)
            __builtin_prefetch((const char *)u.before[slot] + at);
    }
}

/* The exported function of a rule: updates a span of ``n`` elements. Whether all parameters are numbers. */
#define UPDATE(rule, slots)                                                                                  \
    ANY_WIDTH static void NAME(rule##_range)(const void *update, size_t start, size_t stop)                  \
    {                                                                                                        \
        enum { BLOCK = BLOCK_BYTES / sizeof(REAL) };                                                         \
        _Alignas(LINE_BYTES) char block[BLOCK_BYTES];                                                        \
        const NAME(Update) all = NAME(from)(*(const NAME(Update) *)update, start, slots);                    \
        NAME(Update) u = all;                                                                                \
        size_t n = stop - start;                                                                             \
        PLAIN odd[LANES] = {0};                                                                              \
        for (; may_stream(u.out) && n >= BLOCK; n -= BLOCK, u = NAME(from)(u, BLOCK, slots)) {               \
            NAME(Update) inner = u;                                                                          \
            inner.out = (REAL *)block;                                                                       \
            NAME(ask_ahead)(u, slots);                                                                       \
            NAME(rule##_block)(inner, BLOCK);                                                                \
            NAME(note)(odd, inner.out, BLOCK);                                                               \
            stream_block(u.out, block);                                                                      \
        }                                                                                                    \
        end_stream();                                                                                        \
        NAME(rule##_block)(u, n);                                                                            \
        NAME(note)(odd, u.out, n);                                                                           \
        if (NAME(is_spoiled)(odd, all.params, all.out, stop - start))                                        \
            __atomic_store_n(u.spoiled, 1, __ATOMIC_RELAXED);                                                \
    }                                                                                                        \
    ANY_WIDTH int NAME(rule)(const NAME(Update) *update, size_t n)                                           \
    {                                                                                                        \
        int spoiled = 0;                                                                                     \
        NAME(Update) u = *update;                                                                            \
        u.spoiled = &spoiled;                                                                                \
        if (n * sizeof(REAL) >= LARGE_BYTES) {                                                               \
            share(NAME(rule##_range), &u, n, PIECE_BYTES / sizeof(REAL));                                    \
            return !spoiled;                                                                                 \
        }                                                                                                    \
        PLAIN odd[LANES] = {0};                                                                              \
        NAME(rule##_block)(u, n);                                                                            \
        NAME(note)(odd, u.out, n);                                                                           \
        return !NAME(is_spoiled)(odd, u.params, u.out, n);                                                   \
    }

UPDATE(sgd, 0)
UPDATE(momentum, 1)
UPDATE(adam, 2)
UPDATE(amsgrad, 3)
UPDATE(adagrad, 1)
UPDATE(ftrl, 2)
UPDATE(rmsprop, 1)
UPDATE(rmsprop_momentum, 2)
UPDATE(rmsprop_centered, 2)
UPDATE(rmsprop_centered_momentum, 3)
UPDATE(adadelta, 2)
UPDATE(adamax, 2)
UPDATE(nadam, 2)
UPDATE(lion, 1)

typedef struct {
    const REAL *grad;
    size_t size;
    double *sums;
    size_t length;
} NAME(Squares);

ANY_WIDTH static void NAME(squares_range)(const void *job, size_t start, size_t stop)
{
    const NAME(Squares) s = *(const NAME(Squares) *)job;
    for (size_t row = 0; row + start < s.size; row += s.length) {
        const REAL *grad = s.grad + row + start;
        double *sums = s.sums + start;
        const size_t n = row + stop < s.size ? stop - start : s.size - row - start;
        EACH(i, n) sums[i] += (double)grad[i] * (double)grad[i];
    }
}

/* Adds the square of element i of a gradient to sum i % length. */
void NAME(add_squares)(const REAL *grad, size_t size, double *sums, size_t length)
{
    const NAME(Squares) job = {grad, size, sums, length};
    share(NAME(squares_range), &job, length, size * sizeof(REAL) >= LARGE_BYTES ? PIECE_SUMS : length);
}

/* Whether all elements are numbers, none NaN or infinite. */
ANY_WIDTH int NAME(all_finite)(const REAL *values, size_t n)
{
    PLAIN odd = 0;
    EACH_ADDING(i, n) odd += values[i] * 0;
    return odd == 0;
}

#endif
