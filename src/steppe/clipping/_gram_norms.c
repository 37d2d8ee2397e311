/* Norms of sums of outer products, a record at a time, without writing its Gram matrices down.

   `steppe.clipping.grams` has the same in passes of torch, says what is added for rounding and why,
   and goes on without this file where it was not compiled. Here the lower halves of both matrices are
   made block by block; a block is small enough to stay in the cache, and is gone once it is added up. */

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
enum { TILES = ROWS * COLUMNS, BLOCK = 5 * TILES, RUN = 12 * LANES, CHUNK = 4 * RUN };

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef lanes unaligned __attribute__((aligned(4), may_alias));
typedef float four __attribute__((vector_size(16)));
typedef double sums __attribute__((vector_size(8 * COLUMNS), aligned(8), may_alias));
typedef int mask __attribute__((vector_size(4 * LANES)));

/* What rounding and underflow may take from a norm, as `steppe.clipping.grams` has it. */
typedef struct {
    double rounding; /* of one operation in single precision, as a fraction */
    double lost;     /* of one entry of a matrix, by underflow */
} Guard;

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

/* Sums over all pairs of positions of a record: Σ K(x)K(g), both traces, both sums of squares. */
typedef struct {
    double total, trace_x, trace_g, squares_x, squares_g;
} Sums;

INLINE void add(Sums *to, double x, double g, double times)
{
    to->total += times * x * g;
    to->squares_x += times * x * x;
    to->squares_g += times * g * g;
}

/* ‖Σ gₜxₜᵀ‖² with its guard. */
VECTORS
static double squared_norm(Vectors x, Vectors g, Py_ssize_t positions, Guard guard)
{
    double in_x[BLOCK][BLOCK], in_g[BLOCK][BLOCK];
    /* Blocks of one size, and that of whole tiles, so that little is computed in vain. */
    Py_ssize_t blocks = positions > BLOCK ? (positions + BLOCK - 1) / BLOCK : 1; /* also of none */
    Py_ssize_t size = (positions + blocks - 1) / blocks + TILES - 1;
    size -= size % TILES;
    Sums sums = {0.0, 0.0, 0.0, 0.0, 0.0};
    for (Py_ssize_t top = 0; top < positions; top += size) {
        Range down = {top, positions - top < size ? positions - top : size};
        for (Py_ssize_t start = 0; start <= top; start += size) {
            Range along = {start, start == top ? down.count : size};
            Sums below = {0.0, 0.0, 0.0, 0.0, 0.0};
            gram(x, down, along, in_x);
            gram(g, down, along, in_g);
            for (Py_ssize_t i = 0; i < down.count; i++) {
                Py_ssize_t count = start == top ? i : along.count;
                for (Py_ssize_t j = 0; j < count; j++)
                    add(&below, in_x[i][j], in_g[i][j], 1.0);
            }
            /* What stands below the diagonal stands above it too. */
            sums.total += 2.0 * below.total;
            sums.squares_x += 2.0 * below.squares_x;
            sums.squares_g += 2.0 * below.squares_g;
        }
        for (Py_ssize_t i = 0; i < down.count; i++) { /* of the last block, which has the diagonal */
            add(&sums, in_x[i][i], in_g[i][i], 1.0);
            sums.trace_x += in_x[i][i];
            sums.trace_g += in_g[i][i];
        }
    }
    if (!isfinite(sums.total)) /* minus infinity is no short gradient */
        return INFINITY;
    double rounding = roundings(x.length) * sums.trace_x * sqrt(sums.squares_g)
                      + roundings(g.length) * sqrt(sums.squares_x) * sums.trace_g;
    double lost = (double)positions * guard.lost;
    return (sums.total > 0.0 ? sums.total : 0.0) + guard.rounding * rounding
           + lost * (sums.trace_x + sums.trace_g + 2.0 * lost);
}

/* out = Σ gₜ, while g is in the cache. In two levels, so that rounding grows slowly with positions. */
VECTORS
static void sum_up(Vectors g, Py_ssize_t positions, float *restrict out)
{
    float some[CHUNK];
    for (Py_ssize_t start = 0; start < g.length; start += CHUNK) {
        Py_ssize_t count = g.length - start < CHUNK ? g.length - start : CHUNK;
        memset(out + start, 0, sizeof(float) * (size_t)count);
        for (Py_ssize_t top = 0; top < positions; top += BLOCK) {
            Py_ssize_t end = positions - top < BLOCK ? positions : top + BLOCK;
            memset(some, 0, sizeof some);
            for (Py_ssize_t t = top; t < end; t++) {
                const float *row = g.first + t * g.stride + start;
                for (Py_ssize_t k = 0; k < count; k++)
                    some[k] += row[k];
            }
            for (Py_ssize_t k = 0; k < count; k++)
                out[start + k] += some[k];
        }
    }
}

