/* Whole iterations of EM over rows that stay in cache, and class counts of groups. small.py says what each computes.
 *
 * As in native.c, K classes lie in a multiple of eight numbers, with zeros behind. Products may be fused with sums here:
 * no state is kept, so that nothing has to be the same to the last bit on every machine. */
enum { MOST = 6 };
#include "buffers.h"

#define USED(k) (((k) + 3) / 4 * 4) /* of the width: whole lanes that have a class */

static const double NEGLIGIBLE = 1e-12;

/* ---- groups ---- */

typedef struct {
    const char *rows;
    int single;
    Py_ssize_t k, width;
    const double *inverse; /* 1/ε */
} Model;

/* Write p/ε of a row to `out`. */
INLINE void take_row(const Model *m, int64_t row, double *out) {
    const Py_ssize_t k = m->k;
    if (m->single)
        for (Py_ssize_t i = 0; i < k; i++) out[i] = (double)((const float *)m->rows)[row * k + i] * m->inverse[i];
    else
        for (Py_ssize_t i = 0; i < k; i++) out[i] = ((const double *)m->rows)[row * k + i] * m->inverse[i];
}

/* Write p/ε of a row, and zeros behind. */
INLINE void place_row(const Model *m, int64_t row, double *out) {
    memset(out + m->k / 8 * 8, 0, 8 * sizeof(double) * (m->k % 8 != 0));
    take_row(m, row, out);
}

/* Add l/s to sums and (l/s)² behind it, s = l·w. Return s. */
INLINE double add_row(const double *l, const double *w, double *sums, Py_ssize_t width) {
    lanes s = {0};
    for (Py_ssize_t i = 0; i < width; i += LANES) s += LOAD(l + i) * LOAD(w + i);
    const double scale = total(s), inverse = 1.0 / scale;
    for (Py_ssize_t i = 0; i < width; i += LANES) {
        const lanes g = LOAD(l + i) * inverse;
        STORE(sums + i, LOAD(sums + i) + g);
        STORE(sums + width + i, LOAD(sums + width + i) + g * g);
    }
    return scale;
}

FUSED static void count_groups(Model *m, const int64_t *slots, Py_ssize_t n, const double *weights, double *sums,
                                double *logs, double *row) {
    for (Py_ssize_t i = 0; i < n; i++) {
        take_row(m, i, row);
        const double s = add_row(row, weights + slots[i] * m->width, sums + 2 * slots[i] * m->width, m->width);
        logs[slots[i]] += log(s);
    }
}

/* ---- EM ---- */

enum { TURN = 8, BEHIND = TURN - 1 }; /* rows at a time, whose sums need not wait for each other; rows of zeros at the end */

/* Write p/ε of all rows side by side, rows of zeros behind. Return where those end. */
INLINE double *take_all(const Model *m, Py_ssize_t n, double *room) {
    for (Py_ssize_t i = 0; i < n; i++) place_row(m, i, room + i * m->width);
    memset(room + n * m->width, 0, (size_t)(BEHIND * m->width) * sizeof(double));
    return room + (n + BEHIND) * m->width;
}

/* The totals of four rows, of which so many are left; 1 behind. */
INLINE lanes totals(const lanes *s, Py_ssize_t left) {
    const lanes a = (lanes){s[0][0], s[1][0], s[0][2], s[1][2]} + (lanes){s[0][1], s[1][1], s[0][3], s[1][3]};
    const lanes b = (lanes){s[2][0], s[3][0], s[2][2], s[3][2]} + (lanes){s[2][1], s[3][1], s[2][3], s[3][3]};
    const lanes sums = (lanes){a[0], a[1], b[0], b[1]} + (lanes){a[2], a[3], b[2], b[3]};
    const lanes_i place = {0, 1, 2, 3}, there = place < left;
    return SELECT(there, sums, SPLAT(1.0));
}

/* Add l/s of all rows side by side to sums, s = l·w. Return Σ log s if asked. Passes to and fro find in a cache that does
 * not hold all rows those that the pass before read last. */
