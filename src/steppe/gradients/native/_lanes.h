/* Eight numbers at a time, for the compiled kernels: types, and what differs between compilers. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <string.h>

#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
#error "-ffast-math does not know records that are not finite, nor does it keep the order of sums"
#endif

#if defined(__x86_64__)
#include <immintrin.h>
#define VECTORS __attribute__((target("avx2,fma")))
#define HAS_VECTORS (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
#else
#define VECTORS
#define HAS_VECTORS 1
#endif
#define NO_VECTORS "this processor has no AVX2, which the kernel is written for"
#define INLINE VECTORS static inline __attribute__((always_inline))

#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else /* GCC knows the other name since 12 */
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (mask){__VA_ARGS__})
#endif

enum { LANES = 8 };

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef lanes unaligned __attribute__((aligned(4), may_alias));
typedef int mask __attribute__((vector_size(4 * LANES)));
typedef unsigned bits __attribute__((vector_size(4 * LANES)));

/* a·b + sum, rounded once where the processor is known to. */
INLINE lanes fused(lanes a, lanes b, lanes sum)
{
#if defined(__x86_64__)
    return _mm256_fmadd_ps(a, b, sum);
#else
    return a * b + sum;
#endif
}

#if defined(__x86_64__)
enum { ROUNDS_PRODUCTS = 0 };
#else /* a compiler may fuse them or not */
enum { ROUNDS_PRODUCTS = 1 };
#endif

/* Memory that will be read next, to be fetched piece by piece while there is something to compute. */
typedef struct {
    const char *at, *end;
    Py_ssize_t pace; /* bytes for each piece */
} Ahead;

enum { LINE = 64 };

INLINE void fetch(Ahead *ahead)
{
    for (Py_ssize_t bytes = 0; bytes < ahead->pace && ahead->at < ahead->end; bytes += LINE) {
        __builtin_prefetch(ahead->at, 0, 2);
        ahead->at += LINE;
    }
}
