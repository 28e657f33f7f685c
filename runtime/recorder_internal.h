/* How a step hands its products to the recorder. */
#ifndef NF_RUNTIME_RECORDER_INTERNAL_H
#define NF_RUNTIME_RECORDER_INTERNAL_H

#include "runtime/recorder.h"
#include "runtime/session_internal.h"

/* All workers, before the products are computed: adds the squares of their input rows. A matrix appears in at
 * most one of the products. */
void nf_recorder_products(nf_worker *worker, nf_recorder *recorder, const nf_product *products, size_t n);

#endif
