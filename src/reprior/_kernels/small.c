/* Whole iterations over rows that stay in cache: EM, and the groups' model. small.py says what each computes.
 *
 * As in native.c, K classes lie in a multiple of eight numbers, with zeros behind. Products may be fused with sums here:
 * no state is kept, so that nothing has to be the same to the last bit on every machine. */
enum { MOST = 14 };
#include "buffers.h"

#define USED(k) (((k) + 3) / 4 * 4) /* of the width: whole lanes that have a class */

enum { GATHERED = 1 << 17 }; /* numbers of a group's rows that are copied side by side: 1 MB */
static const double LEAST_BELIEF = 1e-200, NEGLIGIBLE = 1e-12;

/* log Γ(z), z > 0: Stirling's series at z + 8 where z < 8, less the logarithm of what lies between */
INLINE lanes v_lgamma(lanes z) {
    const lanes_i low = z < SPLAT(8.0);
    const lanes y = SELECT(low, z + 8.0, z), inverse = 1.0 / y, q = inverse * inverse;
    lanes s = -691.0 / 360360 * q + 1.0 / 1188;
    s = s * q - 1.0 / 1680, s = s * q + 1.0 / 1260, s = s * q - 1.0 / 360, s = s * q + 1.0 / 12;
    const lanes high = (y - 0.5) * v_log(y) - y + 0.91893853320467274178 + s * inverse;
    const lanes rise = (z * (z + 1.0)) * ((z + 2.0) * (z + 3.0)) * ((z + 4.0) * (z + 5.0)) * ((z + 6.0) * (z + 7.0));
    return high - v_log(SELECT(low, rise, SPLAT(1.0)));
}

/* ψ(z), z > 0: the series at z + 8 where z < 8, less Σ 1/(z + i) as one fraction */
INLINE lanes v_digamma(lanes z) {
    const lanes_i low = z < SPLAT(8.0);
    const lanes y = SELECT(low, z + 8.0, z), inverse = 1.0 / y, q = inverse * inverse;
    lanes s = 691.0 / 32760 * q - 1.0 / 132;
    s = s * q + 1.0 / 240, s = s * q - 1.0 / 252, s = s * q + 1.0 / 120, s = s * q - 1.0 / 12;
    lanes top = SPLAT(1.0), bottom = z;
    for (int i = 1; i < 8; i++) top = top * (z + (double)i) + bottom, bottom *= z + (double)i;
    return v_log(y) - 0.5 * inverse + s * q - SELECT(low, top / bottom, SPLAT(0.0));
}

/* ---- groups ---- */

