/* Norms of sums of outer products, a record at a time, from the inner products of their factors.

   `steppe.clipping.grams` says what is added for rounding and why, and does the same in float64 where
   this file was not compiled. The lower halves of both Gram matrices are made block by block; a block
   is small enough to stay in the cache, and is gone once it is added up. Convolutions, which shift
   and add a matrix first, have it written down and come back for the norm. */

#include "_gram_block.h"

/* Sums over all pairs of positions of a record: Σ K(x)K(g), both traces, both sums of squares. */
typedef struct {
    double total, trace_x, trace_g, squares_x, squares_g;
} Sums;

INLINE void add(Sums *to, double x, double g)
{
    to->total += x * g;
    to->squares_x += x * x;
    to->squares_g += g * g;
}

/* The same of several pairs at a time. */
typedef struct {
    sums total, squares_x, squares_g;
} Columns;

INLINE void add_columns(Columns *to, sums x, sums g)
{
    to->total += x * g;
    to->squares_x += x * x;
    to->squares_g += g * g;
}

INLINE void add_up(Sums *to, Columns from)
{
    for (int column = 0; column < COLUMNS; column++) {
        to->total += from.total[column];
        to->squares_x += from.squares_x[column];
        to->squares_g += from.squares_g[column];
    }
}

/* What rounding and underflow may take from a norm, as `steppe.clipping.grams` has it. */
typedef struct {
    double rounding_x, rounding_g; /* of an entry of K(x) and of K(g), as a fraction of ‖a‖‖b‖ */
    double lost;                   /* of an entry of either, by underflow */
} Guard;

static double guarded(Sums sums, Py_ssize_t positions, Guard guard)
{
    if (!isfinite(sums.total)) /* minus infinity is no short gradient */
        return INFINITY;
    double rounding = guard.rounding_x * sums.trace_x * sqrt(sums.squares_g)
                      + guard.rounding_g * sqrt(sums.squares_x) * sums.trace_g;
    double lost = (double)positions * guard.lost;
    return (sums.total > 0.0 ? sums.total : 0.0) + rounding
           + lost * (sums.trace_x + sums.trace_g + 2.0 * lost);
}

/* ‖Σ gₜxₜᵀ‖² with its guard. */
VECTORS
static double squared_norm(Vectors x, Vectors g, Py_ssize_t positions, Guard guard, Ahead *next_x,
                           Ahead *next_g)
{
    double in_x[BLOCK][BLOCK], in_g[BLOCK][BLOCK];
    Py_ssize_t size = block_size(positions);
    Sums all = {0.0, 0.0, 0.0, 0.0, 0.0};
    for (Py_ssize_t top = 0; top < positions; top += size) {
        Range down = {top, positions - top < size ? positions - top : size};
        for (Py_ssize_t start = 0; start <= top; start += size) {
            Range along = {start, start == top ? down.count : size};
            Sums below = {0.0, 0.0, 0.0, 0.0, 0.0};
            Columns found = {{0.0}, {0.0}, {0.0}};
            gram(x, down, along, in_x, next_x);
            gram(g, down, along, in_g, next_g);
            for (Py_ssize_t i = 0; i < down.count; i++) {
                Py_ssize_t count = start == top ? i : along.count, j = 0;
                for (; j + COLUMNS <= count; j += COLUMNS)
                    add_columns(&found, *(const sums *)&in_x[i][j], *(const sums *)&in_g[i][j]);
                for (; j < count; j++)
                    add(&below, in_x[i][j], in_g[i][j]);
            }
            add_up(&below, found);
            /* What stands below the diagonal stands above it too. */
            all.total += 2.0 * below.total;
            all.squares_x += 2.0 * below.squares_x;
            all.squares_g += 2.0 * below.squares_g;
        }
        for (Py_ssize_t i = 0; i < down.count; i++) { /* of the last block, which has the diagonal */
            add(&all, in_x[i][i], in_g[i][i]);
            all.trace_x += in_x[i][i];
            all.trace_g += in_g[i][i];
        }
    }
    return guarded(all, positions, guard);
}