INLINE double add_all(const double *room, Py_ssize_t n, Py_ssize_t k, const double *w, double *sums, int logs, int back) {
    const Py_ssize_t width = WIDTH(k), used = USED(k), last = (n - 1) / TURN * TURN, on = back ? -TURN : TURN;
    double sum = 0.0, product = 1.0;
    memset(sums, 0, (size_t)width * sizeof(double));
    for (Py_ssize_t row = back ? last : 0; row >= 0 && row <= last; row += on) {
        const double *l = room + row * width;
        lanes s[TURN] = {{0}};
        double inverse[TURN];
        for (Py_ssize_t i = 0; i < used; i += LANES) {
            const lanes x = LOAD(w + i);
            for (int j = 0; j < TURN; j++) s[j] += LOAD(l + j * width + i) * x;
            for (int j = 0; j < LANES; j++) __builtin_prefetch(l + on * width + TURN * (i + j));
        }
        for (int j = 0; j < TURN; j += LANES) STORE(inverse + j, totals(s + j, n - row - j));
        for (int j = 0; logs && j < TURN; j += 4) { /* one logarithm for many rows */
            const double pair = inverse[j] * inverse[j + 1], other = inverse[j + 2] * inverse[j + 3], four = pair * other;
            if (four > 1e-200 && four < 1e200) product *= four;
            else sum += log(pair) + log(other);
            if (!(product > 1e-50 && product < 1e50)) sum += log(product), product = 1.0;
        }
        for (int j = 0; j < TURN; j += LANES) STORE(inverse + j, 1.0 / LOAD(inverse + j));
        for (Py_ssize_t i = 0; i < used; i += LANES) {
            lanes x[TURN / 2];
            for (int j = 0; j < TURN / 2; j++)
                x[j] = LOAD(l + 2 * j * width + i) * inverse[2 * j] + LOAD(l + (2 * j + 1) * width + i) * inverse[2 * j + 1];
            STORE(sums + i, LOAD(sums + i) + ((x[0] + x[1]) + (x[2] + x[3])));
        }
    }
    return logs ? sum + log(product) : 0.0;
}

enum { PART = 48 }; /* rows that stay in L1 while all pairs of classes are multiplied */
typedef float floats __attribute__((vector_size(32), aligned(4), may_alias));
typedef float half_floats __attribute__((vector_size(16), aligned(4), may_alias));

/* Add products of columns i to i + 3 of `part` (rows, width) with `many` times eight from j on to `matrix` (used, 2·width). */
INLINE void add_some_pairs(const float *part, Py_ssize_t rows, Py_ssize_t width, Py_ssize_t i, Py_ssize_t j, double *matrix,
                           const int many) {
    floats x[4][3] = {{{0}}};
    for (Py_ssize_t r = 0; r < rows; r++) {
        const float *g = part + r * width;
        for (int a = 0; a < 4; a++)
            for (int b = 0; b < many; b++) x[a][b] += g[i + a] * *(const floats *)(g + j + 8 * b);
    }
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < 2 * many; b++) {
            double *at = matrix + (i + a) * 2 * width + j + 4 * b;
            STORE(at, LOAD(at) + __builtin_convertvector(((const half_floats *)x[a])[b], lanes));
        }
}

INLINE void add_single_pairs(const float *part, Py_ssize_t rows, Py_ssize_t k, double *matrix) {
    const Py_ssize_t width = WIDTH(k);
    for (Py_ssize_t i = 0; i < USED(k); i += 4) {
        Py_ssize_t j = i / 8 * 8;
        for (; j + 32 < width || j + 24 == width; j += 24) add_some_pairs(part, rows, width, i, j, matrix, 3);
        for (; j + 16 <= width; j += 16) add_some_pairs(part, rows, width, i, j, matrix, 2);
        if (j < width) add_some_pairs(part, rows, width, i, j, matrix, 1);
    }
}

/* Add g gᵀ of all rows g = l∘by/s to the upper half of `matrix` (used, 2·width), s = l·w, g to `sums`, g² behind it.
 * Return Σ log s. `part` holds PART rows. */
