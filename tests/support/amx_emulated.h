/* The AMX level with its instructions emulated. */
#ifndef NF_TESTS_AMX_EMULATED_H
#define NF_TESTS_AMX_EMULATED_H

#include "cpu/kernels.h"

/* NULL where the processor has no AVX-512. */
const nf_kernels *emulated_amx(void);

#endif