/* K(x), both halves. */
VECTORS
static void fill(Vectors x, Py_ssize_t positions, float *out)
{
    double block[BLOCK][BLOCK];
    Ahead nothing = {NULL, NULL, 0};
    Py_ssize_t size = block_size(positions);
    for (Py_ssize_t top = 0; top < positions; top += size) {
        Range down = {top, positions - top < size ? positions - top : size};
        for (Py_ssize_t start = 0; start <= top; start += size) {
            Range along = {start, start == top ? down.count : size};
            gram(x, down, along, block, &nothing);
            for (Py_ssize_t i = 0; i < down.count; i++) {
                Py_ssize_t count = start == top ? i + 1 : along.count;
                for (Py_ssize_t j = 0; j < count; j++)
                    out[(top + i) * positions + start + j] = (float)block[i][j];
            }
            for (Py_ssize_t j = 0; j < along.count; j++)
                for (Py_ssize_t i = start == top ? j + 1 : 0; i < down.count; i++)
                    out[(start + j) * positions + top + i] = (float)block[i][j];
        }
    }
}

/* The same norm as above from two matrices that are there already. */
VECTORS
static double norm_of_matrices(const float *x, const float *g, Py_ssize_t positions, Guard guard)
{
    Sums found = {0.0, 0.0, 0.0, 0.0, 0.0};
    Columns columns = {{0.0}, {0.0}, {0.0}};
    Py_ssize_t numbers = positions * positions, at = 0;
    for (; at + COLUMNS <= numbers; at += COLUMNS)
        add_columns(&columns, __builtin_convertvector(*(const unaligned_four *)(x + at), sums),
                    __builtin_convertvector(*(const unaligned_four *)(g + at), sums));
    add_up(&found, columns);
    for (; at < numbers; at++)
        add(&found, x[at], g[at]);
    for (Py_ssize_t t = 0; t < positions; t++) {
        found.trace_x += x[t * (positions + 1)];
        found.trace_g += g[t * (positions + 1)];
    }
    return guarded(found, positions, guard);
}

