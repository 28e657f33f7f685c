/* The embedded model's place; see embedded.h. */
#include "runner/embedded.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODEL_NAME "tiny-moe"

/* Sets *found and leaves "BASE/REST" in path when `probe` exists in it (or itself, with probe ""). */
static nf_status try_place(const char *base, const char *rest, const char *probe, nf_buf *path, bool *found,
                           nf_error *err) {
    size_t start = path->len;
    nf_buf file = {0};
    nf_status status = nf_buf_printf(path, err, "%s/%s", base, rest);
    if (!status) status = nf_buf_printf(&file, err, "%s%s", path->data + start, probe);
    *found = !status && !access(file.data, R_OK);
    nf_buf_free(&file);
    if (!*found && path->data) path->data[path->len = start] = '\0';
    return status;
}

/* A share folder holds the container (as installed) or the checkpoint. */
static nf_status try_share(const char *base, const char *share, nf_buf *path, bool *found, nf_error *err) {
    nf_buf folder = {0};
    nf_status status = nf_buf_printf(&folder, err, "%s%s", base, share);
    if (!status) status = try_place(folder.data, MODEL_NAME ".ninfer", "", path, found, err);
    if (!status && !*found) status = try_place(folder.data, MODEL_NAME, "/config.json", path, found, err);
    nf_buf_free(&folder);
    return status;
}

/* Folder of the running program, without the last slash. */
static nf_status program_folder(char *out, size_t size, nf_error *err) {
    ssize_t n = readlink("/proc/self/exe", out, size - 1);
    if (n <= 0)
        return nf_fail(err, NF_ERR_NOT_FOUND,
                       "cannot find the program's own folder (/proc/self/exe); name a model");
    out[n] = '\0';
    char *slash = strrchr(out, '/');
    if (slash) *slash = '\0';
    return NF_OK;
}

nf_status nf_embedded_model(nf_buf *path, nf_error *err) {
    char bin[4096];
    bool found = false;
    const char *share = getenv("NINFER_SHARE");
    if (share && *share) {
        nf_status status = try_share(share, "", path, &found, err);
        if (!status && !found)
            status =
                nf_fail(err, NF_ERR_NOT_FOUND,
                        "NINFER_SHARE=%s: holds neither " MODEL_NAME ".ninfer nor " MODEL_NAME "/", share);
        return status;
    }
    nf_status status = program_folder(bin, sizeof bin, err);
    if (!status) status = try_place(bin, "../models/" MODEL_NAME, "/config.json", path, &found, err);
    if (!status && !found) status = try_share(bin, "/../share/ninfer", path, &found, err);
    if (!status && !found)
        status = nf_fail(err, NF_ERR_NOT_FOUND,
                         "the embedded model is neither in %s/../models nor in %s/../share/ninfer; name a "
                         "model or set NINFER_SHARE",
                         bin, bin);
    return status;
}
