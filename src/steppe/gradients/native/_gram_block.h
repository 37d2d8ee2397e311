/* Blocks of Gram matrices: inner products of float32 vectors, so many at a time that they stay in the
   cache, each with a bound on what rounding may do to it. Part of `_gram_norms.c`. */

#include "_lanes.h"

/* Inner products of 3 vectors with 4 others: 12 sums, 3 factors and 1 more fill 16 registers. */
enum { ROWS = 3, COLUMNS = 4, TILES = ROWS * COLUMNS };
/* A lane adds RUN / LANES products in single precision, then CHUNK / RUN such sums, and what follows
   is in double: so few roundings on the way of a product that the guard can be a bound for all of
   them, and none more however long the vectors are. */
enum { RUN = (12 - 2 * ROUNDS_PRODUCTS) * LANES, CHUNK = 3 * RUN };
/* Positions in a block: a chunk of all of them stays in the second-level cache. So many of them
   stay in the first while the others pass by. */
enum { BLOCK = 6 * TILES, STRIP = 3 * COLUMNS };

typedef float four __attribute__((vector_size(16)));
typedef four unaligned_four __attribute__((aligned(4), may_alias));
typedef double sums __attribute__((vector_size(8 * COLUMNS), aligned(8), may_alias));

typedef struct {
    const float *first;
    Py_ssize_t stride; /* between positions, in numbers */
    Py_ssize_t length;
} Vectors;

typedef struct {
    Py_ssize_t start, count;
} Range;

/* The lanes of four vectors added up. */
INLINE sums across(lanes a, lanes b, lanes c, lanes d)
{
    lanes ab = SHUFFLE(a, b, 0, 8, 2, 10, 4, 12, 6, 14)
               + SHUFFLE(a, b, 1, 9, 3, 11, 5, 13, 7, 15);
    lanes cd = SHUFFLE(c, d, 0, 8, 2, 10, 4, 12, 6, 14)
               + SHUFFLE(c, d, 1, 9, 3, 11, 5, 13, 7, 15);
    lanes all = SHUFFLE(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13)
                + SHUFFLE(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15);
    four total = (four){all[0], all[1], all[2], all[3]} + (four){all[4], all[5], all[6], all[7]};
    return __builtin_convertvector(total, sums);
}

/* Inner products of `count` numbers of each vector, at least LANES, in `out` or on top of it. */
INLINE void multiply(const float *const left[ROWS], const float *const right[COLUMNS],
                     Py_ssize_t count, sums *out, Py_ssize_t row, int on_top)
{
    lanes before[ROWS][COLUMNS], sum[ROWS][COLUMNS] = {{{0}}};
    Py_ssize_t whole = count - count % LANES, at = 0;
    for (;;) {
        Py_ssize_t end = whole - at < RUN ? whole : at + RUN;
        int first = at == 0;
#pragma GCC unroll 2
        for (; at < end; at += LANES) {
            lanes l0 = *(const unaligned *)(left[0] + at);
            lanes l1 = *(const unaligned *)(left[1] + at);
            lanes l2 = *(const unaligned *)(left[2] + at);
#pragma GCC unroll 4
            for (int column = 0; column < COLUMNS; column++) {
                lanes r = *(const unaligned *)(right[column] + at);
                sum[0][column] = fused(l0, r, sum[0][column]);
                sum[1][column] = fused(l1, r, sum[1][column]);
                sum[2][column] = fused(l2, r, sum[2][column]);
            }
        }
        if (!first)
#pragma GCC unroll 3
            for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
                for (int column = 0; column < COLUMNS; column++)
                    sum[r][column] += before[r][column];
        if (at == whole)
            break;
#pragma GCC unroll 3
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
            for (int column = 0; column < COLUMNS; column++) {
                before[r][column] = sum[r][column];
                sum[r][column] = (lanes){0};
            }
    }
    if (whole < count) { /* the last LANES numbers, less those that were counted already */
        mask fresh = (mask){0, 1, 2, 3, 4, 5, 6, 7} >= (int)(LANES - (count - whole));
        at = count - LANES;
#pragma GCC unroll 3
        for (int r = 0; r < ROWS; r++) {
            lanes l = (lanes)((mask) * (const unaligned *)(left[r] + at) & fresh);
#pragma GCC unroll 4
            for (int column = 0; column < COLUMNS; column++)
                sum[r][column] = fused(l, *(const unaligned *)(right[column] + at), sum[r][column]);
        }
    }
#pragma GCC unroll 3
    for (int r = 0; r < ROWS; r++) {
        sums found = across(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
        if (on_top)
            found += out[r * row];
        out[r * row] = found;
    }
}

/* How often a product is rounded at most before its sum is in double: with the others of its run,
   with the runs of its chunk, with the last numbers, with the other lanes, and perhaps by itself. That
   often ‖a‖‖b‖ times the rounding of one operation is a bound on the error of ⟨a,b⟩, whatever the
   numbers are. */
static double roundings(Py_ssize_t length)
{
    Py_ssize_t whole = (length < CHUNK ? length : CHUNK) / LANES * LANES;
    Py_ssize_t run = (whole < RUN ? whole : RUN) / LANES, runs = (whole + RUN - 1) / RUN;
    return (double)(run + (runs - 1) + (length % LANES != 0) + 3 + ROUNDS_PRODUCTS);
}

/* Positions in a block of a matrix: all of one size, and that of whole tiles, so that little is
   computed in vain. */
static Py_ssize_t block_size(Py_ssize_t positions)
{
    Py_ssize_t blocks = positions > BLOCK ? (positions + BLOCK - 1) / BLOCK : 1; /* also of none */
    Py_ssize_t size = (positions + blocks - 1) / blocks + TILES - 1;
    return size - size % TILES;
}

/* A chunk of `count` vectors from the given one on; past the last in range it is repeated. */
INLINE void point(const float *vectors[], Py_ssize_t count, Py_ssize_t from, Range range,
                  const float *chunk, Py_ssize_t stride)
{
    for (Py_ssize_t k = 0; k < count; k++) {
        Py_ssize_t which = from + k < range.count ? from + k : range.count - 1;
        vectors[k] = chunk + (range.start + which) * stride;
    }
}

/* Inner products of the positions in `down` with those in `along`, up to and with the diagonal. What
   stands behind it, or past the last position, is not looked at. */
INLINE void gram(Vectors of, Range down, Range along, double block[BLOCK][BLOCK], Ahead *ahead)
{
    for (Py_ssize_t start = 0, count; start < of.length; start += count) {
        const float *chunk = of.first + start, *left[ROWS], *right[STRIP];
        /* A chunk of fewer than LANES is none: the one before takes it along. */
        count = of.length - start < CHUNK + LANES ? of.length - start : CHUNK;
        for (Py_ssize_t strip = 0; strip < along.count; strip += STRIP) {
            Py_ssize_t end = along.count - strip < STRIP ? along.count : strip + STRIP;
            Py_ssize_t top = along.start + strip - down.start; /* where the diagonal enters */
            point(right, STRIP, strip, along, chunk, of.stride);
            for (Py_ssize_t i = top > 0 ? top - top % ROWS : 0; i < down.count; i += ROWS) {
                Py_ssize_t behind = down.start + i + ROWS - along.start;
                point(left, ROWS, i, down, chunk, of.stride);
                for (Py_ssize_t j = strip; j < end && j < behind; j += COLUMNS) {
                    fetch(ahead);
                    multiply(left, right + (j - strip), count, (sums *)&block[i][j],
                             BLOCK / COLUMNS, start > 0);
                }
            }
        }
    }
}
