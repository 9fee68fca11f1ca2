/* Rows of embedding tables: the index of a server's rows by key, and what moves rows about.

The index is an array of entries, ascending by key, with gaps. An entry's *home* follows from the high bits of
its key, in the order of keys; it lies there, or right after those before it that lie there or beyond
(linear probing; ordered as in Amble and Knuth, "Ordered hash tables", 1974). So ascending keys walk the array
in its order, memory can be asked for ahead, and rows come out ascending without a sort.

Bits: those of NumPy in row_index.py, table.py and elasticflow/step/rows.py. Compiled as native.c is. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "vectors.h"

enum {
    LINE_BYTES = 64,
    MAX_PIECES = 4,    /* of a row: its value and its slots */
    BUCKET_SHIFT = 58, /* a key's bits below those of its bucket */
    AHEAD = 24,        /* so many keys ahead memory is asked for */
    AHEAD_LINES = 8,   /* and so much of a row: the processor sees by itself how a longer one goes on */
};

/* Arrays that arrived in a message may lie at any address. */
typedef uint64_t Key __attribute__((aligned(1), may_alias));
typedef float Real __attribute__((aligned(1), may_alias));

/* --- the index ---------------------------------------------------------------------------------- */

/* place: the number of a row; or of a candidate, -1 for each step that counts. seen: the step of the last
update; 0: a gap. */
typedef struct {
    uint64_t key;
    int32_t place;
    uint32_t seen;
} Entry;

/* low: the smallest key that may be. There are ``buckets * per_bucket`` homes, and after these as many more
entries as fit without ever coming to the end. used: entries that are none. rows: numbers given to rows. */
typedef struct {
    Entry *entries;
    uint64_t low, buckets, per_bucket, used, rows;
} Index;

/* For native.py, to know whether this was compiled from the same source. */
size_t index_bytes(void) { return sizeof(Index); }

INLINE size_t home(const Index *index, uint64_t key)
{
    return (size_t)(((unsigned __int128)(key - index->low) * index->per_bucket) >> BUCKET_SHIFT);
}

INLINE void ask_for(const Index *index, uint64_t key)
{
    const Entry *entry = &index->entries[home(index, key)];
    __builtin_prefetch(entry);
    __builtin_prefetch(entry + 3); /* many are not at home */
}

/* Where a key is or would be. */
INLINE Entry *seek(const Index *index, uint64_t key)
{
    Entry *entry = &index->entries[home(index, key)];
    while (entry->seen != 0 && entry->key < key)
        entry++;
    return entry;
}

/* The entry of a key, which is made a candidate that was never seen if there is none. */
INLINE Entry *seek_or_add(Index *index, uint64_t key)
{
    Entry *entry = seek(index, key), *gap = entry;
    if (entry->seen != 0 && entry->key == key)
        return entry;
    while (gap->seen != 0)
        gap++;
    memmove(entry + 1, entry, (size_t)(gap - entry) * sizeof(Entry));
    *entry = (Entry){key, -1, 0};
    index->used++;
    return entry;
}

/* Whether keys are ascending, each once, and all of these buckets: others would lie outside the array. */
int fit_index(const Index *index, const Key *keys, size_t n)
{
    int fit = 1;
    if (n > 0)
        fit = keys[0] >= index->low && (keys[n - 1] - index->low) >> BUCKET_SHIFT < index->buckets;
    for (size_t i = 1; i < n; i++)
        fit &= keys[i - 1] < keys[i];
    return fit;
}

/* Writes the numbers of the rows seen from step ``oldest`` on, -1 for keys without. Returns how many are
without. */
size_t find_rows(const Index *index, const Key *keys, size_t n, uint32_t oldest, int64_t *places)
{
    size_t missing = 0;
    for (size_t i = 0; i < n && i < AHEAD; i++)
        ask_for(index, keys[i]);
    for (size_t i = 0; i < n; i++) {
        if (i + AHEAD < n)
            ask_for(index, keys[i + AHEAD]);
        const uint64_t key = keys[i];
        const Entry *entry = seek(index, key);
        const int found = entry->seen != 0 && entry->key == key && entry->seen >= oldest && entry->place >= 0;
        places[i] = found ? entry->place : -1;
        missing += !found;
    }
    return missing;
}

