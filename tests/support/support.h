/* What the C tests share. Tests run from the repository's root. */
#ifndef NF_TESTS_SUPPORT_H
#define NF_TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the ones above */
#include <cmocka.h>

#include "base/status.h"

#define MODEL_DIR "models/tiny-moe"

/* Fails the test with the message of err when status is not NF_OK. */
void expect_ok(nf_status status, const nf_error *err, const char *what);
#define OK(call) expect_ok((call), &err, #call)

/* A fresh folder for this test program, removed with everything in it at exit. */
const char *temp_dir(void);
/* A path in temp_dir(); valid until the program ends. */
const char *temp_path(const char *name);

/* The embedded model converted to `type` ("c4", "i8", "bf16", "f32"), made once per program; the path lives
 * until exit. */
const char *converted(const char *type);

/* Deterministic pseudo-random numbers. */
uint64_t next_random(uint64_t *state);
/* Uniform in (-1, 1). */
float next_float(uint64_t *state);

#endif
