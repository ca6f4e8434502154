/* The per-sample loops; reference.py says what each computes. Arrays in, arrays changed in place, no other state.
 *
 * Vectors of K classes lie in WIDTH(K) numbers, a multiple of eight, with zeros behind. Sums run over eight fixed lanes
 * and products are not contracted, so results depend neither on the machine's vectors nor on how rows are cut. */
enum { MOST = 7 };
#include "buffers.h"

typedef float f4 __attribute__((vector_size(16), aligned(4), may_alias));
#define WIDENED(p) __builtin_convertvector(*(const f4 *)(p), lanes)
#define FOUR(row, i, single) ((single) ? WIDENED((row) + 4 * (i)) : LOAD((row) + 8 * (i))) /* of a row, from i on */
/* Blocks of eight numbers, each in two halves h (or in one vector of eight), whose sums are kept apart: they need not
 * wait for each other. */
#define HALVES(i, width) \
    for (Py_ssize_t i##_ = 0; i##_ < (width); i##_ += 8) \
        for (Py_ssize_t i = i##_, h = 0; h < 8 / LANES; i += LANES, h++)

enum { AHEAD = 8192 }; /* bytes to prefetch by: hardware does not fetch across pages */
enum { N, STRENGTH, A, B, LAST, APART, HEAD = 8 }; /* of the online-fmapls state */
enum { RUNNING, PREDICTED, OBSERVED };
static const double TOLERANCE = 1e-3 + 1e-9, LEAST_NUMERATOR = 1e-12, TINY = 1e-200, LEAST_PRECISION = 0.01,
                    LEAST_A = 1e-100, MOST_APART = 4.0, LEAST_NO_SHIFT = 1e-6, LEAST_Z = 1e-300;

typedef struct {
    double *table; /* one state, or `states` of them in rows of `size` */
    Py_ssize_t size, states;
    const int64_t *slots; /* the state of each row, or NULL */
    Py_ssize_t k, width, n;
    const double *inverse, *valid; /* 1/ε; ones, and zeros behind */
    const char *rows;
    int single; /* rows are float32, widened as they are read */
    const double *options, *bank;
    Py_ssize_t filters;
    const double *directions; /* (3k + 1, DIRECTIONS) of the moments that are compared, or NULL */
    double *scratch; /* first `width` numbers for a row, then the kernel's */
    unsigned char *touched; /* one bit a slot whose state is in the log, or NULL */
    int64_t *log_slots;
    double *log_states;
    Py_ssize_t logged;
} Job;

/* A row, or a copy of it in `room` where whole blocks of eight would reach behind the array. */
INLINE const char *row_at(const Job *job, Py_ssize_t row, double *room, int single) {
    const Py_ssize_t size = single ? 4 : 8;
    const char *p = job->rows + row * job->k * size;
    return row * job->k + job->width > job->n * job->k ? memcpy(room, p, (size_t)(job->k * size)) : p;
}

INLINE double total_of(const lanes *halves) { return total(halves[0] + halves[1]); }
#ifdef WIDE
INLINE double total_of_8(const lanes_8 *x) {
    lanes halves[2];
    memcpy(halves, x, sizeof halves);
    return total_of(halves);
}
#endif

INLINE double largest(const double *x, Py_ssize_t width) {
    lanes best = LOAD(x);
    for (Py_ssize_t i = 4; i < width; i += 4) {
        lanes y = LOAD(x + i);
        best = SELECT(y > best, y, best);
    }
    double most = best[0];
    for (int lane = 1; lane < 4; lane++)
        if (best[lane] > most) most = best[lane];
    return most;
}

/* Write p/ε, times `prior` unless NULL, to `out` unless NULL, its sum to `z`; return Σp, or NaN if p is no
 * probability vector. */
INLINE double likelihood(const Job *job, Py_ssize_t row, const double *prior, double *out, double *z) {
    const Py_ssize_t k = job->k, whole = k / 8 * 8;
    const int single = job->single;
    const char *p = row_at(job, row, job->scratch, single);
    lanes sum[2] = {{0}}, joint[2] = {{0}};
    lanes_i signs = {0};
    HALVES(i, job->width) {
        lanes x = FOUR(p, i, single);
        if (i >= whole) x = (lanes)((lanes_i)x & (LOAD(job->valid + i) > 0.0)); /* the rest belongs to the next row */
        sum[h] += x;
        signs |= (lanes_i)x;
        if (!out) continue;
        x *= LOAD(job->inverse + i);
        if (prior) x *= LOAD(prior + i);
        joint[h] += x;
        STORE(out + i, x);
    }
    *z = total_of(joint);
    int64_t sign = 0;
    for (int lane = 0; lane < 4; lane++) sign |= signs[lane];
    int bad = 0;
    if (sign < 0) /* rare: a negative number, or a zero with a sign, which is none */
        for (Py_ssize_t i = 0; i < k; i++) bad |= (single ? ((const float *)p)[i] : ((const double *)p)[i]) < 0.0;
    const double mass = total_of(sum);
    return !bad && fabs(mass - 1.0) <= TOLERANCE ? mass : NAN;
}

WIDEST static Py_ssize_t first_bad(const Job *job) {
    double z;
    for (Py_ssize_t row = 0; row < job->n; row++)
        if (isnan(likelihood(job, row, NULL, NULL, &z))) return row;
    return DONE;
}

/* The state that a row goes to; where a log is kept, it is written down before its first change. */
INLINE double *state_of(Job *job, Py_ssize_t row) {
    if (!job->slots) return job->table;
    if (row + 2 < job->n) {
        const char *next = (const char *)(job->table + job->slots[row + 2] * job->size);
        for (Py_ssize_t i = 0; i < job->size * 8 && i < 4096; i += 64) __builtin_prefetch(next + i, 1);
    }
    const int64_t slot = job->slots[row];
    double *state = job->table + slot * job->size;
    if (job->touched && !(job->touched[slot / 8] >> slot % 8 & 1)) {
        job->touched[slot / 8] |= (unsigned char)(1 << slot % 8);
        memcpy(job->log_states + job->logged * job->size, state, (size_t)job->size * sizeof(double));
        job->log_slots[job->logged++] = slot;
    }
    return state;
}

static void rebase(double *state, Py_ssize_t k, int normalise) {
    double *u = state + HEAD, sum = 0.0;
    for (Py_ssize_t i = 0; i < k; i++) sum += u[i] = state[A] * u[i] + state[B];
    if (normalise)
        for (Py_ssize_t i = 0; i < k; i++) u[i] /= sum;
    state[A] = 1.0, state[B] = 0.0, state[APART] = 0.0;
}

/* r (K,) becomes S of eq. 24. */
static void statistic(double *state, Py_ssize_t k, double gamma, int delta, double *r) {
    double *d = state + HEAD + WIDTH(k);
    if (delta == RUNNING) {
        for (Py_ssize_t i = 0; i < k; i++) r[i] = d[i] = (1.0 - gamma) * d[i] + gamma * r[i];
    } else if (delta == PREDICTED) {
        /* a number that is no class is none: whatever a state holds, it leads to no other memory */
        Py_ssize_t last = state[LAST] >= 0.0 && state[LAST] < (double)k ? (Py_ssize_t)state[LAST] : -1, likeliest = 0;
        for (Py_ssize_t i = 1; i < k; i++)
            if (r[i] > r[likeliest]) likeliest = i;
        state[LAST] = (double)likeliest;
        if (last >= 0) {
            for (Py_ssize_t i = 0; i < k; i++) r[i] *= gamma;
            r[last] += 1.0 - gamma;
        }
    } else if (state[LAST] > 0.0) {
        double scale = (1.0 - gamma) / state[LAST];
        for (Py_ssize_t i = 0; i < k; i++) r[i] = scale * d[i] + gamma * r[i], d[i] = 0.0;
        state[LAST] = 0.0;
    }
}

WIDEST static Py_ssize_t fmapls_rows(Job *job) {
    const Py_ssize_t k = job->k, width = job->width;
    const int paper = job->options[1] != 0.0, delta = (int)job->options[4];
    const double c = job->options[2], gamma = job->options[3], memory = job->options[5], inflow = job->options[6];
    double *joint = job->scratch + width, z;
    for (Py_ssize_t row = 0; row < job->n; row++) {
        double *state = state_of(job, row), *u = state + HEAD;
        if (state[A] != 1.0 || state[B] != 0.0) {
            if (isnan(likelihood(job, row, NULL, NULL, &z))) return row;
            rebase(state, k, 0);
        }
        if (isnan(likelihood(job, row, u, joint, &z))) return row; /* eq. 8, up to 1/z */
        double scale = 1.0 / z, strength = state[STRENGTH];
        if (gamma < 1.0) {
            for (Py_ssize_t i = 0; i < k; i++) joint[i] *= scale;
            statistic(state, k, gamma, delta, joint);
            scale = 1.0;
        }
        if (paper) { /* eq. 31, with the floor it needs */
            lanes sum[2] = {{0}};
            HALVES(i, width) {
                lanes x = strength * LOAD(u + i) - 1.0 + scale * LOAD(joint + i);
                x = SELECT(x > LEAST_NUMERATOR, x, SPLAT(LEAST_NUMERATOR)) * LOAD(job->valid + i);
                STORE(u + i, x);
                sum[h] += x;
            }
            const double whole = 1.0 / total_of(sum);
            for (Py_ssize_t i = 0; i < width; i += 4) STORE(u + i, LOAD(u + i) * whole);
        } else { /* the posterior's mean */
            const double whole = 1.0 / (strength + 1.0 + inflow), keep = strength * whole;
            const double add = inflow / (double)k * whole;
            scale *= whole;
            Py_ssize_t i = 0;
            for (; i < k / 4 * 4; i += 4) STORE(u + i, keep * LOAD(u + i) + scale * LOAD(joint + i) + add);
            if (i < k) STORE(u + i, keep * LOAD(u + i) + scale * LOAD(joint + i) + add * LOAD(job->valid + i));
        }
        state[N] += 1.0;
        strength += 1.0;
        state[STRENGTH] = c > 0.0 ? c / largest(u, width) : strength < memory ? strength : memory; /* eq. 33 */
    }
    return DONE;
}

enum { SIZE, MEMORY, RESTARTS, WEIGHT, WITHOUT_SHIFT, COLUMNS }; /* of the bank */
enum { NO_SHIFT = 1 }; /* where a state has the probability of no shift */

enum { DIRECTIONS = 16 };

/* Add the directed moments of a row, their squares and its probabilities to `sums`. */
INLINE void add_moments(const Job *job, Py_ssize_t row, double *sums) {
    const Py_ssize_t k = job->k;
    const char *p = row_at(job, row, job->scratch, job->single);
    const double *at = job->directions;
    lanes x[4] = {{0}};
    double most = 0.0;
    for (Py_ssize_t i = 0; i < k; i++) {
        const double one = job->single ? ((const float *)p)[i] : ((const double *)p)[i];
        const double root = sqrt(one), square = one * one;
        const double *a = at + DIRECTIONS * i, *b = a + DIRECTIONS * k, *c = b + DIRECTIONS * k;
        sums[2 * DIRECTIONS + i] += one;
        if (one > most) most = one;
        for (int j = 0; j < 4; j++) x[j] += one * LOAD(a + 4 * j) + root * LOAD(b + 4 * j) + square * LOAD(c + 4 * j);
    }
    const double unsure = log(1.001 - most);
    for (int j = 0; j < 4; j++) {
        const lanes y = x[j] + unsure * LOAD(at + DIRECTIONS * 3 * k + 4 * j);
        STORE(sums + 4 * j, LOAD(sums + 4 * j) + y);
        STORE(sums + DIRECTIONS + 4 * j, LOAD(sums + DIRECTIONS + 4 * j) + y * y);
    }
}

INLINE void write_logs(const double *x, double *logs, Py_ssize_t n) {
    for (Py_ssize_t i = 0; i < n; i++) logs[i] = log_of(x[i] > LEAST_Z ? x[i] : LEAST_Z);
}

#define PARTS 2
#define TARGET WIDEST
#include "ebls.h"
#undef PARTS
#undef TARGET
#ifdef WIDE /* the same with vectors of eight */
#define PARTS 1
#define TARGET WIDE
#define LANES 8
#define lanes lanes_8
#define lanes_i lanes_8i
#define total_of total_of_8
#define forget forget_8
#define ebls_rows ebls_rows_8
#include "ebls.h"
#undef LANES
#undef lanes
#undef lanes_i
#undef total_of
#undef forget
#undef ebls_rows
#endif

enum { WITHOUT, ONES, KEPT, UNSHIFTED, SOURCE, KNOWN }; /* what is known of each class */

/* Write class weights, ones and the estimated prior of a state to `out` (3, width). */
WIDEST static void write_weights(const Job *job, const double *known, double share, double *out) {
    const Py_ssize_t width = job->width, filters = job->filters;
    const double *weights = job->table + 2, *mean = weights + 3 * filters;
    const double start = job->options[2], least = job->options[3], no_shift = job->table[NO_SHIFT];
    const double shifted = no_shift < start ? 1.0 - no_shift / start : 0.0;
    double *prior = out + 2 * width;
    const double *without = known + WITHOUT * width, *valid = known + ONES * width, *source = known + SOURCE * width;
    const double *unshifted = known + UNSHIFTED * width, *kept = known + KEPT * width;
    memcpy(out + width, valid, (size_t)width * sizeof(double));
    HALVES(i, width) {
        lanes x = {0};
        for (Py_ssize_t f = 0; f < filters; f++) x += weights[f] * LOAD(mean + f * width + i);
        STORE(prior + i, LOAD(without + i) + shifted * (x - LOAD(without + i)));
    }
    for (Py_ssize_t i = 0; i < width; i++) {
        const double x = prior[i] > least ? prior[i] : least, ratio = valid[i] > 0.0 ? x / without[i] : 1.0;
        out[i] = exp_of(unshifted[i] + share * kept[i] * log_of(ratio)) * valid[i];
    }
    lanes sum[2] = {{0}};
    HALVES(i, width) sum[h] += LOAD(source + i) * LOAD(out + i);
    const double scale = 1.0 / total_of(sum);
    for (Py_ssize_t i = 0; i < width; i += LANES) STORE(out + i, LOAD(out + i) * scale);
}

/* Rows of k listed classes each; what is not listed goes to the others in proportion to ε. The caller has made sure
 * that ĉ does not depend on max π and that γ = 1: then an unlisted class is only scaled and raised, π = a·u + b.
 * `seen` has a bit for each class, all of them 0, before and after. */
static Py_ssize_t bad_listing(const int64_t *index, const double *p, Py_ssize_t n, Py_ssize_t listed, Py_ssize_t k,
                              unsigned char *seen) {
    for (Py_ssize_t row = 0; row < n; row++, index += listed, p += listed) {
        double sum = 0.0;
        Py_ssize_t good = 0;
        for (; good < listed; good++) {
            const int64_t i = index[good];
            if (!(p[good] >= 0.0) || i < 0 || i >= k || seen[i / 8] >> i % 8 & 1) break;
            seen[i / 8] |= (unsigned char)(1 << i % 8);
            sum += p[good];
        }
        for (Py_ssize_t i = 0; i < good; i++) seen[index[i] / 8] = 0;
        if (good < listed || !(sum > 0.0 && sum <= 1.0 + TOLERANCE)) return row;
    }
    return DONE;
}

/* Since π was last written out, a listed class may have shrunk against a and b by a factor of up to exp(APART). From
 * there on their difference would cancel, so π is written out before that exceeds exp(MOST_APART), or a vanishes. */
static Py_ssize_t fmapls_top_rows(Job *job, const int64_t *index, const double *p, Py_ssize_t listed) {
    const Py_ssize_t k = job->k, period = k > 1024 ? k : 1024;
    const double memory = job->options[5], inflow = job->options[6];
    const int most = 2 * listed >= k; /* then the others are as quickly added up as what is left by the listed */
    double *others = job->scratch;
    for (Py_ssize_t row = 0; row < job->n; row++, index += listed, p += listed) {
        double *state = state_of(job, row), *u = state + HEAD;
        const double strength = state[STRENGTH];
        double mass = 0.0, source = 0.0, share = 0.0, z = 0.0;
        for (Py_ssize_t i = 0; i < listed; i++) mass += p[i], source += 1.0 / job->inverse[index[i]];
        source = source < 1.0 ? 1.0 - source : TINY;
        if (most) {
            source = 0.0;
            for (Py_ssize_t i = 0; i < k; i++) others[i] = 1.0 / job->inverse[i];
            for (Py_ssize_t i = 0; i < listed; i++) others[index[i]] = 0.0;
            for (Py_ssize_t i = 0; i < k; i++) source += others[i];
        }
        if (mass < 1.0) share = (1.0 - mass) / source;
        for (int again = 0; again < 2; again++) {
            double prior = 0.0, rest = 0.0;
            z = 0.0;
            for (Py_ssize_t i = 0; i < listed; i++) {
                double pi = state[A] * u[index[i]] + state[B];
                prior += pi, z += p[i] * job->inverse[index[i]] * pi;
            }
            if (most)
                for (Py_ssize_t i = 0; i < k; i++) rest += others[i] > 0.0 ? state[A] * u[i] + state[B] : 0.0;
            else
                rest = 1.0 - prior;
            z += share * (rest > LEAST_NUMERATOR ? rest : LEAST_NUMERATOR);
            const double apart = state[APART] + share / (z * strength);
            if (again || (apart <= MOST_APART && state[A] >= LEAST_A)) {
                state[APART] = apart;
                break;
            }
            rebase(state, k, 1);
        }
        const double whole = 1.0 / (strength + 1.0 + inflow), add = inflow / (double)k * whole;
        const double factor = (strength + share / z) * whole, a = state[A], b = state[B];
        state[A] = a * factor, state[B] = b * factor + add;
        for (Py_ssize_t i = 0; i < listed; i++) {
            double pi = a * u[index[i]] + b, r = p[i] * job->inverse[index[i]] * pi / z;
            u[index[i]] = ((strength * pi + r) * whole + add - state[B]) / state[A];
        }
        state[N] += 1.0;
        state[STRENGTH] = strength + 1.0 < memory ? strength + 1.0 : memory;
        if (fmod(state[N], (double)period) == 0.0) rebase(state, k, 1); /* O(K) every K samples or fewer: O(1) */
    }
    return DONE;
}

/* out = P w / Σ P w, in the type of the rows (eq. 8); `inverse` holds w. */
WIDEST static Py_ssize_t correct_rows(const Job *job, char *out) {
    const Py_ssize_t k = job->k, size = job->single ? 4 : 8;
    double *joint = job->scratch + job->width, z;
    for (Py_ssize_t row = 0; row < job->n; row++, out += size * k) {
        for (Py_ssize_t i = 0; i < size * k; i += 64) __builtin_prefetch(job->rows + row * size * k + AHEAD + i, 0, 2);
        if (isnan(likelihood(job, row, NULL, joint, &z))) return row;
        if (!(z > 0.0)) return REFUSED;
        const double scale = 1.0 / z;
        Py_ssize_t i = 0;
        if (job->single) {
            for (; i < k / 4 * 4; i += 4) *(f4 *)(out + 4 * i) = __builtin_convertvector(LOAD(joint + i) * scale, f4);
            for (; i < k; i++) ((float *)out)[i] = (float)(joint[i] * scale);
        } else
            for (; i < k; i++) ((double *)out)[i] = joint[i] * scale;
    }
    return DONE;
}

enum { TOGETHER = 8 }; /* rows that are calibrated together: one need not wait for the sums of another */

/* out = softmax(scale·x + bias), x the rows' logarithms, or themselves without a floor, less their mean; `inverse` holds
 * the scale, and what is behind `valid` the bias. */
WIDEST static Py_ssize_t calibrate_rows(const Job *job, char *out) {
    const Py_ssize_t k = job->k, width = job->width;
    const double *restrict scale = job->inverse, *restrict bias = job->valid + width, floor = job->options[0];
    double *const all = job->scratch, mean[TOGETHER];
    for (Py_ssize_t first = 0, rows; first < job->n; first += rows) {
        rows = job->n - first < TOGETHER ? job->n - first : TOGETHER;
        for (Py_ssize_t row = 0; row < rows; row++) {
            double *restrict x = all + row * width;
            const Py_ssize_t size = k * (job->single ? 4 : 8);
            const char *p = job->rows + (first + row) * size;
            for (Py_ssize_t i = 0; i < size; i += 64) __builtin_prefetch(p + TOGETHER * size + i);
            if (job->single)
                for (Py_ssize_t i = 0; i < k; i++) x[i] = ((const float *)p)[i];
            else memcpy(x, p, (size_t)k * sizeof(double));
            for (Py_ssize_t i = k; i < width; i++) x[i] = 1.0;
        }
        if (floor > 0.0)
            for (Py_ssize_t i = 0; i < rows * width; i++) all[i] = log_of(all[i] > floor ? all[i] : floor);
        for (Py_ssize_t row = 0; row < rows; row++) {
            double *restrict x = all + row * width;
            lanes sum[2] = {{0}};
            for (Py_ssize_t i = k; i < width; i++) x[i] = 0.0;
            HALVES(i, width) sum[h] += LOAD(x + i);
            mean[row] = total_of(sum) / (double)k;
        }
        for (Py_ssize_t row = 0; row < rows; row++) {
            double *restrict x = all + row * width;
            for (Py_ssize_t i = 0; i < width; i++) x[i] = (x[i] - mean[row]) * scale[i] + bias[i];
            for (Py_ssize_t i = k; i < width; i++) x[i] = -INFINITY;
            const double top = largest(x, width);
            for (Py_ssize_t i = 0; i < width; i++) x[i] -= top;
        }
        for (Py_ssize_t i = 0; i < rows * width; i++) all[i] = exp_of(all[i]);
        for (Py_ssize_t row = 0; row < rows; row++, out += k * (Py_ssize_t)sizeof(double)) {
            double *restrict x = all + row * width;
            lanes mass[2] = {{0}};
            HALVES(i, width) mass[h] += LOAD(x + i);
            const double share = 1.0 / total_of(mass);
            for (Py_ssize_t i = 0; i < width; i++) x[i] *= share;
            memcpy(out, x, (size_t)k * sizeof(double));
        }
    }
    return DONE;
}

/* ---- Python's side ---- */

enum { STACK = 1024, FREE_FROM = 8192, LOG_FROM = 100000 };

/* Fill in the classes from `known` (rows, width): 1/ε or weights, which of them are classes, and the kernel's own. */
static int take_known(Buffers *buffers, Job *job, PyObject *known, double k, Py_ssize_t rows) {
    Py_buffer *view = take(buffers, known, "d", 2, 0);
    if (!view || view->shape[0] != rows || !(k >= 2.0 && k <= 1e9)) return 0;
    job->k = (Py_ssize_t)k, job->width = view->shape[1];
    job->inverse = view->buf, job->valid = job->inverse + job->width;
    return job->width == WIDTH(job->k);
}

/* Fill in the rows from an object with `ndim` axes, the last of length k. */
static int take_rows(Buffers *buffers, Job *job, PyObject *object, PyObject *ndim) {
    const long axes = PyLong_AsLong(ndim);
    Py_buffer *rows = axes == 1 || axes == 2 ? take(buffers, object, "df", (int)axes, 0) : NULL;
    if (!rows || rows->shape[axes - 1] != job->k) return 0;
    const Py_ssize_t n = axes == 2 ? rows->shape[0] : 1;
    if (n < 1 || (job->slots && n != job->n)) return 0;
    job->rows = rows->buf, job->single = rows->format[0] == 'f', job->n = n;
    return 1;
}

static int take_table(Buffers *buffers, Job *job, PyObject *table, PyObject *slots, Py_ssize_t least) {
    Py_buffer *states = take(buffers, table, "d", slots == Py_None ? 1 : 2, 1);
    if (!states) return 0;
    job->table = states->buf, job->size = states->shape[states->ndim - 1];
    if (job->size < least) return 0;
    if (slots == Py_None) return 1;
    Py_buffer *which = take(buffers, slots, "lq", 1, 0);
    if (!which) return 0;
    job->slots = which->buf, job->n = which->shape[0], job->states = states->shape[0];
    for (Py_ssize_t i = 0; i < job->n; i++)
        if (job->slots[i] < 0 || job->slots[i] >= states->shape[0]) return 0;
    return 1;
}

/* Learn every row, or none: a bad row late in a block puts back what was changed. Rows of a table are looked at
 * beforehand while a second look at them is cheap; a larger block of small states keeps a log of those it changes. */
static Py_ssize_t learn(Job *job, Py_ssize_t (*kernel)(Job *), Py_ssize_t extra) {
    const int keyed = job->slots != NULL, undo = job->n > 1 && !keyed;
    const int log = keyed && job->n * job->k > LOG_FROM && job->size < 4 * job->k;
    const size_t state = (size_t)job->size * sizeof(double);
    const Py_ssize_t scratch = 2 * job->width + extra, room = scratch + (undo ? job->size : 0);
    const Py_ssize_t most = job->n < job->states ? job->n : job->states;
    double stack[STACK], *heap = NULL;
    Py_ssize_t code = DONE;
    if (room > STACK) heap = malloc((size_t)room * sizeof(double));
    if (log) {
        job->touched = calloc((size_t)job->states / 8 + 1, 1);
        job->log_slots = malloc((size_t)most * sizeof(int64_t));
        job->log_states = malloc((size_t)most * state);
    }
    if ((room > STACK && !heap) || (log && !(job->touched && job->log_slots && job->log_states))) {
        PyErr_NoMemory();
        code = REFUSED;
    } else {
        job->scratch = heap ? heap : stack;
        PyThreadState *thread = job->n * job->size >= FREE_FROM ? PyEval_SaveThread() : NULL;
        if (undo) memcpy(job->scratch + scratch, job->table, state);
        if (keyed && !log) code = first_bad(job);
        if (code == DONE) code = kernel(job);
        if (undo && code != DONE) memcpy(job->table, job->scratch + scratch, state);
        while (log && code != DONE && job->logged--)
            memcpy(job->table + job->log_slots[job->logged] * job->size, job->log_states + job->logged * job->size, state);
        if (thread) PyEval_RestoreThread(thread);
    }
    free(heap);
    free(job->touched);
    free(job->log_slots);
    free(job->log_states);
    return code;
}

static PyObject *fmapls(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Buffers buffers = {.count = 0};
    Job job = {0};
    if (count != 6) return PyErr_Format(PyExc_TypeError, "fmapls takes 6 arguments");
    Py_buffer *options = take(&buffers, args[2], "d", 1, 0);
    if (!options || options->shape[0] != 7) return answer(&buffers, REFUSED);
    job.options = options->buf;
    const double delta = job.options[4];
    const int keeps = job.options[3] < 1.0 && delta != PREDICTED; /* S of eq. 24, behind π */
    if (!(delta >= RUNNING && delta <= OBSERVED) || !take_known(&buffers, &job, args[1], job.options[0], 2) ||
        !take_table(&buffers, &job, args[0], args[3], HEAD + job.width * (1 + keeps)) ||
        !take_rows(&buffers, &job, args[4], args[5]))
        return answer(&buffers, REFUSED);
    return answer(&buffers, learn(&job, fmapls_rows, 0));
}

static PyObject *ebls(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Buffers buffers = {.count = 0};
    Job job = {0};
    if (count != 8) return PyErr_Format(PyExc_TypeError, "ebls takes 8 arguments");
    Py_buffer *options = take(&buffers, args[2], "d", 1, 0), *bank = take(&buffers, args[3], "d", 2, 0);
    Py_buffer *directions = take(&buffers, args[4], "d", 2, 0);
    if (!directions || options->shape[0] != 6 || bank->shape[1] != COLUMNS || directions->shape[1] != DIRECTIONS)
        return answer(&buffers, REFUSED);
    job.options = options->buf, job.bank = bank->buf, job.filters = bank->shape[0];
    if (!take_known(&buffers, &job, args[1], job.options[0], 4)) return answer(&buffers, REFUSED);
    const Py_ssize_t compared = directions->shape[0] ? 2 * DIRECTIONS + job.width : 0;
    if ((compared && directions->shape[0] != 3 * job.k + 1) ||
        !take_table(&buffers, &job, args[0], args[5], 2 + 3 * job.filters + 2 * job.filters * job.width + compared) ||
        !take_rows(&buffers, &job, args[6], args[7]))
        return answer(&buffers, REFUSED);
    job.directions = compared ? directions->buf : NULL;
    Py_ssize_t (*kernel)(Job *) = ebls_rows;
#ifdef WIDE
    if (HAS_WIDE) kernel = ebls_rows_8;
#endif
    return answer(&buffers, learn(&job, kernel, 5 * WIDTH(job.filters)));
}

static PyObject *ebls_weights(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Buffers buffers = {.count = 0};
    Job job = {0};
    if (count != 5) return PyErr_Format(PyExc_TypeError, "ebls_weights takes 5 arguments");
    const double share = PyFloat_AsDouble(args[3]);
    Py_buffer *state = take(&buffers, args[0], "d", 1, 0), *options = take(&buffers, args[2], "d", 1, 0);
    Py_buffer *out = take(&buffers, args[4], "d", 2, 1);
    if (PyErr_Occurred() || !out || options->shape[0] != 4) return answer(&buffers, REFUSED);
    job.table = state->buf, job.options = options->buf;
    if (!(job.options[1] >= 1.0 && job.options[1] <= 1e6) ||
        !take_known(&buffers, &job, args[1], job.options[0], KNOWN))
        return answer(&buffers, REFUSED);
    job.filters = (Py_ssize_t)job.options[1];
    if (out->shape[0] != 3 || out->shape[1] != job.width || state->shape[0] < 2 + (3 + job.width) * job.filters)
        return answer(&buffers, REFUSED);
    write_weights(&job, job.inverse, share, out->buf);
    return answer(&buffers, DONE);
}

static PyObject *fmapls_top(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Buffers buffers = {.count = 0};
    Job job = {0};
    if (count != 7) return PyErr_Format(PyExc_TypeError, "fmapls_top takes 7 arguments");
    const int ndim = PyLong_AsLong(args[6]) == 2 ? 2 : 1;
    Py_buffer *options = take(&buffers, args[2], "d", 1, 0), *index = take(&buffers, args[4], "lq", ndim, 0);
    if (!index || options->shape[0] != 7) return answer(&buffers, REFUSED);
    job.options = options->buf;
    if (!take_known(&buffers, &job, args[1], job.options[0], 2) ||
        !take_table(&buffers, &job, args[0], args[3], HEAD + job.width))
        return answer(&buffers, REFUSED);
    Py_buffer *p = take(&buffers, args[5], "d", ndim, 0);
    const Py_ssize_t listed = index->shape[ndim - 1], n = ndim == 2 ? index->shape[0] : 1;
    if (!p || memcmp(index->shape, p->shape, (size_t)ndim * sizeof(Py_ssize_t)) || n < 1 ||
        listed < 1 || listed >= job.k || (job.slots && n != job.n))
        return answer(&buffers, REFUSED);
    job.n = n;
    /* Indices lead to memory, and who called may change them meanwhile: what is checked and used is a copy. */
    const size_t cells = (size_t)n * (size_t)listed, bits = (size_t)job.k / 8 + 1, room = 2 * listed >= job.k ? (size_t)job.k : 0;
    char *copy = malloc(cells * 16 + room * sizeof(double) + bits);
    if (!copy) {
        PyErr_NoMemory();
        return answer(&buffers, REFUSED);
    }
    int64_t *indices = (int64_t *)copy;
    double *values = (double *)(copy + cells * 8);
    unsigned char *seen = (unsigned char *)(values + cells + room);
    job.scratch = values + cells;
    PyThreadState *thread = n * listed >= FREE_FROM / 4 ? PyEval_SaveThread() : NULL;
    memcpy(indices, index->buf, cells * 8);
    memcpy(values, p->buf, cells * 8);
    memset(seen, 0, bits);
    Py_ssize_t code = bad_listing(indices, values, n, listed, job.k, seen);
    if (code == DONE) code = fmapls_top_rows(&job, indices, values, listed);
    if (thread) PyEval_RestoreThread(thread);
    free(copy);
    return answer(&buffers, code);
}

/* Call a kernel on the rows, with room for `TOGETHER` vectors; other threads run meanwhile if they are many. */
static PyObject *on_rows(Buffers *buffers, Job *job, Py_ssize_t (*kernel)(const Job *, char *), char *out) {
    double stack[STACK], *heap = NULL;
    const Py_ssize_t room = TOGETHER * job->width;
    if (room > STACK && !(heap = malloc((size_t)room * sizeof(double)))) {
        PyErr_NoMemory();
        return answer(buffers, REFUSED);
    }
    job->scratch = heap ? heap : stack;
    PyThreadState *thread = job->n * job->k >= FREE_FROM ? PyEval_SaveThread() : NULL;
    const Py_ssize_t code = kernel(job, out);
    if (thread) PyEval_RestoreThread(thread);
    free(heap);
    return answer(buffers, code);
}

static Py_ssize_t look(const Job *job, char *Py_UNUSED(out)) {
    Job own = *job;
    double *valid = job->scratch + job->width;
    for (Py_ssize_t i = 0; i < job->width; i++) valid[i] = i < job->k;
    own.valid = valid;
    return first_bad(&own);
}

static PyObject *first_bad_row(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Buffers buffers = {.count = 0};
    Job job = {0};
    if (count != 1) return PyErr_Format(PyExc_TypeError, "first_bad_row takes 1 argument");
    Py_buffer *rows = take(&buffers, args[0], "df", 2, 0);
    if (!rows || rows->shape[1] < 1) return answer(&buffers, REFUSED);
    job.rows = rows->buf, job.single = rows->format[0] == 'f', job.n = rows->shape[0], job.k = rows->shape[1];
    job.width = WIDTH(job.k);
    return on_rows(&buffers, &job, look, NULL);
}

static PyObject *correct(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Buffers buffers = {.count = 0};
    Job job = {0};
    if (count != 5) return PyErr_Format(PyExc_TypeError, "correct takes 5 arguments");
    const double k = PyFloat_AsDouble(args[1]);
    Py_buffer *out = take(&buffers, args[3], "df", PyLong_AsLong(args[4]) == 2 ? 2 : 1, 1);
    if (!out || !take_known(&buffers, &job, args[0], k, 2) || !take_rows(&buffers, &job, args[2], args[4]) ||
        out->len != job.n * job.k * (Py_ssize_t)(job.single ? sizeof(float) : sizeof(double)))
        return answer(&buffers, REFUSED);
    return on_rows(&buffers, &job, correct_rows, out->buf);
}

static PyObject *calibrate(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Buffers buffers = {.count = 0};
    Job job = {0};
    if (count != 5) return PyErr_Format(PyExc_TypeError, "calibrate takes 5 arguments");
    const double k = PyFloat_AsDouble(args[1]), floor = PyFloat_AsDouble(args[4]);
    Py_buffer *out = take(&buffers, args[3], "d", 2, 1), *rows = take(&buffers, args[2], "df", 2, 0);
    if (!rows || !take_known(&buffers, &job, args[0], k, 3) || rows->shape[1] != job.k || out->shape[1] != job.k ||
        out->shape[0] != rows->shape[0] || PyErr_Occurred())
        return answer(&buffers, REFUSED);
    job.rows = rows->buf, job.single = rows->format[0] == 'f', job.n = rows->shape[0], job.options = &floor;
    return on_rows(&buffers, &job, calibrate_rows, out->buf);
}

/* `many` rows at a time: s = p·w, then add p/s to `sums` and, if asked, (p/s)² behind it. Return Σ log s or 0.
 * Rows reach into the next one, where `w` is zero and `sums` is not read. */
INLINE double e_step_by(const Job *job, double *sums, int squares, int logs, const int many, const int single) {
    const Py_ssize_t k = job->k, width = job->width;
    const double *w = job->inverse;
    const char *r[4];
    double *none = job->scratch, sum = 0.0, product = 1.0, inverse[4];
    for (Py_ssize_t row = 0; row < job->n; row += many) {
        for (int j = 0; j < many; j++) /* no such row: zeros */
            r[j] = row + j < job->n ? row_at(job, row + j, none + (j + 1) * width, single) : (const char *)none;
        lanes s[4][2] = {{{0}}};
        const char *ahead = r[0] + AHEAD;
        HALVES(i, width) {
            const lanes x = LOAD(w + i);
            for (int j = 0; j < many; j++) {
                if (!h && (!single || i % 16 == 0)) __builtin_prefetch(ahead + ((many + j) * k + i) * (single ? 4 : 8), 0, 2);
                s[j][h] += FOUR(r[j], i, single) * x;
            }
        }
        for (int j = 0; j < many; j++) {
            const double scale = row + j < job->n ? total_of(s[j]) : 1.0;
            inverse[j] = 1.0 / scale;
            product *= scale; /* one logarithm for many rows */
            if (logs && !(product > 1e-100 && product < 1e100)) sum += log(product), product = 1.0;
        }
        for (Py_ssize_t i = 0; i < width; i += 4) {
            lanes x = LOAD(sums + i), y = LOAD(sums + (squares ? width : 0) + i);
            for (int j = 0; j < many; j++) {
                const lanes g = FOUR(r[j], i, single) * inverse[j];
                x += g;
                if (squares) y += g * g;
            }
            STORE(sums + i, x);
            if (squares) STORE(sums + width + i, y);
        }
    }
    return logs ? sum + log(product) : 0.0;
}

WIDEST static double e_step_rows(const Job *job, double *sums, int squares, int logs) {
    const int wide = job->k > 512; /* four such rows are more than L1 holds */
    if (job->single) return wide ? e_step_by(job, sums, squares, logs, 2, 1) : e_step_by(job, sums, squares, logs, 4, 1);
    return wide ? e_step_by(job, sums, squares, logs, 2, 0) : e_step_by(job, sums, squares, logs, 4, 0);
}

static PyObject *e_step(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Buffers buffers = {.count = 0};
    Job job = {0};
    if (count != 4) return PyErr_Format(PyExc_TypeError, "e_step takes 4 arguments");
    Py_buffer *rows = take(&buffers, args[0], "df", 2, 0), *w = take(&buffers, args[1], "d", 1, 0);
    Py_buffer *sums = take(&buffers, args[2], "d", 2, 1);
    const long logs = PyLong_AsLong(args[3]);
    double *scratch = NULL, value = 0.0;
    const int fits = sums && w->shape[0] == WIDTH(rows->shape[1]) && sums->shape[1] == w->shape[0] &&
                     sums->shape[0] >= 1 && sums->shape[0] <= 2 && !PyErr_Occurred();
    if (fits && (scratch = calloc((size_t)(5 * w->shape[0]), sizeof(double)))) {
        job.rows = rows->buf, job.n = rows->shape[0], job.k = rows->shape[1], job.width = w->shape[0];
        job.inverse = w->buf, job.scratch = scratch, job.single = rows->format[0] == 'f';
        PyThreadState *thread = job.n * job.k >= FREE_FROM ? PyEval_SaveThread() : NULL;
        value = e_step_rows(&job, sums->buf, sums->shape[0] == 2, (int)logs);
        if (thread) PyEval_RestoreThread(thread);
        free(scratch);
    }
    PyObject *code = answer(&buffers, REFUSED);
    if (!scratch || !code) return code; /* the caller takes the reference */
    Py_DECREF(code);
    return PyFloat_FromDouble(value);
}

/* in small.c */
PyObject *climb(PyObject *, PyObject *const *, Py_ssize_t), *em(PyObject *, PyObject *const *, Py_ssize_t),
    *group_counts(PyObject *, PyObject *const *, Py_ssize_t);

/* in rows_json.c */
PyObject *parse_rows(PyObject *, PyObject *const *, Py_ssize_t), *format_rows(PyObject *, PyObject *const *, Py_ssize_t);

static PyMethodDef functions[] = {
    {"climb", (PyCFunction)(void (*)(void))climb, METH_FASTCALL, NULL},
    {"ebls_weights", (PyCFunction)(void (*)(void))ebls_weights, METH_FASTCALL, NULL},
    {"em", (PyCFunction)(void (*)(void))em, METH_FASTCALL, NULL},
    {"group_counts", (PyCFunction)(void (*)(void))group_counts, METH_FASTCALL, NULL},
    {"calibrate", (PyCFunction)(void (*)(void))calibrate, METH_FASTCALL, NULL},
    {"correct", (PyCFunction)(void (*)(void))correct, METH_FASTCALL, NULL},
    {"e_step", (PyCFunction)(void (*)(void))e_step, METH_FASTCALL, NULL},
    {"ebls", (PyCFunction)(void (*)(void))ebls, METH_FASTCALL, NULL},
    {"first_bad_row", (PyCFunction)(void (*)(void))first_bad_row, METH_FASTCALL, NULL},
    {"fmapls", (PyCFunction)(void (*)(void))fmapls, METH_FASTCALL, NULL},
    {"fmapls_top", (PyCFunction)(void (*)(void))fmapls_top, METH_FASTCALL, NULL},
    {"format_rows", (PyCFunction)(void (*)(void))format_rows, METH_FASTCALL, NULL},
    {"parse_rows", (PyCFunction)(void (*)(void))parse_rows, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "native", "The per-sample loops of reprior in C.", 0, functions, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_native(void) { return PyModuleDef_Init(&definition); }