/* Counts a step for each key. Writes the numbers of their rows, -1 for those that stay candidates; and to
``fresh`` which of the keys have a row from now on. Returns how many these are. */
size_t admit_rows(Index *index, const Key *keys, size_t n, uint32_t step, uint32_t oldest, int32_t min_count,
                  int64_t *places, int64_t *fresh)
{
    size_t num_fresh = 0;
    for (size_t i = 0; i < n && i < AHEAD; i++)
        ask_for(index, keys[i]);
    for (size_t i = 0; i < n; i++) {
        if (i + AHEAD < n)
            ask_for(index, keys[i + AHEAD]);
        Entry *entry = seek_or_add(index, keys[i]);
        const int known = entry->seen >= oldest;
        if (!known || entry->place < 0) {
            const int32_t count = known ? 1 - entry->place : 1;
            if (count < min_count) {
                entry->place = -count;
            } else {
                if (entry->place < 0)
                    entry->place = (int32_t)index->rows++;
                fresh[num_fresh++] = (int64_t)i;
            }
        }
        entry->seen = step;
        places[i] = entry->place < 0 ? -1 : entry->place;
    }
    return num_fresh;
}

/* Makes keys those of rows, whose numbers it writes; or, with counts, of candidates. */
void put_rows(Index *index, const Key *keys, size_t n, const uint32_t *seen, const uint32_t *counts,
              int64_t *places)
{
    for (size_t i = 0; i < n; i++) {
        Entry *entry = seek_or_add(index, keys[i]);
        if (counts != NULL)
            entry->place = -(int32_t)counts[i];
        else if (entry->place < 0)
            entry->place = (int32_t)index->rows++;
        entry->seen = seen[i];
        places[i] = entry->place;
    }
}

/* Writes all that was seen from step ``oldest`` on, ascending by key. Returns how many these are. */
size_t list_rows(const Index *index, uint32_t oldest, uint64_t *keys, int64_t *places, uint32_t *seen)
{
    size_t n = 0, left = index->used;
    for (const Entry *entry = index->entries; left > 0; entry++) {
        left -= entry->seen != 0;
        if (entry->seen >= oldest) {
            keys[n] = entry->key, places[n] = entry->place, seen[n] = entry->seen;
            n++;
        }
    }
    return n;
}

/* Moves all that was seen from step ``oldest`` on to another index, or closer together in the same. */
void rebuild_index(const Index *from, uint32_t oldest, Index *to)
{
    size_t next = 0, used = 0, left = from->used;
    for (Entry *at = from->entries; left > 0; at++) {
        const Entry entry = *at;
        left -= entry.seen != 0;
        at->seen = 0;
        if (entry.seen < oldest)
            continue;
        /* In the same index entries only move down, so none is overwritten that is still to be read. */
        const size_t at_home = home(to, entry.key);
        next = next > at_home ? next : at_home;
        to->entries[next++] = entry;
        used++;
    }
    to->used = used, to->rows = from->rows;
}

/* Moves rows to numbers that no entry has, until there are as many numbers as rows. taken: zeros, as many as
there are numbers. */
void close_gaps(Index *index, char *rows, size_t row_bytes, uint8_t *taken)
{
    size_t num_rows = 0, left = index->used, gap = 0;
    for (const Entry *entry = index->entries; left > 0; entry++) {
        left -= entry->seen != 0;
        if (entry->seen != 0 && entry->place >= 0)
            taken[entry->place] = 1, num_rows++;
    }
    left = index->used;
    for (Entry *entry = index->entries; left > 0; entry++) {
        left -= entry->seen != 0;
        if (entry->seen != 0 && entry->place >= 0 && (size_t)entry->place >= num_rows) {
            while (taken[gap])
                gap++;
            memcpy(rows + gap * row_bytes, rows + (size_t)entry->place * row_bytes, row_bytes);
            entry->place = (int32_t)gap++;
        }
    }
    index->rows = num_rows;
}

/* --- rows --------------------------------------------------------------------------------------- */

/* Rows at some places of a table. Each has several pieces, one after the other. parts: arrays of these pieces,
(n, dim) each, of the first ``pieces``. A row at a negative place is left out. */
typedef struct {
    char *table;
    size_t row_bytes, piece_bytes, pieces;
    const int64_t *places;
    size_t n;
    char *parts[MAX_PIECES];
} Rows;