INLINE double add_products(const double *room, Py_ssize_t n, Py_ssize_t k, const double *w, const double *by,
                           double *matrix, double *sums, float *part) {
    const Py_ssize_t width = WIDTH(k), used = USED(k);
    double sum = 0.0, product = 1.0;
    memset(part, 0, (size_t)(PART * width) * sizeof(float));
    for (Py_ssize_t row = 0; row < n; row += PART) {
        const Py_ssize_t many = n - row < PART ? n - row : PART, whole = (many + 3) / 4 * 4;
        for (Py_ssize_t r = 0; r < whole; r += 4) {
            const double *l = room + (row + r) * width;
            lanes s[4] = {{0}};
            double inverse[4];
            for (Py_ssize_t i = 0; i < used; i += LANES)
                for (int j = 0; j < 4; j++) s[j] += LOAD(l + j * width + i) * LOAD(w + i);
            const lanes scale = totals(s, many - r);
            STORE(inverse, 1.0 / scale);
            for (int j = 0; j < 4; j++) {
                product *= scale[j];
                if (!(product > 1e-100 && product < 1e100)) sum += log(product), product = 1.0;
            }
            for (Py_ssize_t i = 0; i < used; i += LANES) {
                lanes x = LOAD(sums + i), y = LOAD(sums + width + i);
                for (int j = 0; j < 4; j++) {
                    const lanes g = LOAD(l + j * width + i) * LOAD(by + i) * inverse[j];
                    x += g, y += g * g;
                    /* less than what tells would make denormal products, which are slow */
                    const lanes kept = (lanes)((lanes_i)g & (g > NEGLIGIBLE));
                    *(half_floats *)(part + (r + j) * width + i) = __builtin_convertvector(kept, half_floats);
                }
                STORE(sums + i, x);
                STORE(sums + width + i, y);
            }
        }
        add_single_pairs(part, whole, k, matrix);
    }
    return sum + log(product);
}

typedef struct {
    double a, b, c, floor, least, strength;
} Linear;

FUSED static void iterate_linear(Model *m, Py_ssize_t n, double *prior, Linear o, Py_ssize_t n_iter, double *room) {
    const Py_ssize_t k = m->k;
    double *sums = take_all(m, n, room);
    for (Py_ssize_t iteration = 0; iteration < n_iter; iteration++) {
        double whole = 0.0, most = 0.0;
        add_all(room, n, k, prior, sums, 0, iteration % 2);
        for (Py_ssize_t i = 0; i < k; i++) {
            const double x = o.a * prior[i] + o.b * (prior[i] * sums[i]) + o.c;
            whole += prior[i] = x > o.floor ? x : o.floor;
        }
        for (Py_ssize_t i = 0; i < k; i++) {
            prior[i] /= whole;
            if (!(prior[i] > o.least)) prior[i] = 0.0;
            if (prior[i] > most) most = prior[i];
        }
        if (o.strength > 0.0) o.a = o.strength / most;
    }
}

/* What one pass, which is counted, tells about a prior: see small.py. */
INLINE double evaluate(const Model *m, Py_ssize_t n, const double *room, const double *prior, double *gradient,
                       double *value, Py_ssize_t *passes) {
    double most = 0.0;
    *value = add_all(room, n, m->k, prior, gradient, 1, (*passes)++ % 2) / (double)n;
    for (Py_ssize_t i = 0; i < m->k; i++) {
        gradient[i] /= (double)n;
        if (gradient[i] > most) most = gradient[i];
    }
    return most - 1.0;
}

