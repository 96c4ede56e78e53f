#define NAMESPACE portable
#define KERNELS kKernelsPortable
#define KERNELS_NAME "portable"
#define LANES "core/lanes_portable.inc"
#include "core/kernels.inc"