/* Whether a buffer holds float32 vectors `(records, positions, length)`, one number after another. */
static int fits(const Py_buffer *view)
{
    return view->ndim == 3 && view->itemsize == 4 && view->format && strcmp(view->format, "f") == 0
           && view->strides[2] == 4 && view->shape[2] >= LANES
           && ((size_t)view->buf | (size_t)view->strides[0] | (size_t)view->strides[1]) % 4 == 0;
}

static Vectors record(const Py_buffer *view, Py_ssize_t which)
{
    const char *first = (const char *)view->buf + which * view->strides[0];
    return (Vectors){(const float *)first, view->strides[1] / 4, view->shape[2]};
}

/* Whether a buffer has room for so many numbers of the given size. */
static int has(const Py_buffer *view, Py_ssize_t numbers, size_t size)
{
    return (size_t)view->len == (size_t)numbers * size && (size_t)view->buf % size == 0;
}

static PyObject *gram_norms(PyObject *self, PyObject *args)
{
    PyObject *objects[2], *into[2];
    Py_buffer x, g, norms, sums = {0};
    Guard guard;
    int threads, right = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOOddi", &objects[0], &objects[1], &into[0], &into[1],
                          &guard.rounding, &guard.lost, &threads))
        return NULL;
    int with_sums = into[1] != Py_None;
    if (PyObject_GetBuffer(objects[0], &x, PyBUF_STRIDES | PyBUF_FORMAT) < 0)
        return NULL;
    if (PyObject_GetBuffer(objects[1], &g, PyBUF_STRIDES | PyBUF_FORMAT) < 0)
        goto without_g;
    if (PyObject_GetBuffer(into[0], &norms, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) < 0)
        goto without_norms;
    if (with_sums && PyObject_GetBuffer(into[1], &sums, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) < 0)
        goto without_sums;
    right = fits(&x) && fits(&g) && x.shape[0] == g.shape[0] && x.shape[1] == g.shape[1]
            && has(&norms, x.shape[0], sizeof(double))
            && (!with_sums || has(&sums, x.shape[0] * g.shape[2], sizeof(float))) && threads > 0;
    if (right) {
        Py_ssize_t positions = x.shape[1], width = g.shape[2];
        double *norm = norms.buf;
        float *sum = sums.buf;
        Py_BEGIN_ALLOW_THREADS
#pragma omp parallel for num_threads(threads) schedule(static)
        for (Py_ssize_t which = 0; which < x.shape[0]; which++) {
            Vectors of_g = record(&g, which);
            norm[which] = squared_norm(record(&x, which), of_g, positions, guard);
            if (with_sums)
                sum_up(of_g, positions, sum + which * width);
        }
        Py_END_ALLOW_THREADS
    } else {
        PyErr_SetString(PyExc_ValueError,
                        "x and g must be (records, positions, 8 or more) of float32, one number after "
                        "another; norms a float64 and sums a float32 vector for each record");
    }
    if (with_sums)
        PyBuffer_Release(&sums);
without_sums:
    PyBuffer_Release(&norms);
without_norms:
    PyBuffer_Release(&g);
without_g:
    PyBuffer_Release(&x);
    if (!right)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"gram_norms", gram_norms, METH_VARARGS,
     "gram_norms(x, g, norms, sums, rounding, lost, threads): of every record ‖Σ gₜxₜᵀ‖² and Σ gₜ."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_gram_norms", "Norms of sums of outer products.", 0, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__gram_norms(void)
{
    if (!HAS_VECTORS) {
        PyErr_SetString(PyExc_ImportError, "this processor has no AVX2; torch's products are faster");
        return NULL;
    }
    PyObject *made = PyModule_Create(&module);
    if (made && PyModule_AddIntConstant(made, "SHORTEST", LANES) < 0) {
        Py_DECREF(made);
        return NULL;
    }
    return made;
}