FUSED static Py_ssize_t climb_rows(Model *m, Py_ssize_t n, double *prior, double tol, Py_ssize_t most, double *room,
                                    double *answer, double *hessian) {
    const Py_ssize_t width = m->width, k = m->k;
    double *once = take_all(m, n, room), *twice = once + width, *gradient = twice + width, value, gap, reach = 4.0;
    double *half = gradient + width + PART / 2 * width;
    memset(once, 0, (size_t)(3 * width) * sizeof(double));
    Py_ssize_t passes = 0;
    gap = evaluate(m, n, room, prior, gradient, &value, &passes);
    while (gap > tol && passes + 2 <= most) {
        double first = 0.0, bend = 0.0, whole = 0.0, least;
        for (Py_ssize_t i = 0; i < k; i++) once[i] = prior[i] * gradient[i];
        gap = evaluate(m, n, room, once, gradient, &least, &passes);
        for (Py_ssize_t i = 0; i < k; i++) {
            twice[i] = once[i] * gradient[i];
            const double r = once[i] - prior[i], v = twice[i] - once[i] - r;
            first += r * r, bend += v * v;
        }
        if (gap <= tol) {
            memcpy(prior, once, (size_t)k * sizeof(double));
            value = least;
            break;
        }
        double length = sqrt(first / (bend > 1e-300 ? bend : 1e-300));
        if (length >= reach) length = reach, reach *= 4.0;
        if (length < 1.0) length = 1.0;
        for (Py_ssize_t i = 0; i < k; i++) {
            const double r = once[i] - prior[i], v = twice[i] - once[i] - r;
            const double x = prior[i] + 2.0 * length * r + length * length * v, low = 0.01 * twice[i];
            whole += prior[i] = x > low ? x : low;
        }
        for (Py_ssize_t i = 0; i < k; i++) prior[i] /= whole;
        gap = evaluate(m, n, room, prior, gradient, &value, &passes);
        if (value < least) { /* too bold */
            memcpy(prior, twice, (size_t)k * sizeof(double));
            gap = evaluate(m, n, room, prior, gradient, &value, &passes);
            reach = 4.0;
        }
    }
    answer[0] = gap, answer[1] = value;
    memcpy(answer + 2, gradient, (size_t)k * sizeof(double));
    if (gap > tol) { /* around one, as a row's part in the gradient is, numbers are good to seven digits */
        for (Py_ssize_t i = 0; i < k; i++) once[i] = 1.0 / (gradient[i] > 1e-300 ? gradient[i] : 1.0);
        memset(twice, 0, (size_t)(2 * width) * sizeof(double));
        memset(half, 0, (size_t)(2 * USED(k) * width) * sizeof(double));
        add_products(room, n, k, prior, once, half, twice, (float *)(gradient + width)); /* the squares take the gradient's place */
        for (Py_ssize_t i = 0; i < k; i++) {
            half[2 * i * width + i] = gradient[i];
            for (Py_ssize_t j = i; j < k; j++)
                hessian[i * k + j] = hessian[j * k + i] = half[2 * i * width + j] / (once[i] * once[j] * (double)n);
        }
    }
    return passes;
}

/* ---- Python's side ---- */

/* Memory that a call leaves for the next one, so that the system need not find and clear pages for each. It is touched
 * under the interpreter's lock alone. */
#ifdef REPRIOR_PLAIN
enum { KEPT = 0 }; /* so that no call writes beyond its own unseen */
#else
enum { KEPT = 1 << 19 }; /* numbers at most: 4 MB */
#endif
static double *spare;
static Py_ssize_t spare_size;

typedef struct {
    void *held;
    Py_ssize_t size;
    double *at; /* at the beginning of a cache line; NULL if there is no memory */
} Scratch;

static Scratch borrow(Py_ssize_t size) {
    Scratch s = {spare, spare_size, NULL};
    spare = NULL, spare_size = 0;
    if (!s.held || s.size < size) {
        free(s.held);
        s.held = malloc((size_t)(size + 8) * sizeof(double)), s.size = size;
    }
    if (s.held) s.at = (double *)(((uintptr_t)s.held + 63) / 64 * 64);
    return s;
}

static void give_back(Scratch s) {
    if (spare || s.size > KEPT) free(s.held);
    else spare = s.held, spare_size = s.held ? s.size : 0;
}

static void take_rows(Buffers *buffers, Model *m, Py_ssize_t *n, PyObject *rows, PyObject *inverse) {
    Py_buffer *view = take(buffers, rows, "df", 2, 0), *by = take(buffers, inverse, "d", 1, 0);
    if (!by) return;
    m->rows = view->buf, m->single = view->format[0] == 'f', m->k = view->shape[1], m->width = WIDTH(m->k);
    m->inverse = by->buf, *n = view->shape[0];
    buffers->bad = by->shape[0] != m->width;
}

