/* Attention of short sequences among themselves: softmax(q kᵀ · scale) v of every record and head, and
   its gradient. All that one head needs stays in the cache, so nothing is moved or stored on the way
   but the shares, which the gradient needs again. A record is computed by itself: what comes out is the
   same to the last bit, whoever the others are. */

#include "_lanes.h"

/* 6 rows of a product, 16 columns of it: 12 sums, 2 factors and 1 more fit 16 registers. */
enum { TALL = 6, LONGEST = 128, WIDEST = 128 };

/* A matrix whose entry (i, k) is first[i · row + k · step]. */
typedef struct {
    const float *first;
    Py_ssize_t row, step;
} Matrix;

/* What a head looks at. Queries, keys and values of a position lie after each other. */
typedef struct {
    Py_ssize_t records, positions, heads, width; /* `width` of one head */
    Py_ssize_t padded;                           /* positions, filled up to whole vectors */
    float scale;
} Shape;

INLINE void tile(const float *const a[TALL], Py_ssize_t step, const float *b, Py_ssize_t row,
                 Py_ssize_t count, float *const c[TALL], float scale, int vectors)
{
    lanes sum[TALL][2] = {{{0}}};
    for (Py_ssize_t k = 0; k < count; k++, b += row) {
        lanes b0 = *(const unaligned *)b, b1 = b0;
        if (vectors == 2)
            b1 = *(const unaligned *)(b + LANES);
#pragma GCC unroll 6
        for (int r = 0; r < TALL; r++) {
            lanes all = a[r][k * step] - (lanes){0};
            sum[r][0] = fused(all, b0, sum[r][0]);
            if (vectors == 2)
                sum[r][1] = fused(all, b1, sum[r][1]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < TALL; r++) {
        *(unaligned *)c[r] = sum[r][0] * scale;
        if (vectors == 2)
            *(unaligned *)(c[r] + LANES) = sum[r][1] * scale;
    }
}

/* c = scale · a b, where a has `rows` rows and `count` columns, and b `columns`, whole vectors. Past its
   last row, that one is computed again. */
INLINE void multiply(Matrix a, Py_ssize_t rows, Py_ssize_t count, const float *b, Py_ssize_t b_row,
                     Py_ssize_t columns, float *c, Py_ssize_t c_row, float scale, Ahead *ahead)
{
    for (Py_ssize_t i = 0; i < rows; i += TALL) {
        fetch(ahead);
        const float *from[TALL];
        float *to[TALL];
        for (Py_ssize_t r = 0; r < TALL; r++) {
            Py_ssize_t which = i + r < rows ? i + r : rows - 1;
            from[r] = a.first + which * a.row;
            to[r] = c + which * c_row;
        }
        Py_ssize_t j = 0;
        for (; j + 2 * LANES <= columns; j += 2 * LANES) {
            tile(from, a.step, b + j, b_row, count, to, scale, 2);
            for (Py_ssize_t r = 0; r < TALL; r++)
                to[r] += 2 * LANES;
        }
        if (j < columns)
            tile(from, a.step, b + j, b_row, count, to, scale, 1);
    }
}

/* 8 rows become 8 columns. */
INLINE void turn(lanes r[LANES])
{
    lanes pairs[LANES], fours[LANES];
#pragma GCC unroll 4
    for (int i = 0; i < LANES; i += 2) {
        pairs[i] = SHUFFLE(r[i], r[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        pairs[i + 1] = SHUFFLE(r[i], r[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        int from = i < 2 ? i : i + 2; /* 0, 1, 4, 5 */
        fours[2 * i] = SHUFFLE(pairs[from], pairs[from + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        fours[2 * i + 1] = SHUFFLE(pairs[from], pairs[from + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        r[i] = SHUFFLE(fours[i], fours[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        r[i + 4] = SHUFFLE(fours[i], fours[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

/* The transpose of `positions` rows; past the last, that one is repeated up to `padded`. */
INLINE void transpose(const float *from, Py_ssize_t row, Shape shape, float *to)
{
    for (Py_ssize_t t = 0; t < shape.padded; t += LANES)
        for (Py_ssize_t column = 0; column < shape.width; column += LANES) {
            lanes some[LANES];
#pragma GCC unroll 8
            for (int i = 0; i < LANES; i++) {
                Py_ssize_t which = t + i < shape.positions ? t + i : shape.positions - 1;
                some[i] = *(const unaligned *)(from + which * row + column);
            }
            turn(some);
#pragma GCC unroll 8
            for (int i = 0; i < LANES; i++)
                *(unaligned *)(to + (column + i) * shape.padded + t) = some[i];
        }
}

/* eˣ for x ≤ 0 to its last digit or the one before; 0 below −87, where the normal numbers end. */
INLINE lanes exponential(lanes x)
{
    const float shift = 12582912.0f; /* 1.5 · 2²³: a sum with it has no digits behind the point */
    mask lost = x < -87.0f;
    lanes shifted = fused(x, (lanes){0} + 1.44269504f, (lanes){0} + shift), n = shifted - shift;
    lanes r = fused(n, (lanes){0} - 0.693145752f, x); /* log 2 in two parts */
    r = fused(n, (lanes){0} - 1.42860677e-6f, r);
    lanes p = (lanes){0} + 1.0f / 5040.0f; /* of Taylor; |r| ≤ log(2) / 2 */
    p = fused(p, r, (lanes){0} + 1.0f / 720.0f);
    p = fused(p, r, (lanes){0} + 1.0f / 120.0f);
    p = fused(p, r, (lanes){0} + 1.0f / 24.0f);
    p = fused(p, r, (lanes){0} + 1.0f / 6.0f);
    p = fused(p, r, (lanes){0} + 0.5f);
    p = fused(p, r, (lanes){0} + 1.0f);
    p = fused(p, r, (lanes){0} + 1.0f);
    lanes power = (lanes)(((bits)shifted << 23) + (127u << 23)); /* 2ⁿ */
    return (lanes)((mask)(p * power) & ~lost);
}

INLINE float added(lanes all)
{
    return ((all[0] + all[4]) + (all[1] + all[5])) + ((all[2] + all[6]) + (all[3] + all[7]));
}

/* Scores of one position become shares: positive numbers that add up to one. */
INLINE void softmax(float *row, Shape shape)
{
    for (Py_ssize_t j = shape.positions; j < shape.padded; j++)
        row[j] = -INFINITY;
    lanes largest = *(const unaligned *)row, total = {0};
    for (Py_ssize_t j = LANES; j < shape.padded; j += LANES) {
        lanes other = *(const unaligned *)(row + j);
        mask above = other > largest;
        largest = (lanes)(((mask)other & above) | ((mask)largest & ~above));
    }
    float most = largest[0];
    for (int lane = 1; lane < LANES; lane++)
        most = largest[lane] > most ? largest[lane] : most;
    for (Py_ssize_t j = 0; j < shape.padded; j += LANES) {
        lanes share = exponential(*(const unaligned *)(row + j) - most);
        total += share;
        *(unaligned *)(row + j) = share;
    }
    float one = 1.0f / added(total);
    for (Py_ssize_t j = 0; j < shape.padded; j += LANES)
        *(unaligned *)(row + j) *= one;
}

/* Gradients of one position's shares become those of its scores. */
INLINE void softmax_backward(const float *shares, float *row, Shape shape)
{
    lanes along = {0};
    for (Py_ssize_t j = 0; j < shape.padded; j += LANES)
        along = fused(*(const unaligned *)(shares + j), *(const unaligned *)(row + j), along);
    float mean = added(along);
    for (Py_ssize_t j = 0; j < shape.padded; j += LANES) {
        lanes g = *(const unaligned *)(row + j) - mean;
        *(unaligned *)(row + j) = g * *(const unaligned *)(shares + j) * shape.scale;
    }
}

/* Where one record's head begins, and from one position to the next. */
typedef struct {
    Py_ssize_t record, head;
    Py_ssize_t packed, mixed, shares, packed_row, mixed_row, key, value;
} Place;

static Place place(Shape shape, Py_ssize_t which)
{
    Py_ssize_t record = which / shape.heads, head = which % shape.heads;
    Py_ssize_t all = shape.heads * shape.width;
    return (Place){record, head, record * shape.positions * 3 * all + head * shape.width,
                   record * shape.positions * all + head * shape.width,
                   which * shape.positions * shape.padded, 3 * all, all, all, 2 * all};
}

/* A head's share of what the next record has, with `parts` times the width, over so many products. */
static Ahead later(const float *first, Py_ssize_t parts, Shape shape, Place at, Py_ssize_t products)
{
    if (at.record + 1 == shape.records)
        return (Ahead){NULL, NULL, 0};
    Py_ssize_t bytes = 4 * parts * shape.positions * shape.width;
    Py_ssize_t pieces = products * ((shape.positions + TALL - 1) / TALL);
    const char *from = (const char *)first + bytes * ((at.record + 1) * shape.heads + at.head);
    return (Ahead){from, from + bytes, bytes / pieces + LINE};
}

VECTORS
static void mix(const float *packed, float *mixed, float *shares, Shape shape, Place at)
{
    Ahead next = later(packed, 3, shape, at, 2);
    float keys[WIDEST * LONGEST];
    Py_ssize_t positions = shape.positions, padded = shape.padded, row = at.packed_row;
    packed += at.packed, mixed += at.mixed, shares += at.shares;
    transpose(packed + at.key, row, shape, keys);
    multiply((Matrix){packed, row, 1}, positions, shape.width, keys, padded, padded, shares, padded,
             shape.scale, &next);
    for (Py_ssize_t i = 0; i < positions; i++)
        softmax(shares + i * padded, shape);
    multiply((Matrix){shares, padded, 1}, positions, positions, packed + at.value, row, shape.width,
             mixed, at.mixed_row, 1.0f, &next);
}

VECTORS
static void mix_backward(const float *packed, const float *shares, const float *grad, float *out,
                         Shape shape, Place at)
{
    Ahead next = later(packed, 3, shape, at, 3), next_grad = later(grad, 1, shape, at, 1);
    float values[WIDEST * LONGEST], scores[LONGEST * LONGEST];
    Py_ssize_t positions = shape.positions, padded = shape.padded, width = shape.width;
    Py_ssize_t row = at.packed_row, grad_row = at.mixed_row;
    packed += at.packed, out += at.packed, grad += at.mixed, shares += at.shares;
    transpose(packed + at.value, row, shape, values);
    multiply((Matrix){grad, grad_row, 1}, positions, width, values, padded, padded, scores, padded,
             1.0f, &next);
    for (Py_ssize_t i = 0; i < positions; i++)
        softmax_backward(shares + i * padded, scores + i * padded, shape);
    multiply((Matrix){scores, padded, 1}, positions, positions, packed + at.key, row, width, out, row,
             1.0f, &next);
    multiply((Matrix){scores, 1, padded}, positions, positions, packed, row, width, out + at.key, row,
             1.0f, &next);
    multiply((Matrix){shares, 1, padded}, positions, positions, grad, grad_row, width,
             out + at.value, row, 1.0f, &next_grad);
}

/* Whether the kernel takes such a shape, of which `padded` is known from then on. */
static int usable(Shape *shape, int threads)
{
    if (shape->records < 0 || shape->positions <= 0 || shape->positions > LONGEST || shape->heads <= 0
        || shape->width <= 0 || shape->width > WIDEST || shape->width % LANES || threads <= 0)
        return 0;
    shape->padded = (shape->positions + LANES - 1) / LANES * LANES;
    return 1;
}

/* Whether a buffer holds so many float32. In double, which does not begin again at zero. */
static int holds(const Py_buffer *view, double numbers)
{
    return (double)view->len == 4.0 * numbers && (size_t)view->buf % 4 == 0;
}

static PyObject *answer(int right)
{
    if (right)
        Py_RETURN_NONE;
    PyErr_SetString(PyExc_ValueError,
                    "packed and its gradient must be (records, positions, 3, heads, width) of float32, "
                    "mixed and its gradient without the 3, and shares (records, heads, positions, "
                    "positions filled up to whole vectors), one number after another");
    return NULL;
}

static int fit(Shape shape, const Py_buffer *packed, const Py_buffer *shares, const Py_buffer *mixed)
{
    double numbers = (double)shape.records * (double)shape.heads * (double)shape.positions;
    double width = (double)shape.width;
    return holds(packed, 3.0 * numbers * width) && holds(shares, numbers * (double)shape.padded)
           && holds(mixed, numbers * width);
}

static PyObject *attend(PyObject *self, PyObject *args)
{
    Py_buffer packed, shares, mixed;
    Shape shape;
    int threads;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*w*w*nnnnfi", &packed, &shares, &mixed, &shape.records,
                          &shape.positions, &shape.heads, &shape.width, &shape.scale, &threads))
        return NULL;
    int right = usable(&shape, threads) && fit(shape, &packed, &shares, &mixed);
    if (right) {
        Py_BEGIN_ALLOW_THREADS
#pragma omp parallel for num_threads(threads) schedule(static)
        for (Py_ssize_t which = 0; which < shape.records * shape.heads; which++)
            mix(packed.buf, mixed.buf, shares.buf, shape, place(shape, which));
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&packed);
    PyBuffer_Release(&shares);
    PyBuffer_Release(&mixed);
    return answer(right);
}

static PyObject *attend_backward(PyObject *self, PyObject *args)
{
    Py_buffer packed, shares, grad, out;
    Shape shape;
    int threads;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*y*w*nnnnfi", &packed, &shares, &grad, &out, &shape.records,
                          &shape.positions, &shape.heads, &shape.width, &shape.scale, &threads))
        return NULL;
    int right = usable(&shape, threads) && fit(shape, &packed, &shares, &grad)
                && out.len == packed.len && (size_t)out.buf % 4 == 0;
    if (right) {
        Py_BEGIN_ALLOW_THREADS
#pragma omp parallel for num_threads(threads) schedule(static)
        for (Py_ssize_t which = 0; which < shape.records * shape.heads; which++)
            mix_backward(packed.buf, shares.buf, grad.buf, out.buf, shape, place(shape, which));
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&packed);
    PyBuffer_Release(&shares);
    PyBuffer_Release(&grad);
    PyBuffer_Release(&out);
    return answer(right);
}

static PyMethodDef methods[] = {
    {"attend", attend, METH_VARARGS,
     "attend(packed, shares, mixed, records, positions, heads, width, scale, threads)"},
    {"attend_backward", attend_backward, METH_VARARGS,
     "attend_backward(packed, shares, grad, out, records, positions, heads, width, scale, threads)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_attention", "Attention of short sequences.", 0, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__attention(void)
{
    if (!HAS_VECTORS) {
        PyErr_SetString(PyExc_ImportError, NO_VECTORS);
        return NULL;
    }
    PyObject *made = PyModule_Create(&module);
    if (made
        && (PyModule_AddIntConstant(made, "LANES", LANES) < 0
            || PyModule_AddIntConstant(made, "LONGEST", LONGEST) < 0
            || PyModule_AddIntConstant(made, "WIDEST", WIDEST) < 0)) {
        Py_DECREF(made);
        return NULL;
    }
    return made;
}
