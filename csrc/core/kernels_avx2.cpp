#define NAMESPACE avx2
#define KERNELS kKernelsAvx2
#define KERNELS_NAME "avx2"
#include "core/kernels.inc"