typedef struct {
    const char *rows;
    int single;
    Py_ssize_t k, width, components;
    const double *inverse, *alpha, *terms; /* 1/ε; (C, width), 1 behind; (C, 3): strength s, log weight, Σ log Γ(α) − log Γ(s) */
    double *member, *x, *e;                /* of one group */
    double unsure;                         /* what a row's misfit is beside its noise: n rows count as n/(1 + unsure·n) */
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

/* Add l/s of `many` rows side by side to sums and (l/s)² behind it, s = l·w. */
INLINE void add_rows(const double *l, const double *w, double *sums, Py_ssize_t width, Py_ssize_t used, const int many) {
    lanes s[4] = {{0}};
    double inverse[4];
    for (Py_ssize_t i = 0; i < used; i += LANES) {
        const lanes x = LOAD(w + i);
        for (int j = 0; j < many; j++) s[j] += LOAD(l + j * width + i) * x;
    }
    for (int j = 0; j < many; j++) inverse[j] = 1.0 / total(s[j]);
    for (Py_ssize_t i = 0; i < used; i += LANES) {
        lanes x = LOAD(sums + i), y = LOAD(sums + width + i);
        for (int j = 0; j < many; j++) {
            const lanes g = LOAD(l + j * width + i) * inverse[j];
            x += g, y += g * g;
        }
        STORE(sums + i, x);
        STORE(sums + width + i, y);
    }
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

/* One M-step of one group of n rows from its sums: see small.py. */
INLINE void group_m_step(Model *m, double n, const double *sums, double *belief, double *prior, double *variance,
                         double *counts, double *evidence) {
    const Py_ssize_t width = m->width, k = m->k, used = USED(k);
    const double temper = 1.0 / (1.0 + m->unsure * n);
    lanes rows = {0}, exposed = {0};
    for (Py_ssize_t i = 0; i < used; i += LANES) {
        const lanes b = LOAD(belief + i), w = b * n, count = b * LOAD(sums + i), square = b * b * LOAD(sums + width + i);
        lanes worth = square / SELECT(count > 1e-300, count, SPLAT(1e-300));
        worth = SELECT(worth > 1e-12, worth, SPLAT(1e-12));
        worth = SELECT(worth < 1.0, worth, SPLAT(1.0));
        const lanes_i above = count >= w;
        const lanes safe = SELECT(w > 1e-300, w, SPLAT(1e-300));
        STORE(counts + i, count);
        const lanes x = temper * SELECT(above, count - (1.0 - worth) * w, worth * count);
        const lanes e = temper * SELECT(above, worth, 1.0 - (1.0 - worth) * count / safe);
        STORE(m->x + i, x);
        STORE(m->e + i, e);
        rows += x, exposed += e * b;
    }
    const double seen_rows = total(rows), exposure = total(exposed);
    double top = -INFINITY, whole = 0.0;
    for (Py_ssize_t c = 0; c < m->components; c++) {
        const double *alpha = m->alpha + c * width, *terms = m->terms + 3 * c, rate = terms[0] / n;
        double sum = 0.0;
        for (Py_ssize_t i = 0; i < used; i += LANES) {
            const lanes shape = LOAD(m->x + i) + LOAD(alpha + i);
            const lanes part = v_lgamma(shape) - shape * v_log(LOAD(m->e + i) + rate);
            if (i + LANES <= k) sum += total(part);
            else
                for (Py_ssize_t j = i; j < k; j++) sum += part[j - i];
        }
        /* given the number of rows, which says nothing: a total that could vary would make groups look alike */
        const double shape = seen_rows + terms[0];
        m->member[c] = sum - v_lgamma(SPLAT(shape))[0] + shape * log(exposure + rate) - terms[2] + terms[1];
        if (m->member[c] > top) top = m->member[c];
    }
    for (Py_ssize_t c = 0; c < m->components; c++) whole += m->member[c] = exp(m->member[c] - top);
    for (Py_ssize_t c = 0; c < m->components; c++) m->member[c] /= whole;
    memset(prior, 0, (size_t)width * sizeof(double));
    memset(belief, 0, (size_t)width * sizeof(double));
    memset(variance, 0, (size_t)width * sizeof(double));
    lanes mean_sum = {0}, belief_sum = {0}, rest = {0};
    for (Py_ssize_t i = 0; i < used; i += LANES) {
        const lanes x = LOAD(m->x + i), e = LOAD(m->e + i), count = LOAD(counts + i);
        lanes mean = {0}, geometric = {0}, first = {0}, second = {0};
        for (Py_ssize_t c = 0; c < m->components; c++) {
            const double q = m->member[c], rate = m->terms[3 * c] / n;
            if (q < NEGLIGIBLE) continue;
            const lanes alpha = LOAD(m->alpha + c * width + i), seen = temper * count + alpha, inverse = 1.0 / (e + rate);
            mean += q / (temper + rate) * seen;
            geometric += q / (temper + rate) * v_exp(v_digamma(seen));
            const lanes at = (x + alpha) * inverse;
            first += q * at;
            second += q * at * (at + inverse);
        }
        if (i + LANES > k)
            for (Py_ssize_t j = k; j < i + LANES; j++) mean[j - i] = geometric[j - i] = 0.0;
        STORE(prior + i, mean);
        STORE(belief + i, geometric);
        STORE(variance + i, second - first * first);
        mean_sum += mean, belief_sum += geometric;
    }
    const double share = 1.0 / total(mean_sum), part = 1.0 / total(belief_sum);
    for (Py_ssize_t i = 0; i < used; i += LANES) {
        const lanes p = LOAD(prior + i) * share, b = LOAD(belief + i) * part, lambda = p * n;
        const lanes log_lambda = v_log(SELECT(lambda > 1e-300, lambda, SPLAT(1e-300)));
        lanes lost = LOAD(m->x + i) * log_lambda - LOAD(m->e + i) * lambda;
        lanes kept = SELECT(b > LEAST_BELIEF, b, SPLAT(LEAST_BELIEF)), spread = LOAD(variance + i) / (n * n) * (1.0 - p);
        if (i + LANES > k)
            for (Py_ssize_t j = k; j < i + LANES; j++) lost[j - i] = kept[j - i] = spread[j - i] = 0.0;
        STORE(prior + i, p);
        STORE(belief + i, kept);
        STORE(variance + i, spread);
        rest += lost;
    }
    *evidence = top + log(whole) - total(rest);
}

typedef struct {
    double *belief, *prior, *variance, *counts, *member, *tail; /* of all groups; tail (G, 3): evidence, likelihood, last change */
} Result;

FUSED static Py_ssize_t fit_groups(Model *m, Result r, const int64_t *order, const int64_t *starts, Py_ssize_t groups,
                                    Py_ssize_t n_iter, double tol, double *room, double *sums, double *before) {
    const Py_ssize_t width = m->width, used = USED(m->k);
    Py_ssize_t open = 0;
    for (Py_ssize_t g = 0; g < groups; g++) {
        const int64_t first = starts[g], n = starts[g + 1] - first;
        const int gathered = n * width <= GATHERED;
        double *belief = r.belief + g * width, *prior = r.prior + g * width, change = INFINITY;
        m->member = r.member + g * m->components;
        for (int64_t i = 0; gathered && i < n; i++) place_row(m, order[first + i], room + i * width);
        if (!gathered) memset(room, 0, (size_t)width * sizeof(double));
        memcpy(prior, belief, (size_t)width * sizeof(double));
        for (Py_ssize_t iteration = 0; iteration < n_iter && change >= tol; iteration++) {
            memset(sums, 0, (size_t)(2 * width) * sizeof(double));
            int64_t i = 0;
            if (gathered)
                for (; i + 4 <= n; i += 4) add_rows(room + i * width, belief, sums, width, used, 4);
            for (; i < n; i++) {
                if (!gathered) take_row(m, order[first + i], room);
                add_rows(room + (gathered ? i * width : 0), belief, sums, width, used, 1);
            }
            memcpy(before, prior, (size_t)width * sizeof(double));
            group_m_step(m, (double)n, sums, belief, prior, r.variance + g * width, r.counts + g * width, r.tail + 3 * g);
            lanes moved = {0};
            for (Py_ssize_t i = 0; i < used; i += LANES) {
                const lanes d = LOAD(prior + i) - LOAD(before + i);
                moved += SELECT(d > 0.0, d, -d);
            }
            change = total(moved);
        }
        double sum = 0.0, product = 1.0;
        for (int64_t i = 0; i < n; i++) {
            if (!gathered) take_row(m, order[first + i], room);
            const double *l = room + (gathered ? i * width : 0);
            lanes s = {0};
            for (Py_ssize_t j = 0; j < used; j += LANES) s += LOAD(l + j) * LOAD(prior + j);
            product *= total(s);
            if (!(product > 1e-100 && product < 1e100)) sum += log(product), product = 1.0;
        }
        r.tail[3 * g + 1] = sum + log(product);
        r.tail[3 * g] += r.tail[3 * g + 1] / (1.0 + m->unsure * (double)n);
        r.tail[3 * g + 2] = change;
        open += !(change < tol);
    }
    return open;
}

FUSED static void step_groups(Model *m, Result r, const double *n, const double *sums, Py_ssize_t groups) {
    const Py_ssize_t width = m->width;
    for (Py_ssize_t g = 0; g < groups; g++) {
        m->member = r.member + g * m->components;
        group_m_step(m, n[g], sums + 2 * g * width, r.belief + g * width, r.prior + g * width, r.variance + g * width,
                     r.counts + g * width, r.tail + 3 * g);
    }
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

enum { PART = 24 }; /* rows that stay in L1 while all pairs of classes are multiplied; twice as many in single precision */
typedef float floats __attribute__((vector_size(32), aligned(4), may_alias));
typedef float half_floats __attribute__((vector_size(16), aligned(4), may_alias));

/* Add products of all pairs of columns of `part` (rows, 2·width) to the upper half of `matrix` (used, 2·width). */
INLINE void add_pairs(const double *part, Py_ssize_t rows, Py_ssize_t k, double *matrix) {
    const Py_ssize_t width = WIDTH(k), stride = 2 * width;
    for (Py_ssize_t i = 0; i < USED(k); i += 4)
        for (Py_ssize_t j = i / 8 * 8; j < width; j += 8) {
            double *at = matrix + i * stride + j;
            lanes x[4][2];
            for (int a = 0; a < 4; a++) x[a][0] = LOAD(at + a * stride), x[a][1] = LOAD(at + a * stride + 4);
            for (Py_ssize_t r = 0; r < rows; r++) {
                const double *g = part + r * stride;
                const lanes first = LOAD(g + j), second = LOAD(g + j + 4);
                for (int a = 0; a < 4; a++) x[a][0] += g[i + a] * first, x[a][1] += g[i + a] * second;
            }
            for (int a = 0; a < 4; a++) STORE(at + a * stride, x[a][0]), STORE(at + a * stride + 4, x[a][1]);
        }
}

/* The same of single precision (rows, width), in half the time: of columns i to i + 3 with `many` times eight from j on. */
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
                           double *matrix, double *sums, double *part, int single) {
    const Py_ssize_t width = WIDTH(k), used = USED(k), stride = 2 * width;
    double sum = 0.0, product = 1.0;
    memset(part, 0, (size_t)(PART * stride) * sizeof(double));
    const Py_ssize_t most = single ? 2 * PART : PART;
    for (Py_ssize_t row = 0; row < n; row += most) {
        const Py_ssize_t many = n - row < most ? n - row : most, whole = (many + 3) / 4 * 4;
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
                    if (single) { /* less than what tells would make denormal products, which are slow */
                        const lanes kept = (lanes)((lanes_i)g & (g > NEGLIGIBLE));
                        *(half_floats *)((float *)part + (r + j) * width + i) = __builtin_convertvector(kept, half_floats);
                    } else STORE(part + (r + j) * stride + i, g);
                }
                STORE(sums + i, x);
                STORE(sums + width + i, y);
            }
        }
        if (single) add_single_pairs((const float *)part, whole, k, matrix);
        else add_pairs(part, whole, k, matrix);
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
    double *part = gradient + width, *half = part + 2 * PART * width;
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
        add_products(room, n, k, prior, once, half, twice, part, 1); /* the squares take the gradient's place */
        for (Py_ssize_t i = 0; i < k; i++) {
            half[2 * i * width + i] = gradient[i];
            for (Py_ssize_t j = i; j < k; j++)
                hessian[i * k + j] = hessian[j * k + i] = half[2 * i * width + j] / (once[i] * once[j] * (double)n);
        }
    }
    return passes;
}

