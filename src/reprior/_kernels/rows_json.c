/* Rows of probabilities as JSON text: [[0.25, 0.75], …]. reference.py says what each function computes.
 *
 * Whatever is not plain rows of numbers is REFUSED: a general parser then says what is wrong. */
enum { MOST = 2 };
#include "buffers.h"

#include <float.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define TEN(d) 1e##d##0, 1e##d##1, 1e##d##2, 1e##d##3, 1e##d##4, 1e##d##5, 1e##d##6, 1e##d##7, 1e##d##8, 1e##d##9
#define HUNDRED(d) \
    TEN(d##0), TEN(d##1), TEN(d##2), TEN(d##3), TEN(d##4), TEN(d##5), TEN(d##6), TEN(d##7), TEN(d##8), TEN(d##9)
static const double TENS[] = {TEN(),  TEN(1), TEN(2), TEN(3), TEN(4),     TEN(5),
                              TEN(6), TEN(7), TEN(8), TEN(9), HUNDRED(1), HUNDRED(2)};
#define W(x) UINT64_C(1##x)
static const uint64_t WHOLE_TENS[] = {
    W(), W(0), W(00), W(000), W(0000), W(00000), W(000000), W(0000000), W(00000000), W(000000000), W(0000000000),
    W(00000000000), W(000000000000), W(0000000000000), W(00000000000000), W(000000000000000), W(0000000000000000),
    W(00000000000000000), W(000000000000000000), W(0000000000000000000)};
/* powers of ten up to 10^22 are exact as double; 10^27 is as long double of 64 bits */
enum { EXACT_TENS = 22, EXACT_LONG_TENS = 27, SIGNIFICANT = 9, LONGEST = 19, USUAL = 40 };

INLINE const char *skip(const char *at) {
    while (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t') at++;
    return at;
}

/* Return m·10^e rounded as Python rounds it, or set *sure to 0. */
INLINE double scaled(uint64_t m, int e, int *sure) {
    *sure = 1;
    if (m <= (UINT64_C(1) << 53) && e >= -EXACT_TENS && e <= EXACT_TENS) /* both exact: one rounding */
        return e < 0 ? (double)m / TENS[-e] : (double)m * TENS[e];
    if (m == 0) return 0.0;
#if LDBL_MANT_DIG == 64
    if (e < 0 && e >= -200) {
        long double x = (long double)m;
        int off = 0; /* units of the last of 64 bits by which x may be wrong */
        for (; e < 0; e += EXACT_LONG_TENS, off += 2) {
            const int tens = -e < EXACT_LONG_TENS ? -e : EXACT_LONG_TENS;
            const int first = tens < EXACT_TENS ? tens : EXACT_TENS;
            x /= (long double)TENS[first] * (long double)TENS[tens - first];
        }
        uint64_t bits;
        memcpy(&bits, &x, sizeof bits); /* the 64 bits of its fraction */
        /* now it is rounded to 53 bits: unsure only if it is as near as that to halfway between two doubles */
        const int beyond = (int)(bits & 0x7FF) - 0x400;
        *sure = (beyond < 0 ? -beyond : beyond) > off - 2;
        return (double)x;
    }
#endif
    *sure = 0;
    return 0.0;
}

/* Add up to eight digits to *m and return how many there are; eight bytes are read, and none of them decides a branch:
 * what comes next in a row of numbers is hard to guess. */
INLINE int read_eight(const char *at, uint64_t *m) {
    uint64_t x;
    memcpy(&x, at, sizeof x);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    x = __builtin_bswap64(x);
#endif
    x ^= UINT64_C(0x3030303030303030); /* a digit becomes its value */
    const uint64_t others = ((x + UINT64_C(0x7676767676767676)) | x) & UINT64_C(0x8080808080808080);
    const int count = others ? __builtin_ctzll(others) / 8 : 8;
    x = count ? x << (64 - 8 * count) : 0; /* zeros before the digits */
    x = x * 10 + (x >> 8); /* sums of two digits, then of eight */
    x = ((x & UINT64_C(0xFF000000FF)) * UINT64_C(0xF424000000064) +
         ((x >> 16) & UINT64_C(0xFF000000FF)) * UINT64_C(0x271000000001)) >> 32;
    *m = *m * WHOLE_TENS[count] + x;
    return count;
}

/* Return the comma or bracket behind a number, among the next 32 bytes, NULL if there is none. */
INLINE const char *next_end(const char *at) {
#ifdef __SSE2__
    for (int half = 0; half < 2; half++, at += 16) {
        const __m128i x = _mm_loadu_si128((const __m128i *)at);
        const __m128i ends = _mm_or_si128(_mm_cmpeq_epi8(x, _mm_set1_epi8(',')), _mm_cmpeq_epi8(x, _mm_set1_epi8(']')));
        const int found = _mm_movemask_epi8(ends);
        if (found) return at + __builtin_ctz((unsigned)found);
    }
#else
    for (int i = 0; i < 32; i++)
        if (at[i] == ',' || at[i] == ']') return at + i;
#endif
    return NULL;
}

/* Read a number as most are written, d.ddd or d.ddde-dd; return where it ends, NULL if it is another. The end is found
 * apart from the digits, so that the processor can begin with the next number before it is done with this one. */
INLINE const char *read_usual(const char *at, double *out, int *wide) {
    const char *end = next_end(at);
    uint64_t m = (unsigned char)*at++ - (uint64_t)'0';
    int sure, places = 0;
    if (m > 9) return NULL;
    if (*at == '.') {
        places = read_eight(++at, &m);
        if (places == 8) places += read_eight(at + 8, &m);
        if (places == 16) {
            const uint64_t before = m;
            places += read_eight(at + 16, &m);
            if (before >= WHOLE_TENS[19 + 16 - places]) return NULL; /* more than 19 digits need not fit in 64 bits */
        }
        if (places == 0) return NULL;
        at += places;
    }
    if (at != end) {
        const unsigned tens = (unsigned char)at[2] - (unsigned)'0', ones = (unsigned char)at[3] - (unsigned)'0';
        if (at + 4 != end || *at != 'e' || at[1] != '-' || tens > 9 || ones > 9) return NULL;
        places += (int)(10 * tens + ones);
    }
    *wide |= m >= UINT64_C(1000000000);
    *out = scaled(m, -places, &sure);
    return sure ? end : NULL;
}

/* Read any JSON number to *out and return where it ends, NULL if there is none; the text ends with a zero.
 * *wide is set if the number has more than nine significant digits. */
static const char *read_number(const char *at, double *out, int *wide) {
    char text[64], *end;
    const char *begin = at;
    int significant = 0;
    at += *at == '-';
    if (*at == '0' && (unsigned)(at[1] - '0') < 10) return NULL;
    for (int part = 0; part < 2; part++) { /* before the point, and behind it */
        const char *first = at;
        for (; (unsigned)(*at - '0') < 10; at++) significant += significant || *at != '0';
        if (at == first) return NULL;
        if (part || *at != '.') break;
        at++;
    }
    *wide |= significant > 9;
    if (*at == 'e' || *at == 'E') {
        at += 1 + (at[1] == '-' || at[1] == '+');
        if ((unsigned)(*at - '0') > 9) return NULL;
        while ((unsigned)(*at - '0') < 10) at++;
    }
    const size_t length = (size_t)(at - begin);
    if (length >= sizeof text) return NULL;
    memcpy(text, begin, length), text[length] = 0;
    *out = PyOS_string_to_double(text, &end, NULL);
    return *end || !(*out - *out == 0.0) ? NULL : at;
}

/* Read rows to `out` (n, K); return where they end. */
static const char *read_rows(const char *at, const char *last, double *out, Py_ssize_t n, Py_ssize_t k, int *wide) {
    if (*at++ != '[') return NULL;
    for (Py_ssize_t row = 0; row < n; row++) {
        at = skip(at);
        if (row && *at != ',') return NULL;
        at = skip(at + (row > 0));
        if (*at++ != '[') return NULL;
        for (Py_ssize_t i = 0; i < k; i++) {
            at = skip(at);
            if (i && *at != ',') return NULL;
            at = skip(at + (i > 0));
            const char *end = last - at >= USUAL ? read_usual(at, out, wide) : NULL;
            if (!end && !(end = read_number(at, out, wide))) return NULL;
            at = end, out++;
        }
        at = skip(at);
        if (*at++ != ']') return NULL;
    }
    at = skip(at);
    return *at == ']' ? at + 1 : NULL;
}

PyObject *parse_rows(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    if (count != 3) return PyErr_Format(PyExc_TypeError, "parse_rows takes 3 arguments");
    if (!PyBytes_Check(args[0])) return PyErr_Format(PyExc_TypeError, "parse_rows takes bytes");
    const char *text = PyBytes_AsString(args[0]), *last = text + PyBytes_Size(args[0]), *end = NULL;
    const Py_ssize_t start = PyLong_AsSsize_t(args[1]), k = PyLong_AsSsize_t(args[2]);
    if (PyErr_Occurred()) return NULL;
    Py_ssize_t n = -1; /* rows: one bracket each, and one around them */
    int wide = 0;
    if (start >= 0 && start < last - text)
        for (const char *at = text + start; (at = memchr(at, '[', (size_t)(last - at))); at++) n++;
    if (n < 1 || k < 1 || n > (last - text) / (2 * k)) Py_RETURN_NONE; /* a number and what follows it are two bytes */
    PyObject *rows = PyBytes_FromStringAndSize(NULL, n * k * (Py_ssize_t)sizeof(double));
    if (!rows) return NULL;
    end = read_rows(text + start, last, (double *)PyBytes_AsString(rows), n, k, &wide);
    if (!end || PyErr_Occurred()) {
        PyErr_Clear();
        Py_DECREF(rows);
        Py_RETURN_NONE;
    }
    return Py_BuildValue("NnO", rows, end - text, wide ? Py_True : Py_False);
}

#define ONES(d) d "0 " d "1 " d "2 " d "3 " d "4 " d "5 " d "6 " d "7 " d "8 " d "9 "
#define PAIRS(d) \
    ONES(d "0") ONES(d "1") ONES(d "2") ONES(d "3") ONES(d "4") \
    ONES(d "5") ONES(d "6") ONES(d "7") ONES(d "8") ONES(d "9")
/* the digits of all numbers below 1,000, with a blank behind each */
static const char TRIPLES[] =
    PAIRS("0") PAIRS("1") PAIRS("2") PAIRS("3") PAIRS("4") PAIRS("5") PAIRS("6") PAIRS("7") PAIRS("8") PAIRS("9");

/* Write the nine digits of a number below 10^9, and a byte that the next character replaces. */
INLINE char *write_digits(char *at, uint32_t x) {
    const uint32_t thousands = x / 1000, millions = x / 1000000;
    memcpy(at, TRIPLES + 4 * millions, 4);
    memcpy(at + 3, TRIPLES + 4 * (thousands - 1000 * millions), 4);
    memcpy(at + 6, TRIPLES + 4 * (x - 1000 * thousands), 4);
    return at + SIGNIFICANT;
}

/* Write a number between 0 and 1 with nine significant digits and return where it ends; NULL for another number. */
INLINE char *write_number(char *at, double x) {
    if (!(x > 1e-290 && x < 0.9999999995)) {
        if (x != 0.0 && !(x > 0.5 && x <= 1.0)) return NULL;
        memcpy(at, x == 0.0 ? "0.0" : "1.0", 3);
        return at + 3;
    }
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int e = ((int)(bits >> 52) - 1023) * 1233 / 4096 - 1; /* the power of ten, or one below it */
    e += x * TENS[SIGNIFICANT - 1 - e] >= 999999999.5;
    const uint32_t m = (uint32_t)(x * TENS[SIGNIFICANT - 1 - e] + 0.5);
    if (x >= 1e-5) { /* not by e, which is known later: a wrong guess of the processor costs less */
        memcpy(at, "0.000000", 8);
        return write_digits(at + 1 - e, m);
    }
    write_digits(at + 1, m);
    at[0] = at[1], at[1] = '.';
    at += 1 + SIGNIFICANT, e = -e;
    *at++ = 'e', *at++ = '-';
    if (e >= 100) *at++ = (char)('0' + e / 100), e %= 100, *at++ = (char)('0' + e / 10);
    else if (e >= 10) *at++ = (char)('0' + e / 10);
    *at++ = (char)('0' + e % 10);
    return at;
}

PyObject *format_rows(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Buffers buffers = {.count = 0};
    if (count != 1) return PyErr_Format(PyExc_TypeError, "format_rows takes 1 argument");
    Py_buffer *rows = take(&buffers, args[0], "df", 2, 0);
    const Py_ssize_t n = rows ? rows->shape[0] : 0, k = rows ? rows->shape[1] : 0;
    if (!k) return answer(&buffers, REFUSED);
    const int single = rows->format[0] == 'f';
    PyObject *made = PyByteArray_FromStringAndSize(NULL, n * (k * LONGEST + 2) + 2); /* as long as it may get */
    if (!made) return answer(&buffers, REFUSED);
    char *text = PyByteArray_AsString(made), *at = text;
    *at++ = '[';
    for (Py_ssize_t row = 0, cell = 0; at && row < n; row++) {
        *at++ = '[';
        for (const Py_ssize_t last = cell + k; at && cell < last; cell++) {
            at = write_number(at, single ? (double)((const float *)rows->buf)[cell] : ((const double *)rows->buf)[cell]);
            if (at) *at++ = ',';
        }
        if (at) at[-1] = ']', *at++ = ',';
    }
    if (!at) {
        Py_DECREF(made);
        return answer(&buffers, REFUSED);
    }
    at[-(n > 0)] = ']';
    PyByteArray_Resize(made, at + (n == 0) - text);
    Py_XDECREF(answer(&buffers, DONE));
    return made;
}