/* out = Σ gₜ, while g is in the cache. In two levels, so that rounding grows slowly with positions. */
VECTORS
static void sum_up(Vectors g, Py_ssize_t positions, float *restrict out)
{
    float some[CHUNK];
    for (Py_ssize_t start = 0; start < g.length; start += CHUNK) {
        Py_ssize_t count = g.length - start < CHUNK ? g.length - start : CHUNK;
        memset(out + start, 0, sizeof(float) * (size_t)count);
        for (Py_ssize_t top = 0; top < positions;) {
            Py_ssize_t end = positions - top < BLOCK ? positions : top + BLOCK;
            memset(some, 0, sizeof some);
            const float *row = g.first + top * g.stride + start;
            for (; end - top >= 4; top += 4, row += 4 * g.stride)
                for (Py_ssize_t k = 0; k < count; k++)
                    some[k] += (row[k] + row[k + g.stride])
                               + (row[k + 2 * g.stride] + row[k + 3 * g.stride]);
            for (; top < end; top++, row += g.stride)
                for (Py_ssize_t k = 0; k < count; k++)
                    some[k] += row[k];
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

/* Whether a buffer holds float32 matrices `(records, positions, positions)` and nothing between. */
static int matrices(const Py_buffer *view)
{
    return view->ndim == 3 && view->itemsize == 4 && view->format && strcmp(view->format, "f") == 0
           && view->shape[1] == view->shape[2] && PyBuffer_IsContiguous(view, 'C')
           && (size_t)view->buf % 4 == 0;
}

static Vectors record(const Py_buffer *view, Py_ssize_t which)
{
    const char *first = (const char *)view->buf + which * view->strides[0];
    return (Vectors){(const float *)first, view->strides[1] / 4, view->shape[2]};
}

/* The vectors of a record that comes later; nothing where others lie between them. */
static Ahead later(const Py_buffer *view, Py_ssize_t which)
{
    Vectors next = record(view, which < view->shape[0] ? which : 0);
    Py_ssize_t positions = view->shape[1], numbers = positions * next.length;
    Py_ssize_t tiles = (positions * positions / (2 * TILES) + 1) * (next.length / CHUNK + 1);
    if (which >= view->shape[0] || next.stride != next.length)
        return (Ahead){NULL, NULL, 0};
    return (Ahead){(const char *)next.first, (const char *)(next.first + numbers),
                   4 * numbers / tiles + LINE};
}

/* Whether a buffer has room for so many times so many numbers of the given size. In double, which does
   not begin again at zero. */
static int has(const Py_buffer *view, Py_ssize_t times, Py_ssize_t numbers, size_t size)
{
    return (double)view->len == (double)times * (double)numbers * (double)size
           && (size_t)view->buf % size == 0;
}

/* Buffers of the given objects, with None for those that were left out; 0 and none held on failure. */
enum { READ = PyBUF_STRIDES | PyBUF_FORMAT, WRITE = PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS };

static void release(Py_buffer *views, int count)
{
    while (count-- > 0)
        PyBuffer_Release(&views[count]); /* does nothing for one that was left out */
}

static int hold(PyObject *const *objects, const int *flags, Py_buffer *views, int count)
{
    for (int i = 0; i < count; i++) {
        memset(&views[i], 0, sizeof views[i]);
        if (objects[i] != Py_None && PyObject_GetBuffer(objects[i], &views[i], flags[i]) < 0) {
            release(views, i);
            return 0;
        }
    }
    return 1;
}

static PyObject *answer(int right, Py_buffer *views, int count, const char *rule)
{
    release(views, count);
    if (right)
        Py_RETURN_NONE;
    PyErr_SetString(PyExc_ValueError, rule);
    return NULL;
}

static PyObject *gram_norms(PyObject *self, PyObject *args)
{
    PyObject *objects[4];
    Py_buffer views[4];
    Guard guard;
    int threads;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOOdddi", &objects[0], &objects[1], &objects[2], &objects[3],
                          &guard.rounding_x, &guard.rounding_g, &guard.lost, &threads)
        || !hold(objects, (const int[]){READ, READ, WRITE, WRITE}, views, 4))
        return NULL;
    const Py_buffer *x = &views[0], *g = &views[1];
    double *norms = views[2].buf;
    float *sums = views[3].buf;
    int right = fits(x) && fits(g) && x->shape[0] == g->shape[0] && x->shape[1] == g->shape[1]
                && has(&views[2], 1, x->shape[0], sizeof(double))
                && (!sums || has(&views[3], x->shape[0], g->shape[2], sizeof(float))) && threads > 0;
    if (right) {
        Py_ssize_t positions = x->shape[1], width = g->shape[2];
        Py_BEGIN_ALLOW_THREADS
#pragma omp parallel for num_threads(threads) schedule(static)
        for (Py_ssize_t which = 0; which < x->shape[0]; which++) {
            Vectors of_g = record(g, which);
            Ahead next_x = later(x, which + 1), next_g = later(g, which + 1);
            norms[which] = squared_norm(record(x, which), of_g, positions, guard, &next_x, &next_g);
            if (sums)
                sum_up(of_g, positions, sums + which * width);
        }
        Py_END_ALLOW_THREADS
    }
    return answer(right, views, 4,
                  "x and g must be (records, positions, 8 or more) of float32, one number after "
                  "another; norms a float64 and sums a float32 vector for each record");
}

static PyObject *gram_matrices(PyObject *self, PyObject *args)
{
    PyObject *objects[2];
    Py_buffer views[2];
    int threads;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOi", &objects[0], &objects[1], &threads)
        || !hold(objects, (const int[]){READ, WRITE}, views, 2))
        return NULL;
    const Py_buffer *x = &views[0];
    float *out = views[1].buf;
    int right = fits(x) && x->shape[1] < 1 << 24
                && has(&views[1], x->shape[0], x->shape[1] * x->shape[1], sizeof(float)) && threads > 0;
    if (right) {
        Py_ssize_t positions = x->shape[1];
        Py_BEGIN_ALLOW_THREADS
#pragma omp parallel for num_threads(threads) schedule(static)
        for (Py_ssize_t which = 0; which < x->shape[0]; which++)
            fill(record(x, which), positions, out + which * positions * positions);
        Py_END_ALLOW_THREADS
    }
    return answer(right, views, 2,
                  "x must be (records, positions, 8 or more) of float32, one number after another, "
                  "and out a float32 matrix for each record");
}