enum Way { GATHER, SCATTER, SCATTER_NEAR /* in the cache already */ };

INLINE void copy_piece(char *to, const char *from, size_t num_bytes)
{
    for (; num_bytes >= LINE_BYTES; num_bytes -= LINE_BYTES, to += LINE_BYTES, from += LINE_BYTES)
        memcpy(to, from, LINE_BYTES); /* no call: most rows are short */
    if (num_bytes > 0)
        memcpy(to, from, num_bytes);
}

INLINE void ask_for_row(const Rows *rows, size_t i)
{
    const size_t all = rows->pieces * rows->piece_bytes, most = AHEAD_LINES * LINE_BYTES;
    if (i < rows->n && rows->places[i] >= 0)
        for (size_t at = 0; at < (all < most ? all : most); at += LINE_BYTES)
            __builtin_prefetch(rows->table + (size_t)rows->places[i] * rows->row_bytes + at);
}

/* Copies rows start..stop to parts, or from them. */
INLINE void move_rows(const Rows *rows, size_t start, size_t stop, char *const *parts, enum Way way)
{
    for (size_t i = start; i < stop; i++) {
        if (way != SCATTER_NEAR)
            ask_for_row(rows, i + AHEAD);
        if (rows->places[i] < 0)
            continue;
        for (size_t piece = 0; piece < rows->pieces; piece++) {
            const size_t at = piece * rows->piece_bytes;
            char *row = rows->table + (size_t)rows->places[i] * rows->row_bytes + at;
            char *part = parts[piece] + (i - start) * rows->piece_bytes;
            copy_piece(way == GATHER ? part : row, way == GATHER ? row : part, rows->piece_bytes);
        }
    }
}

ANY_WIDTH void gather_rows(const Rows *rows) { move_rows(rows, 0, rows->n, rows->parts, GATHER); }
ANY_WIDTH void scatter_rows(const Rows *rows) { move_rows(rows, 0, rows->n, rows->parts, SCATTER); }

/* What an update in native.c takes, of float32. */
typedef struct {
    const char *params, *grad;
    char *out;
    const char *before[MAX_PIECES - 1];
    char *after[MAX_PIECES - 1];
    double numbers[12];
    int *spoiled;
} Update;
typedef int Rule(const Update *update, size_t n);

/* For native.py. */
size_t row_update_bytes(void) { return sizeof(Update); }

/* Updates rows where they are, so few at a time that they stay in the nearest cache. parts[0]: memory for all
values as they were. blocks: for ``length`` values, and as many of each slot. Whether all values are numbers. */
ANY_WIDTH int update_rows(const Rows *rows, const char *grads, char *blocks, size_t length, Rule *rule,
                          const double *numbers)
{
    int finite = 1;
    char *old[MAX_PIECES], *next[MAX_PIECES];
    Update update = {.out = blocks};
    memcpy(update.numbers, numbers, sizeof update.numbers);
    for (size_t piece = 0; piece < rows->pieces; piece++) {
        old[piece] = next[piece] = blocks + piece * length * rows->piece_bytes;
        if (piece > 0)
            update.before[piece - 1] = update.after[piece - 1] = next[piece];
    }
    for (size_t start = 0; start < rows->n; start += length) {
        const size_t stop = start + length < rows->n ? start + length : rows->n;
        update.params = old[0] = rows->parts[0] + start * rows->piece_bytes;
        update.grad = grads + start * rows->piece_bytes;
        move_rows(rows, start, stop, old, GATHER);
        finite &= rule(&update, (stop - start) * rows->piece_bytes / sizeof(float));
        move_rows(rows, start, stop, next, SCATTER_NEAR);
    }
    return finite;
}

/* Of two sorted sets of rows all, those of a key that both have added, left + right. Returns how many. */
ANY_WIDTH size_t merge_rows(const Key *left_keys, const Real *left, size_t num_left, const Key *right_keys,
                            const Real *right, size_t num_right, size_t dim, uint64_t *keys, float *values)
{
    size_t n = 0;
    for (size_t l = 0, r = 0; l < num_left || r < num_right; n++, values += dim) {
        const int from_left = r == num_right || (l < num_left && left_keys[l] <= right_keys[r]);
        const int from_right = l == num_left || (r < num_right && right_keys[r] <= left_keys[l]);
        const Real *one = left + l * dim, *other = right + r * dim;
        keys[n] = from_left ? left_keys[l] : right_keys[r];
        if (from_left && from_right)
            EACH(i, dim) values[i] = one[i] + other[i];
        else
            copy_piece((char *)values, (const char *)(from_left ? one : other), dim * sizeof(float));
        l += from_left, r += from_right;
    }
    return n;
}

