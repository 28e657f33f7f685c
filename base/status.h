/*
 * Status codes and the error object.
 *
 * Every function that can fail returns nf_status and takes an nf_error (which may be NULL) that receives a
 * message a user can act on: it names the file, tensor or flag and says what is wrong. Libraries never print.
 */
#ifndef NF_BASE_STATUS_H
#define NF_BASE_STATUS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Marks what the shared library exports; everything else is hidden. */
#define NF_API __attribute__((visibility("default")))

typedef enum nf_status {
    NF_OK = 0,
    NF_ERR_ARGUMENT,    /* the caller passed something that can never work */
    NF_ERR_IO,          /* a system call on a file failed */
    NF_ERR_NOT_FOUND,   /* a file or an object does not exist */
    NF_ERR_FORMAT,      /* a file is damaged or is not what it claims to be */
    NF_ERR_UNSUPPORTED, /* well-formed, but this program version cannot handle it */
    NF_ERR_MEMORY,      /* an allocation failed */
    NF_ERR_LIMIT,       /* a stated limit (context, size, count) would be exceeded */
    NF_ERR_NO_SPACE,    /* the disk or the quota is full */
    NF_ERR_BUSY,        /* another process holds the lock */
    NF_ERR_NUMERIC,     /* NaN or infinity appeared in a computation */
    NF_ERR_CANCELLED,   /* the caller asked to stop */
    NF_ERR_INTERNAL     /* a bug in this program */
} nf_status;

#define NF_ERROR_MESSAGE_MAX 1024

/* An error with its message chain, outermost context first: "convert: model.safetensors: header too long".
 * Plain value: zero-initialise it, no cleanup. After NF_OK its content is unspecified. */
typedef struct nf_error {
    nf_status status;
    char message[NF_ERROR_MESSAGE_MAX];
} nf_error;

/* Short lower-case name of a status ("format", "io", ...), for logs and tests. Never NULL. */
NF_API const char *nf_status_name(nf_status status);

/* Fills err (may be NULL) with status and the formatted message, and returns status. The message is cut
 * at NF_ERROR_MESSAGE_MAX - 1 bytes, never inside a UTF-8 sequence. */
__attribute__((format(printf, 3, 4))) nf_status nf_fail(nf_error *err, nf_status status, const char *format,
                                                        ...);

/* As nf_fail, with ": " and the text of errno_value appended. The status is chosen from errno_value: ENOENT
 * -> NF_ERR_NOT_FOUND, ENOSPC/EDQUOT -> NF_ERR_NO_SPACE, ENOMEM -> NF_ERR_MEMORY, all else -> NF_ERR_IO. */
__attribute__((format(printf, 3, 4))) nf_status nf_fail_errno(nf_error *err, int errno_value,
                                                              const char *format, ...);

/* Puts "<formatted>: " in front of the message of err (may be NULL) and returns err's status
 * (NF_ERR_INTERNAL when err is NULL). Use: `return nf_context(err, "layer %d", i);` */
__attribute__((format(printf, 2, 3))) nf_status nf_context(nf_error *err, const char *format, ...);

/* Reports progress of long work. Called from one thread at a time. `done` of `total` bytes of `phase`
 * ("convert", "verify"); done == total ends the phase. Return false to cancel (the work then fails with
 * NF_ERR_CANCELLED). */
typedef bool (*nf_progress_fn)(void *user, const char *phase, uint64_t done, uint64_t total);

/* Version of the program and library, e.g. "0.1.0". */
NF_API const char *nf_version(void);

#ifdef __cplusplus
}
#endif
#endif