static PyObject *matrix_norms(PyObject *self, PyObject *args)
{
    PyObject *objects[3];
    Py_buffer views[3];
    Guard guard;
    int threads;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOdddi", &objects[0], &objects[1], &objects[2],
                          &guard.rounding_x, &guard.rounding_g, &guard.lost, &threads)
        || !hold(objects, (const int[]){READ, READ, WRITE}, views, 3))
        return NULL;
    const Py_buffer *x = &views[0], *g = &views[1];
    double *norms = views[2].buf;
    int right = matrices(x) && matrices(g) && x->shape[0] == g->shape[0]
                && x->shape[1] == g->shape[1] && has(&views[2], 1, x->shape[0], sizeof(double))
                && threads > 0;
    if (right) {
        Py_ssize_t positions = x->shape[1], numbers = positions * positions;
        const float *of_x = x->buf, *of_g = g->buf;
        Py_BEGIN_ALLOW_THREADS
#pragma omp parallel for num_threads(threads) schedule(static)
        for (Py_ssize_t which = 0; which < x->shape[0]; which++)
            norms[which] = norm_of_matrices(of_x + which * numbers, of_g + which * numbers,
                                            positions, guard);
        Py_END_ALLOW_THREADS
    }
    return answer(right, views, 3,
                  "gram_x and gram_g must be (records, positions, positions) of float32, one number "
                  "after another, and norms a float64 for each record");
}

static PyObject *roundings_of(PyObject *self, PyObject *length)
{
    Py_ssize_t numbers = PyNumber_AsSsize_t(length, PyExc_OverflowError);
    (void)self;
    return numbers == -1 && PyErr_Occurred() ? NULL : PyFloat_FromDouble(roundings(numbers));
}

static PyMethodDef methods[] = {
    {"gram_norms", gram_norms, METH_VARARGS,
     "gram_norms(x, g, norms, sums, rounding_x, rounding_g, lost, threads): of every record "
     "‖Σ gₜxₜᵀ‖² and Σ gₜ."},
    {"gram_matrices", gram_matrices, METH_VARARGS,
     "gram_matrices(x, out, threads): K(x) of every record."},
    {"matrix_norms", matrix_norms, METH_VARARGS,
     "matrix_norms(gram_x, gram_g, norms, rounding_x, rounding_g, lost, threads): ‖Σ gₜxₜᵀ‖² from "
     "both matrices."},
    {"roundings", roundings_of, METH_O,
     "roundings(length): how often a product is rounded at most on its way into an inner product."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_gram_norms", "Norms of sums of outer products.", 0, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__gram_norms(void)
{
    if (!HAS_VECTORS) {
        PyErr_SetString(PyExc_ImportError, NO_VECTORS);
        return NULL;
    }
    PyObject *made = PyModule_Create(&module);
    if (made && PyModule_AddIntConstant(made, "SHORTEST", LANES) < 0) {
        Py_DECREF(made);
        return NULL;
    }
    return made;
}