/* --- keys and first values: see elasticflow/step/rows.py ---------------------------------------------- */

static const uint64_t GAMMA = 0x9E3779B97F4A7C15;

INLINE uint64_t mixed(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
}

/* A key that occurs, and how often: later, where in ``order`` its next id goes. */
typedef struct {
    uint64_t key;
    int32_t count, place;
} Group;

/* For native.py. */
size_t group_bytes(void) { return sizeof(Group); }

/* Ids by key, as ``Grouped`` has them. slots: ``2**bits`` and n more zeros, at least n of them: by a key's high
bits, so that keys lie there almost in their order, the number of a group from 1 on. groups: for n. Returns
how many keys there are. */
size_t group_ids(const int64_t *ids, size_t n, uint64_t *keys, int64_t *order, int64_t *starts, int64_t *places,
                 Group *groups, int32_t *slots, unsigned bits)
{
    size_t num_keys = 0, listed = 0, start = 0;
    for (size_t i = 0; i < n; i++) {
        const uint64_t key = mixed((uint64_t)ids[i] + GAMMA);
        size_t at = key >> (64 - bits);
        while (slots[at] != 0 && groups[slots[at] - 1].key != key)
            at++;
        if (slots[at] == 0) {
            groups[num_keys] = (Group){key, 0, 0};
            slots[at] = (int32_t)++num_keys;
        }
        places[i] = slots[at] - 1;
        groups[places[i]].count++;
    }
    for (const int32_t *slot = slots; listed < num_keys; slot++) {
        order[listed] = *slot - 1; /* there are no more keys than ids */
        listed += *slot != 0;
    }
    for (size_t i = 0; i < num_keys; i++) {
        const int64_t group = order[i];
        const uint64_t key = groups[group].key;
        size_t at = i;
        /* Almost in their order already: each moves a place or two. */
        for (; at > 0 && keys[at - 1] > key; at--)
            keys[at] = keys[at - 1], order[at] = order[at - 1];
        keys[at] = key, order[at] = group;
    }
    for (size_t place = 0; place < num_keys; place++) {
        Group *group = &groups[order[place]];
        const int32_t count = group->count;
        starts[place] = (int64_t)start;
        group->count = (int32_t)start, group->place = (int32_t)place;
        start += (size_t)count;
    }
    for (size_t i = 0; i < n; i++) {
        Group *group = &groups[places[i]];
        order[group->count++] = (int64_t)i;
        places[i] = group->place;
    }
    return num_keys;
}

ANY_WIDTH void uniform_rows(const Key *keys, size_t n, size_t dim, uint64_t seed, float low, float span,
                            float *out)
{
    for (size_t row = 0; row < n; row++, out += dim) {
        const uint64_t stream = keys[row] ^ seed;
        EACH(i, dim)
        {
            const int32_t bits = (int32_t)(mixed(stream + (i + 1) * GAMMA) >> 40);
            out[i] = (float)bits * 0x1p-24f * span + low;
        }
    }
}

ANY_WIDTH void normal_rows(const Key *keys, size_t n, size_t dim, uint64_t seed, float mean, float scale,
                           float *out)
{
    enum { WORDS = 4, FIELD_BITS = 21, MOST = (1 << FIELD_BITS) - 1, MIDDLE = 3 * WORDS * MOST / 2 };
    for (size_t row = 0; row < n; row++, out += dim) {
        const uint64_t stream = keys[row] ^ seed;
        EACH(i, dim)
        {
            uint64_t total = 0;
            for (size_t word = 0; word < WORDS; word++) {
                const uint64_t bits = mixed(stream + (i * WORDS + word + 1) * GAMMA);
                total += (bits & MOST) + (bits >> FIELD_BITS & MOST) + (bits >> 2 * FIELD_BITS & MOST);
            }
            out[i] = (float)((int32_t)total - MIDDLE) * scale + mean;
        }
    }
}
