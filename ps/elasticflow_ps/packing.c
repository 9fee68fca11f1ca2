/* Float32 rounded to bfloat16, and back.

Bits: those of NumPy in packing.py. Numbers are handled as the whole numbers that their bits are, so no setting
of the compiler or the processor matters. */

#include <stddef.h>
#include <stdint.h>

#include "vectors.h"

enum {
    MAGNITUDE = 0x7fffffff,
    INFINITY_BITS = 0x7f800000,
    QUIET = 0x00400000, /* makes any NaN one that stays one when its lower half is cut off */
};

/* Arrays that arrived in a message may lie at any address. */
typedef uint32_t Bits __attribute__((aligned(1), may_alias));
typedef uint16_t Half __attribute__((aligned(1), may_alias));

/* To nearest, ties to even; NaN stays NaN, and what is too large becomes infinite. */
INLINE uint32_t rounded(uint32_t bits)
{
    const uint32_t nearest = bits + 0x7fff + (bits >> 16 & 1);
    return ((bits & MAGNITUDE) > INFINITY_BITS ? bits | QUIET : nearest) >> 16;
}

ANY_WIDTH void to_bfloat16(const Bits *values, size_t n, Half *packed)
{
    EACH(i, n) packed[i] = (uint16_t)rounded(values[i]);
}

ANY_WIDTH void from_bfloat16(const Half *packed, size_t n, Bits *values)
{
    EACH(i, n) values[i] = (uint32_t)packed[i] << 16;
}

ANY_WIDTH void round_to_bfloat16(Bits *values, size_t n)
{
    EACH(i, n) values[i] = rounded(values[i]) << 16;
}
