/* Columns of records: texts to ids, and records from where a block has them to where a batch wants them.

Bits: those of NumPy in elasticflow/hashing.py and elasticflow/data/ragged.py. Compiled as native.c is. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "vectors.h"

enum { AHEAD_RECORDS = 16 /* so many records ahead memory is asked for */ };

/* Of n texts, from ``starts`` to ``stops`` each: FNV-1a, without NULs at the end, mixed as SplitMix64 does. */
void hash_texts(const uint8_t *data, const int64_t *starts, const int64_t *stops, size_t n, uint64_t *out)
{
    for (size_t i = 0; i < n; i++) {
        int64_t stop = stops[i];
        while (stop > starts[i] && !data[stop - 1]) stop--;
        uint64_t z = 0xCBF29CE484222325u;
        for (int64_t place = starts[i]; place < stop; place++) z = (z ^ data[place]) * 0x100000001B3u;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        out[i] = z ^ (z >> 31);
    }
}

/* Records ``numbers`` of ``bytes`` each to ``places``. */
void move_records(const char *from, size_t bytes, const int64_t *numbers, const int64_t *places, size_t n, char *to)
{
    for (size_t i = 0; i < n; i++) {
        if (i + AHEAD_RECORDS < n) {
            const char *next = from + (size_t)numbers[i + AHEAD_RECORDS] * bytes;
            __builtin_prefetch(next);
            __builtin_prefetch(next + bytes - 1);
        }
        memcpy(to + (size_t)places[i] * bytes, from + (size_t)numbers[i] * bytes, bytes);
    }
}

/* Records of different lengths, of elements of ``bytes`` each, to where ``to_starts`` has them. */
void move_ragged(const char *from, size_t bytes, const int64_t *starts, const int64_t *numbers,
                 const int64_t *places, size_t n, char *to, const int64_t *to_starts)
{
    for (size_t i = 0; i < n; i++) {
        if (i + AHEAD_RECORDS < n) __builtin_prefetch(from + (size_t)starts[numbers[i + AHEAD_RECORDS]] * bytes);
        int64_t start = starts[numbers[i]], stop = starts[numbers[i] + 1];
        memcpy(to + (size_t)to_starts[places[i]] * bytes, from + (size_t)start * bytes, (size_t)(stop - start) * bytes);
    }
}

/* n records into rows of ``width`` elements, of which those stay as they are that a record does not reach. What
is longer than ``most`` is cut. */
void pad_ragged(const char *from, size_t bytes, const int64_t *starts, size_t n, size_t width, size_t most, int left,
                char *to)
{
    for (size_t i = 0; i < n; i++, to += width * bytes) {
        size_t length = (size_t)(starts[i + 1] - starts[i]);
        if (length > most) length = most;
        memcpy(to + (left ? width - length : 0) * bytes, from + (size_t)starts[i] * bytes, length * bytes);
    }
}
