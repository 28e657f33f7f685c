/* Growable buffer, growable array, checked allocation. */
#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

nf_status nf_buf_reserve(nf_buf *buf, size_t more, nf_error *err) {
    if (more >= SIZE_MAX - buf->len - 1)
        return nf_fail(err, NF_ERR_MEMORY, "buffer of %zu bytes is too large", more);
    size_t need = buf->len + more + 1;
    if (need <= buf->cap) return NF_OK;
    size_t cap = buf->cap ? buf->cap : 64;
    while (cap < need) cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    char *data = realloc(buf->data, cap);
    if (!data) return nf_fail(err, NF_ERR_MEMORY, "out of memory growing a buffer to %zu bytes", cap);
    buf->data = data;
    buf->cap = cap;
    return NF_OK;
}

nf_status nf_buf_append(nf_buf *buf, const void *bytes, size_t n, nf_error *err) {
    nf_status status = nf_buf_reserve(buf, n, err);
    if (status) return status;
    if (n) memcpy(buf->data + buf->len, bytes, n);
    buf->len += n;
    buf->data[buf->len] = '\0';
    return NF_OK;
}

nf_status nf_buf_text(nf_buf *buf, const char *text, nf_error *err) {
    return nf_buf_append(buf, text, strlen(text), err);
}

nf_status nf_buf_byte(nf_buf *buf, unsigned char byte, nf_error *err) {
    return nf_buf_append(buf, &byte, 1, err);
}

nf_status nf_buf_printf(nf_buf *buf, nf_error *err, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0) return nf_fail(err, NF_ERR_INTERNAL, "bad format string");
    nf_status status = nf_buf_reserve(buf, (size_t)n, err);
    if (status) return status;
    va_start(args, format);
    vsnprintf(buf->data + buf->len, (size_t)n + 1, format, args);
    va_end(args);
    buf->len += (size_t)n;
    return NF_OK;
}

nf_status nf_buf_u32(nf_buf *buf, uint32_t value, nf_error *err) {
    unsigned char bytes[4];
    for (int i = 0; i < 4; i++) bytes[i] = (unsigned char)(value >> (8 * i));
    return nf_buf_append(buf, bytes, sizeof bytes, err);
}

nf_status nf_buf_u64(nf_buf *buf, uint64_t value, nf_error *err) {
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)(value >> (8 * i));
    return nf_buf_append(buf, bytes, sizeof bytes, err);
}

char *nf_buf_take(nf_buf *buf) {
    char *data = buf->data;
    *buf = (nf_buf){0};
    return data;
}

void nf_buf_free(nf_buf *buf) {
    free(buf->data);
    *buf = (nf_buf){0};
}

nf_status nf_grow(void **items, size_t *cap, size_t need, size_t size, nf_error *err) {
    if (need <= *cap) return NF_OK;
    size_t n = *cap ? *cap : 8;
    while (n < need) n = n > SIZE_MAX / 2 ? need : n * 2;
    if (size && n > SIZE_MAX / size)
        return nf_fail(err, NF_ERR_MEMORY, "array of %zu elements is too large", n);
    void *grown = realloc(*items, n * size);
    if (!grown) return nf_fail(err, NF_ERR_MEMORY, "out of memory growing an array to %zu bytes", n * size);
    *items = grown;
    *cap = n;
    return NF_OK;
}

static int bad_product(size_t count, size_t size) {
    return size && count > SIZE_MAX / 2 / size;
}

static void *alloc_failed(size_t count, size_t size, const char *what, nf_error *err) {
    nf_fail(err, NF_ERR_MEMORY, "out of memory allocating %s (%zu x %zu bytes)", what, count, size);
    return NULL;
}

void *nf_alloc(size_t count, size_t size, const char *what, nf_error *err) {
    if (bad_product(count, size)) return alloc_failed(count, size, what, err);
    size_t bytes = count * size;
    void *p = malloc(bytes ? bytes : 1);
    return p ? p : alloc_failed(count, size, what, err);
}

void *nf_calloc(size_t count, size_t size, const char *what, nf_error *err) {
    if (bad_product(count, size)) return alloc_failed(count, size, what, err);
    void *p = calloc(count ? count : 1, size ? size : 1);
    return p ? p : alloc_failed(count, size, what, err);
}

void *nf_calloc_aligned(size_t align, size_t count, size_t size, const char *what, nf_error *err) {
    if (bad_product(count, size)) return alloc_failed(count, size, what, err);
    size_t bytes = count * size;
    void *p = NULL;
    if (posix_memalign(&p, align, bytes ? bytes : align)) return alloc_failed(count, size, what, err);
    memset(p, 0, bytes);
    return p;
}

char *nf_strdup(const char *text, nf_error *err) {
    return nf_strndup(text, strlen(text), err);
}

char *nf_strndup(const char *text, size_t n, nf_error *err) {
    char *copy = nf_alloc(n + 1, 1, "a string", err);
    if (!copy) return NULL;
    memcpy(copy, text, n);
    copy[n] = '\0';
    return copy;
}
