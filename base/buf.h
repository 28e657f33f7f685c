/* The one growable byte buffer and string builder, and the one growable array. */
#ifndef NF_BASE_BUF_H
#define NF_BASE_BUF_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* Bytes on the heap. Zero-initialise; free with nf_buf_free. After every successful append data[len] is a
 * NUL byte that len does not count, so data is also a C string (data is NULL while nothing was appended). */
typedef struct nf_buf {
    char *data;
    size_t len;
    size_t cap;
} nf_buf;

/* Makes room for `more` bytes beyond len (plus the NUL). NF_ERR_MEMORY when that fails; buf stays valid. */
nf_status nf_buf_reserve(nf_buf *buf, size_t more, nf_error *err);
/* Appends n bytes; bytes may be NULL when n is 0. */
nf_status nf_buf_append(nf_buf *buf, const void *bytes, size_t n, nf_error *err);
/* Appends a NUL-terminated string. */
nf_status nf_buf_text(nf_buf *buf, const char *text, nf_error *err);
/* Appends one byte. */
nf_status nf_buf_byte(nf_buf *buf, unsigned char byte, nf_error *err);
/* Appends formatted text. */
__attribute__((format(printf, 3, 4))) nf_status nf_buf_printf(nf_buf *buf, nf_error *err, const char *format,
                                                              ...);
/* Appends little-endian integers. */
nf_status nf_buf_u32(nf_buf *buf, uint32_t value, nf_error *err);
nf_status nf_buf_u64(nf_buf *buf, uint64_t value, nf_error *err);
/* Hands the bytes to the caller (who frees them with free()) and resets buf. NULL when buf is empty. */
char *nf_buf_take(nf_buf *buf);
/* Frees the bytes and zeroes buf. Accepts zeroed buffers. */
void nf_buf_free(nf_buf *buf);

/* Grows the array *items (elements of `size` bytes, capacity *cap elements) so that it holds at least `need`
 * elements; doubles. The caller owns *items (free()). NF_ERR_MEMORY leaves everything as it was.
 *   if (n == cap && nf_grow((void **)&items, &cap, n + 1, sizeof *items, err)) goto fail; */
nf_status nf_grow(void **items, size_t *cap, size_t need, size_t size, nf_error *err);

/* malloc/calloc/strdup with overflow check and an error message that says what was being allocated. */
void *nf_alloc(size_t count, size_t size, const char *what, nf_error *err);
void *nf_calloc(size_t count, size_t size, const char *what, nf_error *err);
char *nf_strdup(const char *text, nf_error *err);
char *nf_strndup(const char *text, size_t n, nf_error *err);
/* As nf_calloc, aligned to `align` (a power of two >= 8); free with free(). */
void *nf_calloc_aligned(size_t align, size_t count, size_t size, const char *what, nf_error *err);

#endif
