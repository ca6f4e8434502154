/* Rows of probabilities as JSON text: [[0.25, 0.75], …]. reference.py says what each function computes.
 *
 * Whatever is not plain rows of numbers is REFUSED: a general parser then says what is wrong. */
enum { MOST = 2 };
#include "buffers.h"

#include <float.h>

#define TEN(d) 1e##d##0, 1e##d##1, 1e##d##2, 1e##d##3, 1e##d##4, 1e##d##5, 1e##d##6, 1e##d##7, 1e##d##8, 1e##d##9
#define HUNDRED(d) TEN(d##0), TEN(d##1), TEN(d##2), TEN(d##3), TEN(d##4), TEN(d##5), TEN(d##6), TEN(d##7), TEN(d##8), TEN(d##9)
static const double TENS[] = {TEN(), TEN(1), TEN(2), TEN(3), TEN(4), TEN(5), TEN(6), TEN(7), TEN(8), TEN(9), HUNDRED(1), HUNDRED(2)};
/* powers of ten up to 10^22 are exact as double; 10^27 is as long double of 64 bits */
enum { EXACT_TENS = 22, EXACT_LONG_TENS = 27, SIGNIFICANT = 9, LONGEST = 18, FIXED_FROM = -5 };

INLINE const char *skip(const char *at) {
    while (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t') at++;
    return at;
}

/* Return m·10^e rounded as Python rounds it, or set *sure to 0. */
INLINE double scaled(uint64_t m, int e, int *sure) {
    *sure = 1;
    if (m == 0) return 0.0;
    if (m <= (UINT64_C(1) << 53) && e >= -EXACT_TENS && e <= EXACT_TENS) /* both exact: one rounding */
        return e < 0 ? (double)m / TENS[-e] : (double)m * TENS[e];
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

/* Read digits behind those in *m and return where they end. */
INLINE const char *read_digits(const char *at, uint64_t *m) {
    for (unsigned digit; (digit = (unsigned)(*at - '0')) < 10; at++) *m = *m * 10 + digit;
    return at;
}

/* Read a JSON number to *out and return where it ends, NULL if there is none. The text ends with a zero byte.
 * *wide is set if the number has more than nine significant digits. */
INLINE const char *read_number(const char *at, double *out, int *wide) {
    const char *begin = at;
    const int negative = *at == '-';
    uint64_t m = 0;
    int e = 0, sure = 0;
    at += negative;
    const char *first = at;
    if (*at == '0') at++;
    else at = read_digits(at, &m);
    if (at == first || (unsigned)(*at - '0') < 10) return NULL;
    Py_ssize_t digits = *first == '0' ? 0 : at - first;
    if (*at == '.') {
        const char *point = ++at;
        at = read_digits(at, &m);
        if (at == point) return NULL;
        e = (int)(point - at), digits += at - point;
    }
    if (*at == 'e' || *at == 'E') {
        int power = 0;
        const int below = at[1] == '-';
        at += 1 + (at[1] == '-' || at[1] == '+');
        if (*at < '0' || *at > '9') return NULL;
        for (; *at >= '0' && *at <= '9'; at++) power = power < 9999 ? power * 10 + (*at - '0') : power;
        e += below ? -power : power;
    }
    *wide |= digits > 19 || m >= UINT64_C(1000000000);
    if (digits <= 19) *out = scaled(m, e, &sure);
    if (!sure) { /* rare: many digits, or a tiny number */
        char text[64], *end;
        const size_t length = (size_t)(at - begin);
        if (length >= sizeof text) return NULL;
        memcpy(text, begin, length), text[length] = 0;
        const double x = PyOS_string_to_double(text, &end, NULL);
        if (PyErr_Occurred()) return NULL;
        *out = x;
        return *end || !(x - x == 0.0) ? NULL : at;
    }
    if (negative) *out = -*out;
    return at;
}

/* Read rows to `out` (n, K); return where they end. */
static const char *read_rows(const char *at, double *out, Py_ssize_t n, Py_ssize_t k, int *wide) {
    if (*at++ != '[') return NULL;
    for (Py_ssize_t row = 0; row < n; row++) {
        at = skip(at);
        if (row && *at != ',') return NULL;
        at = skip(at + (row > 0));
        if (*at++ != '[') return NULL;
        for (Py_ssize_t i = 0; i < k; i++) {
            at = skip(at);
            if (i && *at != ',') return NULL;
            at = read_number(skip(at + (i > 0)), out++, wide);
            if (!at) return NULL;
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
    end = read_rows(text + start, (double *)PyBytes_AsString(rows), n, k, &wide);
    if (!end || PyErr_Occurred()) {
        PyErr_Clear();
        Py_DECREF(rows);
        Py_RETURN_NONE;
    }
    return Py_BuildValue("NnO", rows, end - text, wide ? Py_True : Py_False);
}

static const char PAIRS[] = "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849"
                            "5051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899";

INLINE char *write_digits(char *at, uint32_t x) { /* nine digits */
    const uint32_t high = x / 10000, low = x % 10000, top = high / 10000, mid = high % 10000;
    *at = (char)('0' + top);
    memcpy(at + 1, PAIRS + 2 * (mid / 100), 2), memcpy(at + 3, PAIRS + 2 * (mid % 100), 2);
    memcpy(at + 5, PAIRS + 2 * (low / 100), 2), memcpy(at + 7, PAIRS + 2 * (low % 100), 2);
    return at + SIGNIFICANT;
}

/* Write a number between 0 and 1 with nine significant digits and return where it ends; NULL for another number. */
INLINE char *write_number(char *at, double x) {
    if (x == 0.0) return memcpy(at, "0.0", 3), at + 3;
    if (!(x > 1e-290 && x <= 1.0)) return NULL;
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int e = ((int)(bits >> 52) - 1023) * 1233 / 4096 - 1; /* the power of ten, or one below it */
    double y = x * TENS[SIGNIFICANT - 1 - e];
    if (y >= 999999999.5) y = x * TENS[SIGNIFICANT - 2 - e], e++;
    if (y >= 999999999.5) y = 1e8, e++; /* 0.9999999999 */
    const uint32_t m = (uint32_t)(y + 0.5);
    if (e == 0) return memcpy(at, "1.0", 3), at + 3;
    if (e >= FIXED_FROM) {
        memcpy(at, "0.00000", 7);
        return write_digits(at + 1 - e, m);
    }
    char digits[SIGNIFICANT];
    write_digits(digits, m);
    at[0] = digits[0], at[1] = '.';
    memcpy(at + 2, digits + 1, SIGNIFICANT - 1);
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
    char *text = rows && k ? malloc((size_t)(n * (k * LONGEST + 3) + 2)) : NULL, *at = text;
    PyObject *made = NULL;
    if (!text) return answer(&buffers, -2);
    *at++ = '[';
    for (Py_ssize_t row = 0; at && row < n; row++) {
        if (row) *at++ = ',';
        *at++ = '[';
        for (Py_ssize_t i = 0; at && i < k; i++) {
            const Py_ssize_t place = row * k + i;
            if (i) *at++ = ',';
            at = write_number(at, rows->format[0] == 'f' ? (double)((const float *)rows->buf)[place]
                                                         : ((const double *)rows->buf)[place]);
        }
        if (at) *at++ = ']';
    }
    if (at) *at++ = ']', made = PyBytes_FromStringAndSize(text, at - text);
    free(text);
    if (!at) return answer(&buffers, -2);
    Py_XDECREF(answer(&buffers, 0));
    return made;
}
