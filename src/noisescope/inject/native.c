/* Keyed noise on the CPU: fills, or perturbs in place, a float32 or bfloat16 tensor, and tallies what it changed.
 *
 * Does not choose where noise goes, and calls nothing of Python or torch. The numbers are those of keyed.py.
 * Every multiply-add is written out and the compiler may contract no other, so the result is the same to the bit
 * on every processor with fused multiply-add, whatever the vector width, the compiler, the number of threads and the
 * path taken through this file.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define BLOCK 1024        /* elements worked on while they stay in the first cache */
#define CHUNK_BITS 24     /* elements per pair of hash keys, as in keyed.py */
#define GROUP 32          /* one block of every group is tallied */
#define BFLOAT_GROUP 4    /* rounding to whole ulps makes few and large errors: more blocks for the same certainty */
#define SEGMENT 32768     /* least work handed to a thread */
#define SEGMENTS 512      /* most parts a tensor is cut into */
#define LANES 16
#define PHI 0x9E3779B9u
#define GOLDEN 0x9E3779B97F4A7C15u
#define FLOAT_LARGEST 0x1.fffffep127f
#define BFLOAT_LARGEST 0x1.fep127f
#define CALM_SCALE 1e18f  /* with |y| <= 2^64, y + y * n * scale stays finite: |n| < 6.7 */

#define INLINE static inline __attribute__((always_inline))
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__aarch64__)
#define MADD(a, b, c) __builtin_fmaf(a, b, c)
#else
#define MADD(a, b, c) ((a) * (b) + (c))
#endif

/* A task is a sum of these. UNIT: uniform in [0, 1), else uniform noise is centred. */
enum { UNIFORM = 1, RELATIVE = 2, FILL = 4, BFLOAT = 8, UNIT = 16 };

typedef struct { double elements, changed, error_squares, value_squares; } tally;

/* GOMP_parallel of the OpenMP runtime that torch already runs: a second pool would fight it for the cores. */
typedef void (*team)(void (*work)(void *), void *data, unsigned threads, unsigned flags);

/* What native.py asks, and in `total` the answer: finite elements, how many of them changed, and two sums of squares,
 * over the blocks that are tallied; a fill leaves them 0. Without a team the caller's thread does all. */
typedef struct {
    void *data;
    int64_t count;
    uint64_t key;
    team start_team;
    float scale;
    int32_t task, threads;
    tally total;
} request;

typedef struct {
    void *data;
    int64_t count, segment, segments, next;
    uint64_t key;
    float gain;
    int task, careful;
    tally *tallies;
} job;

INLINE uint32_t bits_of(float x) { uint32_t b; memcpy(&b, &x, 4); return b; }
INLINE float float_of(uint32_t b) { float x; memcpy(&x, &b, 4); return x; }
/* NaN, from infinity times 0, becomes the largest. */
INLINE float within(float x, float largest) { x = x < largest ? x : largest; return x > -largest ? x : -largest; }

