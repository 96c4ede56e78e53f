#define NAMESPACE avx512
#define KERNELS kKernelsAvx512
#define KERNELS_NAME "avx512vnni"
#include "core/kernels.inc"
