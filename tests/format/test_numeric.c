/*
 * Scalar conversions of format/numeric.h against slow definitions that share nothing with them: values come
 * from the fields of a code by ldexp in double, rounding from a search for the nearest value, ties to the
 * even code.
 */
#include "tests/support/support.h"

#include "format/numeric.h"

#include <math.h>
#include <stdlib.h>

/* A small float format: `bits` of exponent and mantissa, the codes in order are its values >= 0. */
typedef struct small_format {
    const char *name;
    int exponent_bits, mantissa_bits, bias;
    uint32_t first_special; /* first code that is not a finite value */
    bool saturates;         /* beyond the largest value: that value; otherwise the next code, infinity */
    double *values;         /* [first_special + 1]; the last is what would follow the largest */
} small_format;

static small_format f16 = {"f16", 5, 10, 15, 0x7c00, false, NULL};
static small_format bf16 = {"bf16", 8, 7, 127, 0x7f80, false, NULL};
static small_format e4m3 = {"e4m3", 4, 3, 7, 0x7f, true, NULL};

static double value_of(const small_format *f, uint32_t code) {
    const int e = (int)(code >> f->mantissa_bits), m = (int)(code & ((1u << f->mantissa_bits) - 1));
    return e ? ldexp((1 << f->mantissa_bits) + m, e - f->bias - f->mantissa_bits)
             : ldexp(m, 1 - f->bias - f->mantissa_bits);
}

static void make_values(small_format *f) {
    f->values = calloc(f->first_special + 1, sizeof *f->values);
    assert_non_null(f->values);
    for (uint32_t c = 0; c <= f->first_special; c++) f->values[c] = value_of(f, c);
}

/* Code of the value nearest to x >= 0. */
static uint32_t nearest(const small_format *f, double x) {
    uint32_t low = 0, high = f->first_special; /* values[low] <= x; x < values[high], or high is the last */
    const uint32_t largest = f->first_special - (f->saturates ? 1 : 0);
    if (x >= f->values[f->first_special]) return largest;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (f->values[middle] <= x)
            low = middle;
        else
            high = middle;
    }
    double down = x - f->values[low], up = f->values[high] - x;
    uint32_t code = down < up || (down == up && low % 2 == 0) ? low : high;
    return code < largest ? code : largest;
}

static uint32_t convert(const small_format *f, float x) {
    return f == &f16 ? nf_f32_to_f16(x) : f == &bf16 ? nf_f32_to_bf16(x) : nf_f32_to_e4m3(x);
}

static float widen(const small_format *f, uint32_t code) {
    return f == &f16    ? nf_f16_to_f32((uint16_t)code)
           : f == &bf16 ? nf_bf16_to_f32((uint16_t)code)
                        : nf_e4m3_to_f32((uint8_t)code);
}

static void check_rounding(const small_format *f, float x) {
    const uint32_t sign = f == &e4m3 ? 0x80u : 0x8000u;
    uint32_t want = nearest(f, fabs((double)x)) | (signbit(x) ? sign : 0), got = convert(f, x);
    if (got != want)
        fail_msg("%s of %a (%08x): got %x, the nearest is %x", f->name, (double)x, nf_f32_bits(x), got, want);
}

static void check_both_signs(const small_format *f, float x) {
    check_rounding(f, x);
    check_rounding(f, -x);
}

static void test_every_code_widens(void **state) {
    for (small_format **f = *state; *f; f++) {
        const uint32_t sign = *f == &e4m3 ? 0x80u : 0x8000u;
        for (uint32_t c = 0; c < 2 * sign; c++) {
            const uint32_t code = c & (sign - 1);
            const float x = widen(*f, c);
            if (code < (*f)->first_special) {
                assert_true((double)x == ((c & sign) ? -(*f)->values[code] : (*f)->values[code]));
                assert_int_equal(signbit(x) != 0, (c & sign) != 0); /* also of zero */
                assert_int_equal(convert(*f, x), c);                /* and back */
            } else if (code == (*f)->first_special && *f != &e4m3) {
                assert_true(isinf(x) && (signbit(x) != 0) == ((c & sign) != 0));
                assert_int_equal(convert(*f, x), c);
            } else {
                assert_true(isnan(x));
                assert_true(isnan(widen(*f, convert(*f, x))));
            }
        }
    }
}