/* ---- hypotheses ---- */

/* Turn (H, I), its rows (used, 2·width) side by side, into (U, U⁻ᵀ), UᵀU = H, of which the upper half is read. Four rows
 * at a time lose what those above have of them, then what they have of each other. Return log det H. */
INLINE double eliminate(double *both, Py_ssize_t k) {
    const Py_ssize_t width = WIDTH(k), used = USED(k), stride = 2 * width;
    double size = 0.0;
    for (Py_ssize_t i = 0; i < used; i += 4) {
        double *rows = both + i * stride;
        const Py_ssize_t from = i / 8 * 8, end = width + from + 8;
        for (Py_ssize_t j = from; j < end; j += 8) {
            lanes x[4][2];
            for (int a = 0; a < 4; a++) x[a][0] = LOAD(rows + a * stride + j), x[a][1] = LOAD(rows + a * stride + j + 4);
            for (Py_ssize_t m = j > width ? j - width : 0; m < i; m++) { /* above, the inverse is zero */
                const double *other = both + m * stride;
                const lanes first = LOAD(other + j), second = LOAD(other + j + 4);
                for (int a = 0; a < 4; a++) x[a][0] -= other[i + a] * first, x[a][1] -= other[i + a] * second;
            }
            for (int a = 0; a < 4; a++) STORE(rows + a * stride + j, x[a][0]), STORE(rows + a * stride + j + 4, x[a][1]);
        }
        for (int a = 0; a < 4 && i + a < k; a++) {
            double *at = rows + a * stride;
            for (int m = 0; m < a; m++) {
                const double *other = rows + m * stride, by = other[i + a];
                for (Py_ssize_t j = from; j < end; j += LANES) STORE(at + j, LOAD(at + j) - by * LOAD(other + j));
            }
            const double pivot = sqrt(at[i + a]), by = 1.0 / pivot;
            for (Py_ssize_t j = from; j < end; j += LANES) STORE(at + j, LOAD(at + j) * by);
            size += log(pivot);
        }
    }
    return 2.0 * size;
}

