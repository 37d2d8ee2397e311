/* Box-Muller in one pass: a group of random words becomes a group of normal values.

   `steppe.noise._pairs` has the same in passes of torch, says what the formulas are and why, and
   goes on without this file where no C compiler was found. Loops like the one below are turned into
   vector instructions by the compiler, so it has no branch and calls no function of the library. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <stdint.h>
#include <string.h>

/* One version for each generation of processors; the loader chooses. GCC knows these generations by
   name since 12, and of the loaders on Linux glibc's can choose; elsewhere one version does it, since
   an error here would leave the kernel out without a word. */
#if defined(__x86_64__) && defined(__GLIBC__) && __GNUC__ >= 12 && !defined(__clang__)
#define EVERY_PROCESSOR \
    __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define EVERY_PROCESSOR
#endif

static inline float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* ln u for u in (0, 1). With u = 2^e m and m between √½ and √2, ln u = e ln 2 + ln(1 + f) where
   f = m − 1, by a polynomial; ln 2 comes in two pieces, of which the first times e is exact. */
static inline float natural_logarithm(float u)
{
    const uint32_t root_half = 0x3f3504f3u;
    uint32_t above = bits_of(u) - root_half;
    float e = (float)((int32_t)above >> 23);
    float f = float_of((above & 0x007fffffu) + root_half) - 1.0f;
    float f2 = f * f, f4 = f2 * f2;
    float low = (2.0000714765e-1f - 1.6668057665e-1f * f) * f2 + (3.3333331174e-1f - 2.4999993993e-1f * f);
    float high = (1.1676998740e-1f - 1.1514610310e-1f * f) * f2 + (1.4249322787e-1f - 1.2420140846e-1f * f);
    float cubic = (7.0376836292e-2f * f4 + high) * f4 + low;
    return f + (cubic * f * f2 - 2.12194440e-4f * e - 0.5f * f2) + 0.693359375f * e;
}

/* Values N(0, std²): cosines in the first half of `out`, sines in the second. */
EVERY_PROCESSOR
static void normals(const int64_t *restrict words, const int32_t *restrict turns,
                    float *restrict out, Py_ssize_t half, float std)
{
    float *restrict second = out + half;
    for (Py_ssize_t i = 0; i < half; i++) {
        /* The word in three pieces, small ones last: near 0, which is the tail, each is exact. */
        int32_t high = (int32_t)(words[i] >> 32);
        uint32_t low = (uint32_t)words[i];
        float word = ((float)high + (float)(int32_t)(low >> 16) * 0x1p-16f)
                     + (float)(int32_t)(low & 0xffffu) * 0x1p-32f;
        float u = fabsf(word) * (0x1p-31f * (1.0f - 0x1p-24f)) + 0x1p-65f;
        float radius = sqrtf(-2.0f * natural_logarithm(u)) * std;

        /* The nearest quarter of a turn, and an angle of at most π/4 to either side of it. */
        uint32_t turn = (uint32_t)turns[i];
        uint32_t quarter = (turn + 0x20000000u) >> 30;
        float angle = (float)(int32_t)(turn - (quarter << 30)) * 1.46291807926715968e-9f;
        float angle2 = angle * angle;
        float sine = ((-1.9515295891e-4f * angle2 + 8.3321608736e-3f) * angle2 - 1.6666654611e-1f)
                     * angle2 * angle + angle;
        float cosine = ((2.443315711809948e-5f * angle2 - 1.388731625493765e-3f) * angle2
                        + 4.166664568298827e-2f) * angle2 * angle2 - 0.5f * angle2 + 1.0f;
        uint32_t swapped = 0u - (quarter & 1u);
        uint32_t difference = (bits_of(sine) ^ bits_of(cosine)) & swapped;
        uint32_t minus_cosine = ((quarter + 1u) << 30) & 0x80000000u;
        uint32_t minus_sine = (quarter << 30) & 0x80000000u;
        out[i] = float_of(bits_of(cosine) ^ difference ^ minus_cosine) * radius;
        second[i] = float_of(bits_of(sine) ^ difference ^ minus_sine) * radius;
    }
}

static PyObject *box_muller(PyObject *self, PyObject *args)
{
    Py_buffer words, turns, out;
    float std;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*w*f", &words, &turns, &out, &std))
        return NULL;
    Py_ssize_t half = turns.len / 4;
    int fits = turns.len == 4 * half && words.len == 8 * half && out.len == 8 * half
               && ((uintptr_t)words.buf % 8 | (uintptr_t)turns.buf % 4 | (uintptr_t)out.buf % 4) == 0;
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        normals(words.buf, turns.buf, out.buf, half, std);
        Py_END_ALLOW_THREADS
    } else {
        PyErr_SetString(PyExc_ValueError, "words, turns and values must be of as many pairs");
    }
    PyBuffer_Release(&words);
    PyBuffer_Release(&turns);
    PyBuffer_Release(&out);
    if (!fits)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"box_muller", box_muller, METH_VARARGS,
     "box_muller(words, turns, out, std): words of 64 and 32 bits to N(0, std²) in float32."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_box_muller", "Box-Muller in one pass.", 0, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__box_muller(void)
{
    return PyModule_Create(&module);
}
