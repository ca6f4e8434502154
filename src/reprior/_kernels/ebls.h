/* The rows of online-ebls, with vectors of LANES numbers; a block of eight numbers is PARTS of them. native.c includes
 * this once for each width of vectors. All widths give the same results, bit for bit. */

/* Forget what a filter's memory does not hold. Return what its mean, of which `norm` made the sum one, is still to be
 * multiplied by. */
INLINE double forget(const Job *job, Py_ssize_t f, double norm, double *m, double *s, double *held) {
    const Py_ssize_t k = job->k, whole_blocks = k / 8 * 8;
    const double *about = job->bank + COLUMNS * f, memory = about[MEMORY], a = about[SIZE];
    if (!(memory > 0.0)) return norm;
    const double keep = 1.0 - 1.0 / memory, whole = (1.0 - keep) * (double)k * a;
    const double *base = job->valid + (about[WITHOUT_SHIFT] > 0.0 ? 1 : 2) * job->width;
    lanes sum[PARTS] = {{0}};
    HALVES(i, job->width) {
        lanes left = keep * LOAD(s + i), y = left + whole;
        lanes x = (left * (LOAD(m + i) * norm) + whole * LOAD(base + i)) / y;
        if (i >= whole_blocks) y *= LOAD(job->valid + i);
        STORE(s + i, y);
        STORE(m + i, x);
        sum[h] += x;
    }
    held[f] *= keep;
    return 1.0 / total_of(sum);
}

