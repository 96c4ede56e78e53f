#define NAMESPACE avx512
#define KERNELS kKernelsAvx512
#define KERNELS_NAME "avx512vnni"
#define LANES "core/lanes_avx512.inc"
#include "core/kernels.inc"
