/* Blocks of Gram matrices: inner products of float32 vectors, so many at a time that they stay in the
   cache, each with a bound on what rounding may do to it. Part of `_gram_norms.c`. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <string.h>

#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
#error "-ffast-math does not know records that are not finite, nor does it keep the order of sums"
#endif

#if defined(__x86_64__)
#define VECTORS __attribute__((target("avx2,fma")))
#define HAS_VECTORS (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
#else
#define VECTORS
#define HAS_VECTORS 1
#endif
#define INLINE VECTORS static inline __attribute__((always_inline))

#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else /* GCC knows the other name since 12 */
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (mask){__VA_ARGS__})
#endif

/* Inner products of 3 vectors with 4 others: 12 sums, 3 factors and 1 more fill 16 registers. */
enum { LANES = 8, ROWS = 3, COLUMNS = 4 };
/* Positions in a block, and how much of their vectors is looked at before the next: both sides of a
   block stay in the second-level cache. A lane adds RUN / LANES products in single precision, then
   CHUNK / RUN such sums, and what follows is in double: so few roundings on the way of a product
   that the guard can be a bound for all of them, and none more however long the vectors are. */
enum { TILES = ROWS * COLUMNS, BLOCK = 5 * TILES, RUN = 8 * LANES, CHUNK = 6 * RUN };

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef lanes unaligned __attribute__((aligned(4), may_alias));
typedef float four __attribute__((vector_size(16)));
typedef four unaligned_four __attribute__((aligned(4), may_alias));
typedef double sums __attribute__((vector_size(8 * COLUMNS), aligned(8), may_alias));
typedef int mask __attribute__((vector_size(4 * LANES)));

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

/* out += inner products of `count` numbers of each vector, at least LANES. */
INLINE void multiply(const float *const left[ROWS], const float *const right[COLUMNS],
                     Py_ssize_t count, sums *out, Py_ssize_t row)
{
    lanes total[ROWS][COLUMNS] = {{{0}}};
    Py_ssize_t whole = count - count % LANES;
    for (Py_ssize_t at = 0; at < whole;) {
        lanes sum[ROWS][COLUMNS] = {{{0}}};
        Py_ssize_t end = whole - at < RUN ? whole : at + RUN;
#pragma GCC unroll 2
        for (; at < end; at += LANES) {
            lanes l0 = *(const unaligned *)(left[0] + at);
            lanes l1 = *(const unaligned *)(left[1] + at);
            lanes l2 = *(const unaligned *)(left[2] + at);
#pragma GCC unroll 4
            for (int column = 0; column < COLUMNS; column++) {
                lanes r = *(const unaligned *)(right[column] + at);
                sum[0][column] += l0 * r;
                sum[1][column] += l1 * r;
                sum[2][column] += l2 * r;
            }
        }
#pragma GCC unroll 3
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
            for (int column = 0; column < COLUMNS; column++)
                total[r][column] += sum[r][column];
    }
    if (whole < count) { /* the last LANES numbers, less those that were counted already */
        mask fresh = (mask){0, 1, 2, 3, 4, 5, 6, 7} >= (int)(LANES - (count - whole));
        Py_ssize_t at = count - LANES;
#pragma GCC unroll 3
        for (int r = 0; r < ROWS; r++) {
            lanes l = (lanes)((mask) * (const unaligned *)(left[r] + at) & fresh);
#pragma GCC unroll 4
            for (int column = 0; column < COLUMNS; column++)
                total[r][column] += l * *(const unaligned *)(right[column] + at);
        }
    }
#pragma GCC unroll 3
    for (int r = 0; r < ROWS; r++)
        out[r * row] += across(total[r][0], total[r][1], total[r][2], total[r][3]);
}

/* How often a product is rounded at most before its sum is in double: with the others of its run,
   with the runs of its chunk, with the last numbers, with the other lanes, and once by itself where a
   compiler does not fuse it with its sum. That often ‖a‖‖b‖ times the rounding of one operation is
   a bound on the error of ⟨a,b⟩, whatever the numbers are. */
static double roundings(Py_ssize_t length)
{
    Py_ssize_t whole = (length < CHUNK ? length : CHUNK) / LANES * LANES;
    Py_ssize_t run = (whole < RUN ? whole : RUN) / LANES, runs = (whole + RUN - 1) / RUN;
    return (double)(run + (runs - 1) + (length % LANES != 0) + 3 + 1);
}

/* Positions in a block of a matrix: all of one size, and that of whole tiles, so that little is
   computed in vain. */
static Py_ssize_t block_size(Py_ssize_t positions)
{
    Py_ssize_t blocks = positions > BLOCK ? (positions + BLOCK - 1) / BLOCK : 1; /* also of none */
    Py_ssize_t size = (positions + blocks - 1) / blocks + TILES - 1;
    return size - size % TILES;
}

/* Inner products of the positions in `down` with those in `along`, up to and with the diagonal.
   Past its last position a block repeats it: what stands there is not looked at. */
INLINE void gram(Vectors of, Range down, Range along, double block[BLOCK][BLOCK])
{
    memset(block, 0, sizeof(double[BLOCK][BLOCK]));
    for (Py_ssize_t start = 0; start < of.length; start += CHUNK) {
        Py_ssize_t left_over = of.length - start;
        /* A chunk of fewer than LANES is none: the one before takes it along. */
        Py_ssize_t count = left_over < CHUNK + LANES ? left_over : CHUNK;
        const float *first = of.first + start;
        for (Py_ssize_t i = 0; i < down.count; i += ROWS) {
            const float *left[ROWS], *right[COLUMNS];
            for (Py_ssize_t r = 0; r < ROWS; r++)
                left[r] = first + (down.start + (i + r < down.count ? i + r : down.count - 1)) * of.stride;
            Py_ssize_t last = down.start + i + ROWS - along.start; /* behind the diagonal */
            for (Py_ssize_t j = 0; j < along.count && j < last; j += COLUMNS) {
                for (Py_ssize_t c = 0; c < COLUMNS; c++)
                    right[c] = first + (along.start + (j + c < along.count ? j + c : along.count - 1)) * of.stride;
                multiply(left, right, count, (sums *)&block[i][j], BLOCK / COLUMNS);
            }
        }
        if (count == left_over)
            break;
    }
}