PyObject *group_counts(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Buffers buffers = {.count = 0};
    Model m = {0};
    Py_ssize_t n = 0;
    if (count != 6) return PyErr_Format(PyExc_TypeError, "group_counts takes 6 arguments");
    take_rows(&buffers, &m, &n, args[0], args[1]);
    Py_buffer *slots = take(&buffers, args[2], "lq", 1, 0), *weights = take(&buffers, args[3], "d", 2, 0);
    Py_buffer *sums = take(&buffers, args[4], "d", 3, 1), *logs = take(&buffers, args[5], "d", 1, 1);
    if (buffers.bad || slots->shape[0] != n || weights->shape[1] != m.width || sums->shape[0] != weights->shape[0] ||
        sums->shape[1] != 2 || sums->shape[2] != m.width || logs->shape[0] != weights->shape[0])
        return answer(&buffers, REFUSED);
    const int64_t *slot = slots->buf;
    int bad = 0;
    for (Py_ssize_t i = 0; i < n; i++) bad |= slot[i] < 0 || slot[i] >= weights->shape[0];
    double *row = bad ? NULL : calloc((size_t)m.width, sizeof(double));
    if (!row) return answer(&buffers, REFUSED);
    PyThreadState *thread = PyEval_SaveThread();
    count_groups(&m, slot, n, weights->buf, sums->buf, logs->buf, row);
    PyEval_RestoreThread(thread);
    free(row);
    return answer(&buffers, 0);
}

/* Rows, and two vectors that can be written to: the prior (width,), which moves, and `view[1]`. Return room for the rows
 * and `more`. */
static Scratch take_climb(Buffers *buffers, Model *m, Py_ssize_t *n, PyObject *const *args, Py_buffer *view[2],
                          Py_ssize_t more) {
    take_rows(buffers, m, n, args[0], args[1]);
    for (int i = 0; i < 2; i++) view[i] = take(buffers, args[2 + i], "d", 1, 1);
    if (buffers->bad || view[0]->shape[0] != m->width) return (Scratch){0};
    return borrow((*n + BEHIND + more) * m->width);
}

PyObject *em(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Buffers buffers = {.count = 0};
    Model m = {0};
    Py_ssize_t n = 0;
    Py_buffer *view[2];
    if (count != 5) return PyErr_Format(PyExc_TypeError, "em takes 5 arguments");
    const Scratch scratch = take_climb(&buffers, &m, &n, args, view, 1);
    const Py_ssize_t n_iter = PyLong_AsSsize_t(args[4]);
    const int fits = scratch.at && view[1]->shape[0] == 6;
    if (fits) {
        const double *o = view[1]->buf;
        PyThreadState *thread = PyEval_SaveThread();
        iterate_linear(&m, n, view[0]->buf, (Linear){o[0], o[1], o[2], o[3], o[4], o[5]}, n_iter, scratch.at);
        PyEval_RestoreThread(thread);
    }
    give_back(scratch);
    return answer(&buffers, fits ? 0 : REFUSED);
}

PyObject *climb(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    if (count != 7) return PyErr_Format(PyExc_TypeError, "climb takes 7 arguments");
    Buffers buffers = {.count = 0};
    Model m = {0};
    Py_ssize_t n = 0, passes = REFUSED;
    const Py_ssize_t most = PyLong_AsSsize_t(args[6]);
    const double tol = PyFloat_AsDouble(args[5]);
    Py_buffer *view[2], *hessian = take(&buffers, args[4], "d", 2, 1);
    const Py_ssize_t more = 3 + (hessian ? PART / 2 + 2 * USED(hessian->shape[0]) : 0);
    const Scratch scratch = take_climb(&buffers, &m, &n, args, view, more);
    if (scratch.at && view[1]->shape[0] == 2 + m.width && hessian->shape[0] == m.k && hessian->shape[1] == m.k) {
        PyThreadState *thread = PyEval_SaveThread();
        passes = climb_rows(&m, n, view[0]->buf, tol, most, scratch.at, view[1]->buf, hessian->buf);
        PyEval_RestoreThread(thread);
    }
    give_back(scratch);
    return answer(&buffers, passes);
}