typedef struct {
    const double *room; /* the rows, side by side */
    Py_ssize_t n, k, hypotheses, n_iter;
    const double *alpha;                     /* (C, width) */
    double *modes, *first, *second, *sums;   /* (C + 1, width) each: one more, for the pair of an odd one */
    double *both, *part;                     /* (used, 2·width), (PART, 2·width) */
    Py_ssize_t *going;                       /* (C) */
    double each, tol;
    int single;
} Weighing;

/* Add l/s of all rows to the sums of each of the hypotheses that are `going`, s = l·w of its own weights `at`. Four rows
 * stay in L1 for all of them, and what is read of a row serves two. */
INLINE void add_each(const Weighing *w, const double *at, Py_ssize_t many) {
    const Py_ssize_t width = WIDTH(w->k), used = USED(w->k);
    memset(w->sums, 0, (size_t)((w->hypotheses + 1) * width) * sizeof(double));
    for (Py_ssize_t row = 0; row < w->n; row += 4) {
        const double *l = w->room + row * width;
        for (Py_ssize_t h = 0; h < many; h += 2) {
            const Py_ssize_t one = w->going[h], other = h + 1 < many ? w->going[h + 1] : w->hypotheses;
            const double *u = at + one * width, *v = at + (h + 1 < many ? other : one) * width;
            double *x = w->sums + one * width, *y = w->sums + other * width;
            lanes s[4] = {{0}}, t[4] = {{0}};
            double by[4], also[4];
            for (Py_ssize_t i = 0; i < used; i += LANES)
                for (int j = 0; j < 4; j++) {
                    const lanes p = LOAD(l + j * width + i);
                    s[j] += p * LOAD(u + i), t[j] += p * LOAD(v + i);
                }
            STORE(by, 1.0 / totals(s, w->n - row));
            STORE(also, 1.0 / totals(t, w->n - row));
            for (Py_ssize_t i = 0; i < used; i += LANES) {
                lanes a = LOAD(x + i), b = LOAD(y + i);
                for (int j = 0; j < 4; j++) {
                    const lanes p = LOAD(l + j * width + i);
                    a += p * by[j], b += p * also[j];
                }
                STORE(x + i, a);
                STORE(y + i, b);
            }
        }
    }
}

