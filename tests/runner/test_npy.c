/* The .npy writer: bytes of the header, atomic publication, refusal before the work. */
#include "runner/npy.h"

#include "base/buf.h"
#include "base/io.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[256];

static int make_folder(void **state) {
    (void)state;
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/nf-npy-XXXXXX", tmp ? tmp : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder); /* fails when a test left a file behind */
}

static void path_of(char *out, size_t size, const char *name) {
    snprintf(out, size, "%s/%s", folder, name);
}

static size_t count_files(void) {
    size_t n = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *e; (e = readdir(dir));) n += e->d_name[0] != '.';
    closedir(dir);
    return n;
}

static void test_writes_rows(void **state) {
    (void)state;
    char path[512];
    path_of(path, sizeof path, "a.npy");
    const float rows[6] = {1, 2, 3, 4, 5, -6.5f};
    nf_npy npy = {0};
    nf_buf file = {0};
    assert_int_equal(nf_npy_open(&npy, path, NULL), NF_OK);
    assert_int_equal(nf_npy_begin(&npy, 3, 2, NULL), NF_OK);
    assert_int_equal(nf_npy_append(&npy, rows, 1, NULL), NF_OK);
    assert_int_equal(access(path, F_OK), -1); /* not there before it is whole */
    assert_int_equal(nf_npy_append(&npy, rows + 2, 2, NULL), NF_OK);
    assert_int_equal(nf_npy_append(&npy, rows, 1, NULL), NF_ERR_INTERNAL);
    assert_int_equal(nf_npy_finish(&npy, NULL), NF_OK);
    assert_int_equal(nf_read_file(path, 4096, &file, NULL), NF_OK);
    assert_int_equal(file.len % 64, sizeof rows);
    assert_memory_equal(file.data, "\x93NUMPY\x01\x00", 8);
    assert_non_null(strstr(file.data + 10, "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }"));
    size_t header = 10 + (size_t)(unsigned char)file.data[8] + 256 * (size_t)(unsigned char)file.data[9];
    assert_int_equal(file.data[header - 1], '\n');
    assert_int_equal(file.len, header + sizeof rows);
    assert_memory_equal(file.data + header, rows, sizeof rows);
    nf_buf_free(&file);
    assert_int_equal(unlink(path), 0);
}

static void test_incomplete_leaves_the_old_file(void **state) {
    (void)state;
    char path[512];
    path_of(path, sizeof path, "b.npy");
    nf_npy npy = {0};
    nf_buf file = {0};
    nf_error err = {0};
    assert_int_equal(nf_write_file_atomic(path, "old", 3, NULL), NF_OK);
    assert_int_equal(nf_npy_open(&npy, path, NULL), NF_OK);
    assert_int_equal(nf_npy_begin(&npy, 3, 2, NULL), NF_OK);
    assert_int_equal(nf_npy_finish(&npy, &err), NF_ERR_INTERNAL);
    assert_non_null(strstr(err.message, "0 of 3 rows"));
    assert_int_equal(nf_npy_open(&npy, path, NULL), NF_OK);
    nf_npy_abort(&npy);
    nf_npy_abort(&npy); /* harmless */
    assert_int_equal(nf_read_file(path, 4096, &file, NULL), NF_OK);
    assert_string_equal(file.data, "old");
    nf_buf_free(&file);
    assert_int_equal(count_files(), 1);
    assert_int_equal(unlink(path), 0);
}

static void test_refuses_bad_paths(void **state) {
    (void)state;
    char path[512];
    nf_npy npy = {0};
    nf_error err = {0};
    assert_int_equal(nf_npy_open(&npy, folder, &err), NF_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "is a folder"));
    path_of(path, sizeof path, "no/such/folder/x.npy");
    assert_int_equal(nf_npy_open(&npy, path, &err), NF_ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, path));
    assert_null(npy.path);
}

static void test_device_is_written_directly(void **state) {
    (void)state;
    const float row[2] = {0, 1};
    nf_npy npy = {0};
    nf_error err = {0};
    assert_int_equal(nf_npy_open(&npy, "/dev/full", NULL), NF_OK);
    assert_int_equal(nf_npy_begin(&npy, 1, 2, &err), NF_ERR_NO_SPACE);
    assert_non_null(strstr(err.message, "/dev/full"));
    nf_npy_abort(&npy);
    assert_int_equal(nf_npy_open(&npy, "/dev/null", NULL), NF_OK);
    assert_int_equal(nf_npy_begin(&npy, 1, 2, NULL), NF_OK);
    assert_int_equal(nf_npy_append(&npy, row, 1, NULL), NF_OK);
    assert_int_equal(nf_npy_finish(&npy, NULL), NF_OK);
    struct stat info;
    assert_int_equal(stat("/dev/null", &info), 0);
    assert_true(S_ISCHR(info.st_mode));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_writes_rows),
        cmocka_unit_test(test_incomplete_leaves_the_old_file),
        cmocka_unit_test(test_refuses_bad_paths),
        cmocka_unit_test(test_device_is_written_directly),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