TARGET static Py_ssize_t ebls_rows(Job *job) {
    const Py_ssize_t k = job->k, width = job->width, filters = job->filters, whole_blocks = k / 8 * 8;
    const double share = job->options[1], heldout_noise = job->options[2], caution = job->options[3];
    const double chance_gain = job->options[4], log_odds_start = job->options[5];
    const double *without_shift = job->valid + width;
    const Py_ssize_t each = WIDTH(filters);
    double *l = job->scratch + width, *z = l + width, *logs = z + each;
    double *norm = logs + each, *limit = norm + each, *rest = limit + each;
    double unused;
    for (Py_ssize_t f = filters; f < each; f++) z[f] = 1.0;
    int settled = 1; /* else each filter forgets when the next row comes, while it is in cache */
    for (Py_ssize_t f = 0; f < filters; f++) {
        const double memory = job->bank[COLUMNS * f + MEMORY];
        limit[f] = memory > 0.0 ? log(memory) : INFINITY;
    }
    for (Py_ssize_t row = 0; row < job->n; row++) {
        double *state = state_of(job, row), *weights = state + 2, *behind = weights + filters, *held = behind + filters;
        double *mean = held + filters, *precision = mean + filters * width;
        if (isnan(likelihood(job, row, NULL, l, &unused))) return row;
        state[N] += 1.0;
        if (job->directions) add_moments(job, row, precision + filters * width);
        const double *next = job->slots && row + 1 < job->n ? job->table + job->slots[row + 1] * job->size : NULL;
        lanes products[PARTS] = {{0}};
        HALVES(i, width) products[h] += LOAD(l + i) * LOAD(without_shift + i);
        const double mass = total_of(products);
        double evidence = 0.0;
        /* each of these three loops runs over all filters, so that one filter need not wait for the sums of another */
        for (Py_ssize_t f = 0; f < filters; f++) {
            double *m = mean + f * width, *s = precision + f * width;
            for (Py_ssize_t i = 0; next && i < width; i += 8) {
                __builtin_prefetch(next + (m - state) + i, 1);
                __builtin_prefetch(next + (s - state) + i, 1);
            }
            rest[f] = settled ? 1.0 : forget(job, f, norm[f], m, s, held);
        }
        for (Py_ssize_t f = 0; f < filters; f++) {
            double *m = mean + f * width;
            const double factor = rest[f];
            lanes dot[PARTS] = {{0}};
            HALVES(i, width) {
                const lanes x = LOAD(m + i) * factor;
                STORE(m + i, x);
                dot[h] += LOAD(l + i) * x;
            }
            z[f] = total_of(dot);
        }
        for (Py_ssize_t f = 0; f < filters; f++) {
            double *m = mean + f * width, *s = precision + f * width;
            const double lessened = 1.0 + heldout_noise * held[f], count = 1.0 / (lessened * lessened);
            const double scale = count / z[f];
            lanes sum[PARTS] = {{0}};
            evidence += weights[f] * z[f];
            HALVES(i, width) {
                /* with a = sm, b = s(1 − m) and r: the variance of a Beta that has a + r or a for a, as likely as r */
                lanes x = LOAD(m + i), y = LOAD(s + i), r = LOAD(l + i) * x * scale, more = y + count;
                lanes above = y * x + r, beside = r * (count - r), spread = above * (more - above) - beside;
                spread = SELECT(spread > TINY, spread, SPLAT(TINY));
                lanes whole = spread + beside * (more + 1.0);
                /* the mean is (sm + r)/(s + 1), and the precision is the one that matches the variance */
                x = above / more;
                y = more * spread / whole;
                y = SELECT(y < LEAST_PRECISION, SPLAT(LEAST_PRECISION), y);
                if (i >= whole_blocks) y *= LOAD(job->valid + i);
                STORE(m + i, x);
                STORE(s + i, y);
                sum[h] += x;
            }
            norm[f] = 1.0 / total_of(sum);
        }
        write_logs(z, logs, each);
        double since = state[N]; /* samples since the last change: a filter of endless memory holds them */
        for (Py_ssize_t f = 0; f < filters; f++)
            if (job->bank[COLUMNS * f + MEMORY] == 0.0 && held[f] < since) since = held[f];
        const double before = 1.0 / (1.0 + caution * since), now = 1.0 / (1.0 + caution * (since + 1.0));
        double log_odds = log(state[NO_SHIFT] / (1.0 - state[NO_SHIFT])) - log_odds_start;
        log_odds = log_odds_start + now / before * log_odds + now * (log(mass / evidence) + chance_gain);
        double no_shift = 1.0 / (1.0 + exp(-log_odds));
        if (!(no_shift >= LEAST_NO_SHIFT)) no_shift = LEAST_NO_SHIFT;
        if (no_shift > 1.0 - LEAST_NO_SHIFT) no_shift = 1.0 - LEAST_NO_SHIFT;
        state[NO_SHIFT] = no_shift;
        const double part = (1.0 - share) / evidence;
        for (Py_ssize_t f = 0; f < filters; f++) {
            weights[f] = part * weights[f] * z[f] + share * job->bank[COLUMNS * f + WEIGHT];
            held[f] += 1.0;
        }
        const double time_limit = log(state[N]);
        for (Py_ssize_t f = 1; f < filters; f++) { /* a slower filter against the next faster one */
            if (job->bank[COLUMNS * f + RESTARTS] == 0.0) continue;
            behind[f] += logs[f - 1] - logs[f];
            if (behind[f] < 0.0) behind[f] = 0.0;
            if (behind[f] <= (limit[f] < time_limit ? limit[f] : time_limit)) continue;
            memcpy(mean + f * width, mean + (f - 1) * width, (size_t)width * sizeof(double));
            memcpy(precision + f * width, precision + (f - 1) * width, (size_t)width * sizeof(double));
            norm[f] = norm[f - 1], behind[f] = 0.0, held[f] = held[f - 1];
            weights[f] = weights[f - 1] = (weights[f - 1] + weights[f]) / 2.0;
        }
        settled = row + 1 == job->n || (job->slots && job->slots[row + 1] != job->slots[row]);
        for (Py_ssize_t f = 0; settled && f < filters; f++) {
            double *m = mean + f * width;
            const double factor = forget(job, f, norm[f], m, precision + f * width, held);
            HALVES(i, width) STORE(m + i, LOAD(m + i) * factor);
        }
    }
    return DONE;
}
