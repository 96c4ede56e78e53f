#define NAMESPACE portable
#define KERNELS kKernelsPortable
#define KERNELS_NAME "portable"
#include "core/kernels.inc"