/* Whether a hypothesis starts where the one before does, but for rounding. */
INLINE int starts_alike(const Weighing *w, Py_ssize_t h) {
    const double *mode = w->modes + h * WIDTH(w->k);
    for (Py_ssize_t i = 0; h && i < w->k; i++)
        if (!(fabs(mode[i] - mode[i - WIDTH(w->k)]) <= 1e-15)) return 0;
    return h > 0;
}

/* Take one step of EM under each of `many` Dirichlet priors, all of them if it is the first. */
INLINE void step_each(const Weighing *w, const double *at, double *out, Py_ssize_t many, int first) {
    const Py_ssize_t k = w->k, width = WIDTH(k);
    Py_ssize_t distinct = 0;
    for (Py_ssize_t h = 0; first && h < many; h++)
        if (!starts_alike(w, h)) w->going[distinct++] = h;
    add_each(w, at, first ? distinct : many);
    for (Py_ssize_t h = 0; first && h < many; h++) {
        w->going[h] = h;
        if (starts_alike(w, h)) memcpy(w->sums + h * width, w->sums + (h - 1) * width, (size_t)width * sizeof(double));
    }
    for (Py_ssize_t h = 0; h < many; h++) {
        const Py_ssize_t place = w->going[h] * width;
        double whole = 0.0;
        for (Py_ssize_t i = 0; i < k; i++)
            whole += out[place + i] = w->alpha[place + i] + w->each * at[place + i] * w->sums[place + i];
        for (Py_ssize_t i = 0; i < k; i++) out[place + i] /= whole;
    }
}

INLINE void logs_of(const double *x, double *out, Py_ssize_t used) {
    for (Py_ssize_t i = 0; i < used; i += LANES) STORE(out + i, v_log(SELECT(LOAD(x + i) > 1e-300, LOAD(x + i), SPLAT(1e-300))));
}

