// The level "avxvnni" as a CPU with AVX-512 VNNI and VL can run it: the same code, with the same two operations on vectors of 8
// in their other encoding. What the tests show of this level they show of avxvnni's code and arithmetic; what stays untested
// without a CPU that has AVX-VNNI is its encoding and its detection.
#define NAMESPACE avxvnni_evex
#define KERNELS kKernelsAvxVnniEvex
#define KERNELS_NAME "avxvnni-evex"
#define LANES "core/lanes_avx2.inc"
#include "core/kernels.inc"