/* Each value, each point halfway between two, and their neighbours in f32: every place where rounding
 * decides. */
static void test_every_boundary(void **state) {
    for (small_format **f = *state; *f; f++)
        for (uint32_t c = 0; c < (*f)->first_special; c++) {
            const double points[2] = {(*f)->values[c], (*f)->values[c] / 2 + (*f)->values[c + 1] / 2};
            for (int i = 0; i < 2; i++) {
                const float x = (float)points[i];
                assert_true((double)x == points[i]); /* f32 holds all of them */
                check_both_signs(*f, x);
                check_both_signs(*f, nextafterf(x, INFINITY));
                check_both_signs(*f, fabsf(nextafterf(x, -INFINITY)));
            }
        }
}

/* One float of every 4,099 of all 2^32, and random ones. */
static void test_rounding_everywhere(void **state) {
    uint64_t seed = 11;
    for (small_format **f = *state; *f; f++) {
        for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += 4099) {
            const float x = nf_f32_from_bits((uint32_t)bits);
            if (isfinite(x))
                check_rounding(*f, x);
            else if (isnan(x))
                assert_true(isnan(widen(*f, convert(*f, x))));
        }
        for (int i = 0; i < 500000; i++) {
            const float x = nf_f32_from_bits((uint32_t)next_random(&seed));
            if (isfinite(x)) check_rounding(*f, x);
        }
    }
}

static void test_limits(void **state) {
    (void)state;
    assert_int_equal(nf_f32_to_f16(65504.0f), 0x7bff);
    assert_int_equal(nf_f32_to_f16(nextafterf(65520.0f, 0)), 0x7bff);
    assert_int_equal(nf_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(nf_f32_to_f16(-INFINITY), 0xfc00);
    assert_int_equal(nf_f32_to_f16(0x1p-25f), 0); /* a tie with zero */
    assert_int_equal(nf_f32_to_f16(nextafterf(0x1p-25f, 1)), 1);
    assert_int_equal(nf_f32_to_f16(nextafterf(0x1p-14f, 0)), 0x400); /* up from the largest subnormal */
    assert_int_equal(nf_f32_to_bf16(0x1.fffffep127f), 0x7f80);       /* the largest f32 */
    assert_int_equal(nf_f32_to_bf16(INFINITY), 0x7f80);
    assert_int_equal(nf_f32_to_bf16(nf_f32_from_bits(1)), 0);
    assert_int_equal(nf_f32_to_e4m3(448.0f), 0x7e);
    assert_int_equal(nf_f32_to_e4m3(1e30f), 0x7e); /* saturates */
    assert_int_equal(nf_f32_to_e4m3(-INFINITY), 0xfe);
    assert_int_equal(nf_f32_to_e4m3(0x1p-10f), 0);
    assert_int_equal(nf_f32_to_e4m3(-0.0f), 0x80);
    /* NaNs whose payload lies only in the bits that are dropped stay NaN. */
    const float nan = nf_f32_from_bits(0xff800001u);
    assert_true(isnan(nf_f16_to_f32(nf_f32_to_f16(nan))) && isnan(nf_bf16_to_f32(nf_f32_to_bf16(nan))));
    assert_int_equal(nf_f32_to_e4m3(nan), 0x7f);
}

int main(void) {
    static small_format *formats[] = {&f16, &bf16, &e4m3, NULL};
    for (small_format **f = formats; *f; f++) make_values(*f);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_every_code_widens, formats),
        cmocka_unit_test_prestate(test_every_boundary, formats),
        cmocka_unit_test_prestate(test_rounding_everywhere, formats),
        cmocka_unit_test(test_limits),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (small_format **f = formats; *f; f++) free((*f)->values);
    return failed;
}
