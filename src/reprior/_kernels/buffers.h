/* Arguments as the kernels take them from Python: buffers of numbers, held until there is an answer.
 *
 * MOST, how many a function takes, is said by the file that includes this. */
#ifndef REPRIOR_BUFFERS_H
#define REPRIOR_BUFFERS_H

#include "lanes.h"

typedef struct {
    Py_buffer held[MOST];
    int count, bad;
} Buffers;

/* Take a C-contiguous, aligned buffer with `ndim` axes of one of the given element types, whole numbers of 64 bits;
 * NULL, with no error set, marks the buffers as bad, and then so does whatever is taken after it. */
static Py_buffer *take(Buffers *buffers, PyObject *object, const char *formats, int ndim, int writable) {
    Py_buffer *view = &buffers->held[buffers->count];
    if (buffers->bad) return NULL;
    buffers->bad = 1;
    /* a masked array hands out what is under its mask; NumPy's own type, and a memoryview, are not heap types */
    if (PyType_GetFlags(Py_TYPE(object)) & Py_TPFLAGS_HEAPTYPE && PyObject_HasAttrString(object, "mask")) return NULL;
    if (PyObject_GetBuffer(object, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0)) < 0) {
        PyErr_Clear();
        return NULL;
    }
    buffers->count++;
    const int known = view->format && view->format[0] && !view->format[1] && strchr(formats, view->format[0]);
    buffers->bad = !(known && view->ndim == ndim && (formats[0] != 'l' || view->itemsize == 8) &&
                     (uintptr_t)view->buf % (size_t)view->itemsize == 0);
    return buffers->bad ? NULL : view;
}

static PyObject *answer(Buffers *buffers, Py_ssize_t code) {
    while (buffers->count) PyBuffer_Release(&buffers->held[--buffers->count]);
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(code);
}

#endif