/* Leap along two steps of EM, from `mode` to `first` and on to `second`, which becomes `first`: see small.py. */
INLINE void leap(const double *mode, double *first, const double *second, double *scratch, Py_ssize_t k) {
    const Py_ssize_t width = WIDTH(k), used = USED(k);
    double *a = scratch, *b = a + width, *c = b + width, rise = 0.0, bend = 0.0, most = -INFINITY, whole = 0.0;
    logs_of(mode, a, used), logs_of(first, b, used), logs_of(second, c, used);
    for (Py_ssize_t i = 0; i < k; i++) {
        const double r = b[i] - a[i], v = c[i] - 2.0 * b[i] + a[i];
        rise += second[i] * r * r, bend += second[i] * v * v;
    }
    double length = sqrt(rise / (bend > 1e-300 ? bend : 1e-300));
    length = length < 1.0 ? 1.0 : length > 30.0 ? 30.0 : length;
    for (Py_ssize_t i = 0; i < k; i++) {
        const double x = a[i] + 2.0 * length * (b[i] - a[i]) + length * length * (c[i] - 2.0 * b[i] + a[i]);
        a[i] = x < c[i] - 2.0 ? c[i] - 2.0 : x > c[i] + 2.0 ? c[i] + 2.0 : x;
        if (a[i] > most) most = a[i];
    }
    for (Py_ssize_t i = 0; i < k; i++) a[i] -= most;
    for (Py_ssize_t i = 0; i < used; i += LANES) STORE(first + i, v_exp(LOAD(a + i)));
    memset(first + k, 0, (size_t)(width - k) * sizeof(double));
    for (Py_ssize_t i = 0; i < k; i++) whole += first[i];
    for (Py_ssize_t i = 0; i < k; i++) first[i] /= whole;
}

/* Climb to the modes from `modes`, in place. `tail` (C, 4): see small.py. */
INLINE void climb_each(const Weighing *w, double *tail) {
    const Py_ssize_t k = w->k, width = WIDTH(k);
    Py_ssize_t many = w->hypotheses;
    for (Py_ssize_t h = 0; h < many; h++) tail[4 * h + 3] = 0.0;
    for (Py_ssize_t taken = 2; many && taken <= (w->n_iter > 2 ? w->n_iter : 2); taken += 3) {
        step_each(w, w->modes, w->first, many, taken == 2);
        step_each(w, w->first, w->second, many, 0);
        Py_ssize_t left = 0;
        for (Py_ssize_t i = 0; i < many; i++) {
            const Py_ssize_t h = w->going[i];
            double *mode = w->modes + h * width, *first = w->first + h * width, *second = w->second + h * width, change = 0.0;
            for (Py_ssize_t j = 0; j < k; j++) change += fabs(second[j] - first[j]);
            tail[4 * h + 2] = (double)taken;
            if (change < w->tol) {
                memcpy(mode, second, (size_t)k * sizeof(double));
                tail[4 * h + 3] = 1.0;
                continue;
            }
            leap(mode, first, second, w->part, k);
            tail[4 * h + 2] = (double)taken + 1.0;
            w->going[left++] = h;
        }
        many = left;
        step_each(w, w->first, w->modes, many, 0);
    }
}

/* What Laplace's method needs at a mode: see small.py. */
INLINE void bend_one(const Weighing *w, Py_ssize_t h, double *counts, double *inverse, double *tail) {
    const Py_ssize_t k = w->k, width = WIDTH(k), stride = 2 * width;
    const double *alpha = w->alpha + h * width, *mode = w->modes + h * width;
    double *sums = w->sums, *squares = sums + width, *scale = w->part;
    memset(sums, 0, (size_t)stride * sizeof(double));
    memset(w->both, 0, (size_t)(USED(k) * stride) * sizeof(double));
    tail[0] = add_products(w->room, w->n, k, mode, mode, w->both, sums, w->part, w->single);
    for (Py_ssize_t i = 0; i < k; i++) counts[i] = sums[i], scale[i] = 1.0 / sqrt(alpha[i] + w->each * sums[i]);
    for (Py_ssize_t i = 0; i < k; i++) {
        double *at = w->both + i * stride;
        for (Py_ssize_t j = i; j < k; j++) at[j] *= w->each * scale[i] * scale[j];
        at[i] = (alpha[i] + w->each * squares[i]) * scale[i] * scale[i] + 1e-12, at[width + i] = 1.0;
    }
    tail[1] = eliminate(w->both, k);
    memset(inverse, 0, (size_t)k * sizeof(double));
    for (Py_ssize_t i = 0; i < k; i++) /* H⁻¹ is U⁻¹U⁻ᵀ: the squares of a column add up to its diagonal */
        for (Py_ssize_t j = 0; j <= i; j++) inverse[j] += w->both[i * stride + width + j] * w->both[i * stride + width + j];
}

