/* Helpers of the C tests; see support.h. */
#include "tests/support/support.h"

#include "base/buf.h"
#include "converter/convert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void expect_ok(nf_status status, const nf_error *err, const char *what) {
    if (status) fail_msg("%s: %s: %s", what, nf_status_name(status), err ? err->message : "");
}

static char dir[256];

/* Paths that were handed out live until the program ends. */
static char *paths[1024];
static size_t n_paths;

static void remove_dir(void) {
    for (size_t i = 0; i < n_paths; i++) free(paths[i]);
    char command[320];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    if (system(command)) fprintf(stderr, "cannot remove %s\n", dir);
}

const char *temp_dir(void) {
    if (*dir) return dir;
    const char *base = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%s/ninfer-test-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(dir)) abort();
    atexit(remove_dir);
    return dir;
}

const char *temp_path(const char *name) {
    nf_buf path = {0};
    if (n_paths == sizeof paths / sizeof *paths || nf_buf_printf(&path, NULL, "%s/%s", temp_dir(), name))
        abort();
    return paths[n_paths++] = nf_buf_take(&path);
}

const char *converted(const char *type) {
    char name[64];
    snprintf(name, sizeof name, "tiny-%s.ninfer", type);
    const char *path = temp_path(name);
    if (!access(path, F_OK)) return path;
    nf_error err = {0};
    nf_convert_options options = {0};
    assert_true(nf_type_by_name(type, &options.type.type));
    if (options.type.type == NF_TYPE_C4) options.type.codebook = NF_CODEBOOK_LINEAR;
    OK(nf_convert(MODEL_DIR, path, &options, &err));
    return path;
}

uint64_t next_random(uint64_t *state) {
    /* xorshift64* (Vigna 2016) */
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545F4914F6CDD1Dull;
}

float next_float(uint64_t *state) {
    return (float)((double)(next_random(state) >> 11) * 0x1p-52 - 1.0);
}
