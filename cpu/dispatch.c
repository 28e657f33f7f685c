/* Chooses the kernel table once: by processor, or by the environment variable NINFER_CPU. */
#include "cpu/kernels_internal.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#include <stdlib.h>
#include <string.h>

static bool has_avx2(void) {
#if defined(__x86_64__)
    unsigned a, b, c, d;
    /* F16C is not a feature name that every compiler's __builtin_cpu_supports knows. */
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_F16C)) return false;
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return false;
#endif
}

static bool has_avx512(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
#else
    return false;
#endif
}

/* The processor has AMX-int8, the system keeps its registers, and it lets this process use them (Linux gives
 * the large register file on request: arch_prctl ARCH_REQ_XCOMP_PERM for XTILEDATA). */
static bool has_amx(void) {
#if defined(__x86_64__)
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    const unsigned amx_tile = 1u << 24, amx_int8 = 1u << 25, xsave_of_tiles = 3u << 17;
    unsigned a, b, c, d, low, high;
    if (!has_avx512() || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & amx_tile) || !(d & amx_int8))
        return false;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & xsave_of_tiles) != xsave_of_tiles) return false;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return false;
#endif
}

const nf_kernels *nf_kernels_by_name(const char *name) {
    if (!strcmp(name, "portable")) return &nf_kernels_portable;
#if defined(__x86_64__)
    if (!strcmp(name, "avx2") && has_avx2()) return &nf_kernels_avx2;
    if (!strcmp(name, "avx512") && has_avx512()) return &nf_kernels_avx512;
    if (!strcmp(name, "amx") && has_amx()) return &nf_kernels_amx;
#endif
    return NULL;
}

nf_status nf_kernels_get(const nf_kernels **out, nf_error *err) {
    const char *wanted = getenv("NINFER_CPU");
    *out = NULL;
    if (wanted && *wanted) {
        *out = nf_kernels_by_name(wanted);
        if (*out) return NF_OK;
        if (!strcmp(wanted, "avx2"))
            return nf_fail(err, NF_ERR_ARGUMENT, "NINFER_CPU=avx2: this processor has no AVX2, FMA and F16C");
        if (!strcmp(wanted, "avx512"))
            return nf_fail(err, NF_ERR_ARGUMENT,
                           "NINFER_CPU=avx512: this processor lacks AVX-512 F, BW, VL or VNNI");
        if (!strcmp(wanted, "amx"))
            return nf_fail(err, NF_ERR_ARGUMENT,
                           "NINFER_CPU=amx: this processor lacks AMX-int8, or the system does not allow it");
        return nf_fail(err, NF_ERR_ARGUMENT, "NINFER_CPU=%s: unknown level (portable, avx2, avx512, amx)",
                       wanted);
    }
    /* Not "amx" by itself: its tests have run with emulated tile instructions only. */
    static const char *const best_first[] = {"avx512", "avx2", "portable"};
    for (size_t i = 0; i < 3 && !*out; i++) *out = nf_kernels_by_name(best_first[i]);
    return NF_OK;
}