static uint64_t finalize(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static uint64_t mix(uint64_t key, uint64_t counter) { return finalize((key ^ finalize(counter + GOLDEN)) + GOLDEN); }

/* The key enters twice: added to the counter alone it would make streams that are shifted copies of each other. */
INLINE uint32_t hash(uint32_t h, uint32_t high)
{
    h ^= h >> 16;
    h = h * 0x21F0AAADu + high;
    h ^= h >> 15;
    return h * 0xD35A2D97u;
}

/* sqrt(-2 log u) with u = (h / 2 + 1/2) / 2^31. The mantissa is centred on 1, so that the logarithm keeps its relative
 * accuracy as u nears 1; minimax polynomial for -2 log(1 + f) / f, relative error 1.7e-7. */
INLINE float radius(uint32_t h)
{
    float u = MADD((float)(int32_t)(h >> 1), 0x1p-31f, 0x1p-32f);
    uint32_t b = bits_of(u) - 0x3F3504F3u;
    float e = (float)((int32_t)b >> 23);
    float f = float_of((b & 0x7FFFFFu) + 0x3F3504F3u) - 1.0f;
    float p = MADD(0.202137815f, f, -0.324451573f);
    p = MADD(p, f, 0.345016609f);
    p = MADD(p, f, -0.398003315f);
    p = MADD(p, f, 0.499398181f);
    p = MADD(p, f, -0.666701179f);
    p = MADD(p, f, 1.0000073f);
    p = MADD(p, f, -1.99999989f);
    return sqrtf(MADD(p, f, e * -1.38629436f));
}

/* Box-Muller on the half circle x * pi/2 with x in [-1, 1]; bit 7 of the angle's hash, below what x can hold, reflects
 * it to the other half. Minimax polynomials in x^2, errors 7e-9 and 5e-8. */
INLINE void gaussian_pair(uint32_t counter, uint32_t high, float gain, float *first, float *second)
{
    uint32_t h = hash(counter + LANES * PHI, high);
    float r = radius(hash(counter, high)) * gain;
    float x = (float)(int32_t)h * 0x1p-31f, z = x * x;
    float s = MADD(0.00015167853163f, z, -0.0046741574957f);
    s = MADD(s, z, 0.079689926866f);
    s = MADD(s, z, -0.64596376129f);
    s = MADD(s, z, 1.5707963201f) * x;
    float c = MADD(0.00085819061926f, z, -0.020810627519f);
    c = MADD(c, z, 0.25365074464f);
    c = MADD(c, z, -1.2336982147f);
    c = MADD(c, z, 0.99999995347f);
    *first = r * s;
    *second = r * float_of(bits_of(c) ^ ((h << 24) & 0x80000000u));
}

INLINE float landed(float y, float n, int task)
{
    return task & FILL ? n : task & RELATIVE ? MADD(y, n, y) : y + n;
}

INLINE void gaussian_block(float *restrict y, uint32_t low, uint32_t high, float gain, int task)
{
    for (int i = 0; i < BLOCK; i += 2 * LANES, y += 2 * LANES, low += 2 * LANES * PHI)
        for (int j = 0; j < LANES; j++) {
            float a, b;
            gaussian_pair(low + (uint32_t)j * PHI, high, gain, &a, &b);
            y[j] = landed(y[j], a, task);
            y[j + LANES] = landed(y[j + LANES], b, task);
        }
}

INLINE void uniform_block(float *restrict y, uint32_t low, uint32_t high, float gain, int task)
{
    float shift = task & UNIT ? 0.0f : 0.5f;
    for (uint32_t i = 0; i < BLOCK; i++) {
        float u = (float)(int32_t)(hash(i * PHI + low, high) >> 8) * 0x1p-24f;
        y[i] = landed(y[i], (u - shift) * gain, task);
    }
}

/* One copy of a loop per task, with the task a constant inside it. */
static void noise_block(float *y, uint64_t key, int64_t first, float gain, int task)
{
    uint64_t words = mix(key, (uint64_t)first >> CHUNK_BITS);
    uint32_t index = (uint32_t)first & ((1u << CHUNK_BITS) - 1);
    uint32_t high = (uint32_t)(words >> 32), low = (uint32_t)words + index * PHI;
    switch (task & ~BFLOAT) {
    case 0: gaussian_block(y, low, high, gain, 0); break;
    case RELATIVE: gaussian_block(y, low, high, gain, RELATIVE); break;
    case UNIFORM: uniform_block(y, low, high, gain, UNIFORM); break;
    case UNIFORM | RELATIVE: uniform_block(y, low, high, gain, UNIFORM | RELATIVE); break;
    case FILL: gaussian_block(y, low, high, gain, FILL); break;
    case FILL | UNIFORM: uniform_block(y, low, high, gain, FILL); break;
    default: uniform_block(y, low, high, gain, FILL | UNIT);
    }
}

INLINE uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }
INLINE uint32_t size_of(float x) { return bits_of(x) << 1; }

/* Whether all is finite and at most 2^64 in size; four streams, so that no maximum waits for the one before. */
static int calm(const float *y)
{
    const int stream = BLOCK / 4;
    uint32_t largest = 0;
    for (int i = 0; i < stream; i++) {
        uint32_t a = larger(size_of(y[i]), size_of(y[i + stream]));
        uint32_t b = larger(size_of(y[i + 2 * stream]), size_of(y[i + 3 * stream]));
        largest = larger(largest, larger(a, b));
    }
    return largest <= size_of(0x1p64f);
}

