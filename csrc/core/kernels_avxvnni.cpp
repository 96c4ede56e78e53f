// Compiled with AVX-VNNI, whose dot products of bytes vectors of 8 have on CPUs without AVX-512.
#define NAMESPACE avxvnni
#define KERNELS kKernelsAvxVnni
#define KERNELS_NAME "avxvnni"
#define LANES "core/lanes_avx2.inc"
#include "core/kernels.inc"
