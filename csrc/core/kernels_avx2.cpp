#define NAMESPACE avx2
#define KERNELS kKernelsAvx2
#define KERNELS_NAME "avx2"
#define LANES "core/lanes_avx2.inc"
#include "core/kernels.inc"