FUSED static void weigh_rows(const Model *m, const Weighing *w, double *room, double *modes, double *counts,
                             double *inverse, double *tail) {
    const Py_ssize_t k = w->k, width = WIDTH(k);
    take_all(m, w->n, room);
    climb_each(w, tail);
    for (Py_ssize_t h = 0; h < w->hypotheses; h++) {
        memcpy(modes + h * k, w->modes + h * width, (size_t)k * sizeof(double));
        bend_one(w, h, counts + h * k, inverse + h * k, tail + 4 * h);
    }
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

/* Components (C, width) with their terms (C, 3), and the groups' arrays in the order of Result. */
static Py_ssize_t take_model(Buffers *buffers, Model *m, Result *r, PyObject *const *args) {
    Py_buffer *alpha = take(buffers, args[0], "d", 2, 0), *terms = take(buffers, args[1], "d", 2, 0), *view[6];
    for (int i = 0; i < 6; i++) view[i] = take(buffers, args[2 + i], "d", 2, 1);
    if (buffers->bad) return 0;
    const Py_ssize_t groups = view[0]->shape[0];
    m->components = alpha->shape[0], m->alpha = alpha->buf, m->terms = terms->buf;
    buffers->bad = alpha->shape[1] != m->width || terms->shape[0] != m->components || terms->shape[1] != 3;
    const Py_ssize_t columns[6] = {m->width, m->width, m->width, m->width, m->components, 3};
    for (int i = 0; i < 6; i++) buffers->bad |= view[i]->shape[0] != groups || view[i]->shape[1] != columns[i];
    *r = (Result){view[0]->buf, view[1]->buf, view[2]->buf, view[3]->buf, view[4]->buf, view[5]->buf};
    return groups;
}

PyObject *group_fit(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Buffers buffers = {.count = 0};
    Model m = {0};
    Result r = {0};
    Py_ssize_t n = 0;
    if (count != 15) return PyErr_Format(PyExc_TypeError, "group_fit takes 15 arguments");
    take_rows(&buffers, &m, &n, args[0], args[1]);
    Py_buffer *order = take(&buffers, args[2], "lq", 1, 0), *starts = take(&buffers, args[3], "lq", 1, 0);
    const Py_ssize_t groups = take_model(&buffers, &m, &r, args + 4), n_iter = PyLong_AsSsize_t(args[12]);
    const double tol = PyFloat_AsDouble(args[13]);
    m.unsure = PyFloat_AsDouble(args[14]);
    if (buffers.bad || starts->shape[0] != groups + 1) return answer(&buffers, REFUSED);
    const int64_t *at = order->buf, *cut = starts->buf;
    Py_ssize_t most = 1;
    int bad = cut[0] != 0 || cut[groups] != order->shape[0];
    for (Py_ssize_t i = 0; i < order->shape[0]; i++) bad |= at[i] < 0 || at[i] >= n;
    for (Py_ssize_t g = 0; g <= groups; g++) bad |= cut[g] < 0 || cut[g] > order->shape[0];
    for (Py_ssize_t g = 0; !bad && g < groups; g++) {
        const int64_t size = cut[g + 1] - cut[g];
        bad = size < 1;
        if (size * m.width <= GATHERED && size > most) most = (Py_ssize_t)size;
    }
    double *room = bad ? NULL : malloc((size_t)((most + 5) * m.width) * sizeof(double));
    if (!room) {
        if (!bad) PyErr_NoMemory();
        return answer(&buffers, REFUSED);
    }
    double *sums = room + most * m.width;
    m.x = sums + 2 * m.width, m.e = m.x + m.width;
    double *before = m.e + m.width;
    PyThreadState *thread = PyEval_SaveThread();
    const Py_ssize_t open = fit_groups(&m, r, at, cut, groups, n_iter, tol, room, sums, before);
    PyEval_RestoreThread(thread);
    free(room);
    return answer(&buffers, open);
}

PyObject *group_step(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Buffers buffers = {.count = 0};
    Model m = {0};
    Result r = {0};
    if (count != 12) return PyErr_Format(PyExc_TypeError, "group_step takes 12 arguments");
    m.k = PyLong_AsSsize_t(args[0]), m.width = WIDTH(m.k), m.unsure = PyFloat_AsDouble(args[11]);
    Py_buffer *n = take(&buffers, args[1], "d", 1, 0), *sums = take(&buffers, args[2], "d", 3, 0);
    const Py_ssize_t groups = take_model(&buffers, &m, &r, args + 3);
    double *room = NULL;
    if (buffers.bad || n->shape[0] != groups || sums->shape[0] != groups || sums->shape[1] != 2 ||
        sums->shape[2] != m.width || !(room = malloc((size_t)(2 * m.width) * sizeof(double))))
        return answer(&buffers, REFUSED);
    m.x = room, m.e = room + m.width;
    PyThreadState *thread = PyEval_SaveThread();
    step_groups(&m, r, n->buf, sums->buf, groups);
    PyEval_RestoreThread(thread);
    free(room);
    return answer(&buffers, 0);
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
    const Py_ssize_t more = 3 + (hessian ? 2 * (PART + USED(hessian->shape[0])) : 0);
    const Scratch scratch = take_climb(&buffers, &m, &n, args, view, more);
    if (scratch.at && view[1]->shape[0] == 2 + m.width && hessian->shape[0] == m.k && hessian->shape[1] == m.k) {
        PyThreadState *thread = PyEval_SaveThread();
        passes = climb_rows(&m, n, view[0]->buf, tol, most, scratch.at, view[1]->buf, hessian->buf);
        PyEval_RestoreThread(thread);
    }
    give_back(scratch);
    return answer(&buffers, passes);
}

/* Write rows of k numbers side by side, as many as the width each, with zeros behind as they are. */
static double *spread(double *room, const double *rows, Py_ssize_t n, Py_ssize_t k) {
    for (Py_ssize_t i = 0; i < n; i++) memcpy(room + i * WIDTH(k), rows + i * k, (size_t)k * sizeof(double));
    return room + n * WIDTH(k);
}

PyObject *weigh(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Buffers buffers = {.count = 0};
    Model m = {0};
    Py_ssize_t n = 0;
    if (count != 11) return PyErr_Format(PyExc_TypeError, "weigh takes 11 arguments");
    take_rows(&buffers, &m, &n, args[0], args[1]);
    Py_buffer *alpha = take(&buffers, args[2], "d", 2, 0), *out[4];
    for (int i = 0; i < 4; i++) out[i] = take(&buffers, args[3 + i], "d", 2, 1);
    Weighing w = {.each = PyFloat_AsDouble(args[7]), .tol = PyFloat_AsDouble(args[8]), .n_iter = PyLong_AsSsize_t(args[9]),
                  .single = PyLong_AsLong(args[10]) != 0};
    if (buffers.bad) return answer(&buffers, REFUSED);
    const Py_ssize_t k = m.k, width = m.width, c = alpha->shape[0];
    int bad = alpha->shape[1] != k || n < 1 || k < 1;
    for (int i = 0; i < 4; i++) bad |= out[i]->shape[0] != c || out[i]->shape[1] != (i < 3 ? k : 4);
    const Py_ssize_t rest = c + 4 * (c + 1) + 2 * USED(k) + 2 * PART, lines = n + BEHIND + rest;
    const Scratch scratch = bad ? (Scratch){0} : borrow(lines * width + c);
    if (!scratch.at) return answer(&buffers, REFUSED);
    double *at = scratch.at + (n + BEHIND) * width;
    memset(at, 0, (size_t)(rest * width) * sizeof(double));
    w.room = scratch.at, w.n = n, w.k = k, w.hypotheses = c, w.alpha = at;
    w.modes = at = spread(at, alpha->buf, c, k);
    spread(at, out[0]->buf, c, k);
    w.first = at += (c + 1) * width, w.second = at += (c + 1) * width, w.sums = at += (c + 1) * width;
    w.both = at += (c + 1) * width, w.part = at += 2 * USED(k) * width, w.going = (Py_ssize_t *)(at + 2 * PART * width);
    PyThreadState *thread = PyEval_SaveThread();
    weigh_rows(&m, &w, scratch.at, out[0]->buf, out[1]->buf, out[2]->buf, out[3]->buf);
    PyEval_RestoreThread(thread);
    give_back(scratch);
    return answer(&buffers, 0);
}