/* By mask: gcc 12 turns a ternary on two conditions into a branch and then vectorises nothing. */
INLINE uint32_t either(int first, uint32_t a, uint32_t b)
{
    uint32_t mask = 0u - (uint32_t)first;
    return (a & mask) | (b & ~mask);
}

INLINE int is_finite(uint32_t bits) { return (bits & 0x7F800000u) != 0x7F800000u; }

/* Loops of a block that is looked at closely leave behind: values before and after, 0 for both where not finite. */
typedef struct { float before[BLOCK], after[BLOCK]; int finite; } change;

/* The vector type says in which order to sum, so that the compiler need not be allowed to choose one. */
typedef double doubles __attribute__((vector_size(8 * sizeof(double)), aligned(4)));
typedef float floats __attribute__((vector_size(8 * sizeof(float)), aligned(4)));

static void add_change(const change *c, tally *total)
{
    doubles errors = {0}, values = {0};
    int changed = 0;
    for (int i = 0; i < BLOCK; i += 8) {
        doubles value = __builtin_convertvector(*(const floats *)(c->before + i), doubles);
        doubles error = __builtin_convertvector(*(const floats *)(c->after + i), doubles) - value;
        errors += error * error;
        values += value * value;
    }
    for (int i = 0; i < BLOCK; i++)
        changed += c->after[i] != c->before[i];
    for (int j = 0; j < 8; j++) {
        total->error_squares += errors[j];
        total->value_squares += values[j];
    }
    total->changed += changed;
    total->elements += c->finite;
}

INLINE void careful_block(float *restrict y, const float *restrict noise, int task, change *restrict c)
{
    int finite = 0;
    for (int i = 0; i < BLOCK; i++) {
        float before = y[i], n = within(noise[i], FLOAT_LARGEST);
        float after = within(landed(before, n, task), FLOAT_LARGEST);
        int able = is_finite(bits_of(before));
        y[i] = float_of(either(able & (after != before), bits_of(after), bits_of(before)));
        c->before[i] = able ? before : 0.0f;
        c->after[i] = able ? after : 0.0f;
        finite += able;
    }
    c->finite = finite;
}

/* The error rounded to whole ulps of y so that its second moment is kept: t ulps become f + 1 with probability p, else
 * f, where f^2 + p (2 f + 1) = t^2. Beyond 2^20 ulps, or at y = 0, the float32 error itself. */
INLINE float whole_ulps(uint32_t bits, float error, float uniform)
{
    uint32_t exponent = (bits >> 23) & 0xFFu;
    exponent = exponent ? exponent : 1;
    float t = fabsf(error) * 64.0f * float_of((255u - exponent) << 23);
    float f = floorf(t);
    float k = uniform * (2.0f * f + 1.0f) < (t - f) * (t + f) ? f + 1.0f : f;
    float size = k * 0x1p-7f * float_of(exponent << 23);
    return t < 0x1p20f ? copysignf(size, error) : error;
}

INLINE void bfloat_block(uint16_t *restrict y, const float *restrict noise, const float *restrict uniform, int task,
                         change *restrict c)
{
    int finite = 0;
    for (int i = 0; i < BLOCK; i++) {
        uint32_t bits = (uint32_t)y[i] << 16;
        float before = float_of(bits), n = within(noise[i], FLOAT_LARGEST);
        float error = whole_ulps(bits, task & RELATIVE ? before * n : n, uniform[i]);
        uint32_t wide = bits_of(within(before + error, BFLOAT_LARGEST));
        uint32_t rounded = (wide + 0x7FFFu + ((wide >> 16) & 1u)) & 0xFFFF0000u;
        float after = float_of(rounded);
        int able = is_finite(bits);
        y[i] = (uint16_t)(either(able & (after != before), rounded, bits) >> 16);
        c->before[i] = able ? before : 0.0f;
        c->after[i] = able ? after : 0.0f;
        finite += able;
    }
    c->finite = finite;
}

