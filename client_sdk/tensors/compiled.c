/* The loops of this package that NumPy needs several passes for. compiled.py calls them; scripts/compiling.py compiles
   this file, where there is a compiler. They give the bits of the NumPy code beside which they stand: integers, and
   single float operations whose results IEEE 754 fixes. So nothing may be compiled that reorders or contracts them. */

#include <float.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if FLT_EVAL_METHOD != 0 || defined(__FAST_MATH__)
#error "a float operation must be rounded to its own type, and stay what it is"
#endif

/* A version of a function for each generation of processors, of which the loader takes the best that the machine has. */
#ifdef VERSIONS
#define VERSIONED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define VERSIONED
#endif

/* 1024 values and their lanes, 12 KiB, stay in the first cache between two passes. */
#define CHUNK 1024

/* The bits of the largest magnitude: order as the magnitudes do, and those of infinity and NaN are above all others. */
static inline __attribute__((always_inline)) int32_t largest_of(const float *values, size_t count)
{
    int32_t largest = 0;
    for (size_t i = 0; i < count; i++) {
        int32_t bits;
        memcpy(&bits, values + i, sizeof bits);
        bits &= INT32_MAX;
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

/* lanes += weight * bits(value + 1.5 * 2^20), modulo 2^64: see exact_sum.py. */
static inline __attribute__((always_inline)) void fold(
    uint64_t *restrict lanes, const float *restrict values, size_t count, uint64_t weight)
{
    for (size_t i = 0; i < count; i++) {
        double rounded = (double)values[i] + 1.5 * (1 << 20);
        uint64_t bits;
        memcpy(&bits, &rounded, sizeof bits);
        lanes[i] += weight * bits;
    }
}

VERSIONED int32_t quorate_largest(const float *values, size_t count)
{
    return largest_of(values, count);
}

/* Returns the largest magnitude's bits. Above `most` nothing has been added: a chunk is looked at before it is added,
   and what was added before it is taken off again. */
VERSIONED int32_t quorate_fold(
    uint64_t *restrict lanes, const float *restrict values, size_t count, uint64_t weight, int32_t most)
{
    int32_t largest = 0;
    for (size_t start = 0; start < count; start += CHUNK) {
        size_t size = count - start < CHUNK ? count - start : CHUNK;
        int32_t here = largest_of(values + start, size);
        if (here > most) {
            fold(lanes, values, start, -weight);
            return here;
        }
        largest = here > largest ? here : largest;
        fold(lanes + start, values + start, size, weight);
    }
    return largest;
}

/* The sums of l2_norm_of_blocks (floats.py): of the squares of shrink * values, each at most 1, in units of 2^-36,
   2^-72 and 2^-108. Integers, so that the processor may add them in any order; at most 2^26 values fit. */
VERSIONED void quorate_squares(const float *restrict values, size_t count, double shrink, int64_t *restrict sums)
{
    const double anchors[3] = {1.5 * (1 << 16), 1.5 / (1 << 20), 1.5 / (1 << 28) / (1 << 28)};
    int64_t found[3] = {0, 0, 0}, constant[3];
    memcpy(constant, anchors, sizeof constant);
    for (size_t i = 0; i < count; i++) {
        double rest = (double)values[i] * shrink;
        rest *= rest;
        for (int part = 0; part < 3; part++) {
            double rounded = rest + anchors[part];
            int64_t bits;
            memcpy(&bits, &rounded, sizeof bits);
            found[part] += bits - constant[part];
            rest -= rounded - anchors[part];
        }
    }
    memcpy(sums, found, sizeof found);
}

/* A stage of the Walsh-Hadamard transform (codecs/linear_map.py): pairs (a, b) become (a + b, a - b). */
static inline __attribute__((always_inline)) void stage(float *values, size_t count, size_t distance)
{
    for (size_t start = 0; start + 2 * distance <= count; start += 2 * distance)
        for (size_t i = start; i < start + distance; i++) {
            float a = values[i], b = values[i + distance];
            values[i] = a + b;
            values[i + distance] = a - b;
        }
}

/* The stages from this distance on, two of them in each pass. */
static inline __attribute__((always_inline)) void stages(float *values, size_t count, size_t distance)
{
    for (; 4 * distance <= count; distance *= 4)
        for (size_t start = 0; start < count; start += 4 * distance)
            for (size_t i = start; i < start + distance; i++) {
                float a = values[i], b = values[i + distance];
                float c = values[i + 2 * distance], d = values[i + 3 * distance];
                float ab = a + b, a_b = a - b, cd = c + d, c_d = c - d;
                values[i] = ab + cd;
                values[i + distance] = a_b + c_d;
                values[i + 2 * distance] = ab - cd;
                values[i + 3 * distance] = a_b - c_d;
            }
    stage(values, 2 * distance <= count ? count : 0, distance);
}

/* Of `count` values, a power of two, in rows of `columns`: first the stages between rows, then those within. */
VERSIONED void quorate_transform(float *values, size_t count, size_t columns, float scale)
{
    for (size_t i = 0; i < count; i++)
        values[i] *= scale;
    stages(values, count, columns);
    for (float *row = values; row < values + count; row += columns) {
        stage(row, columns, 1);
        stage(row, columns, 2);
        stage(row, columns, 4);
        stages(row, columns, 8);
    }
}