/* The first group gives its first block, every other group a block by lot: a fixed stride would meet the same columns
 * of every row. A small tensor is tallied whole. */
static int is_tallied(const job *j, int64_t first)
{
    int64_t size = j->task & BFLOAT ? BFLOAT_GROUP : GROUP, block = first / BLOCK, group = block / size;
    uint64_t lot = group ? mix(j->key, ~(uint64_t)group) : 0;
    return j->count <= GROUP * BLOCK || block % size == (int64_t)(lot % (uint64_t)size);
}

static void float_block(const job *j, float *y, int64_t first, tally *total)
{
    int tallied = is_tallied(j, first);
    if (j->task & FILL || !(tallied || j->careful || !calm(y))) {
        noise_block(y, j->key, first, j->gain, j->task);
        return;
    }
    float noise[BLOCK];
    change c;
    noise_block(noise, j->key, first, j->gain, FILL | (j->task & UNIFORM));
    if (j->task & RELATIVE)
        careful_block(y, noise, RELATIVE, &c);
    else
        careful_block(y, noise, 0, &c);
    if (tallied)
        add_change(&c, total);
}

static void work_block(const job *j, void *y, int64_t first, tally *total)
{
    if (!(j->task & BFLOAT)) {
        float_block(j, y, first, total);
        return;
    }
    float noise[BLOCK], uniform[BLOCK];
    change c;
    noise_block(noise, j->key, first, j->gain, FILL | (j->task & UNIFORM));
    noise_block(uniform, mix(j->key, 1), first, 1.0f, FILL | UNIFORM | UNIT);
    if (j->task & RELATIVE)
        bfloat_block(y, noise, uniform, RELATIVE, &c);
    else
        bfloat_block(y, noise, uniform, 0, &c);
    if (is_tallied(j, first))
        add_change(&c, total);
}

/* The rest of a tensor goes through a whole block of its own; what pads it is NaN and so never counted. */
static void work_rest(const job *j, char *y, int64_t first, int64_t count, tally *total)
{
    union { float wide[BLOCK]; uint16_t narrow[BLOCK]; } padded;
    size_t size = (size_t)count * (j->task & BFLOAT ? 2 : 4);
    memset(&padded, 0xFF, sizeof padded);
    memcpy(&padded, y, size);
    work_block(j, &padded, first, total);
    memcpy(y, &padded, size);
}

static void work_segments(void *data)
{
    job *j = data;
    int64_t size = j->task & BFLOAT ? 2 : 4, s;
    while ((s = __atomic_fetch_add(&j->next, 1, __ATOMIC_RELAXED)) < j->segments) {
        int64_t end = (s + 1) * j->segment < j->count ? (s + 1) * j->segment : j->count;
        tally total = {0};
        for (int64_t first = s * j->segment; first < end; first += BLOCK) {
            char *y = (char *)j->data + first * size;
            if (end - first >= BLOCK)
                work_block(j, y, first, &total);
            else
                work_rest(j, y, first, end - first, &total);
        }
        j->tallies[s] = total;
    }
}

void noisescope_run(request *r)
{
    tally tallies[SEGMENTS], *total = &r->total;
    float gain = (r->task & (UNIFORM | UNIT)) == UNIFORM ? r->scale * 3.46410162f : r->scale; /* sqrt(12) */
    int careful = r->scale == 0.0f || !(fabsf(r->scale) <= CALM_SCALE);
    job j = {r->data, r->count, SEGMENT, 0, 0, r->key, gain, r->task, careful, tallies};
    while ((j.count + j.segment - 1) / j.segment > SEGMENTS)
        j.segment *= 2;
    j.segments = (j.count + j.segment - 1) / j.segment;
    int64_t threads = r->threads < j.segments ? r->threads : j.segments;
    if (r->start_team && threads > 1)
        r->start_team(work_segments, &j, (unsigned)threads, 0);
    else
        work_segments(&j);
    memset(total, 0, sizeof *total);
    for (int64_t s = 0; s < j.segments; s++) {
        total->elements += tallies[s].elements;
        total->changed += tallies[s].changed;
        total->error_squares += tallies[s].error_squares;
        total->value_squares += tallies[s].value_squares;
    }
}
