// The operations of a forward pass, as a table of functions per instruction set.
// In and out: plain arrays, owned by the caller. Every table gives the same bits: integers accumulate exactly, floating-point
// sums run in one order that is written in kernels.inc and nowhere else, and rows do not see each other.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/matrix.hpp"

namespace draftgraph {

// A kernel level that does not exist or cannot run here; Python turns it into a typed error.
struct BadLevel : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Kernels {
    const char* name;

    // out[r][16 (t - begin) + o] for tiles [begin, end) and all rows; `stride` is the length of an output row.
    void (*gemm)(const Matrix& w, const Activations& a, int64_t rows, float* out, int64_t stride, int64_t begin, int64_t end);

    // Fills the buffers of `a` for blocks [begin, end) of one row; `block` is 32 or 256.
    void (*quantize)(const float* x, int block, Activations& a, int64_t row, int64_t begin, int64_t end);

    // out = x / rms(x) · weight, any n.
    void (*rms_norm)(const float* x, const float* weight, float eps, int64_t n, float* out);

    // gate = silu(gate) · up, in place.
    void (*swiglu)(float* gate, const float* up, int64_t n);

    // gate = gelu(gate) · up, in place, GELU in its tanh approximation.
    void (*geglu)(float* gate, const float* up, int64_t n);

    void (*to_half)(const float* x, int64_t n, uint16_t* out);

    // One key head's queries of one row over its own keys: out[g][d] for g of `group` queries.
    // keys, values: the layer's first cell of this head; cell c lies `cell_stride` halves after it. `scores` has room for 8 n.
    void (*attend)(const float* q, int64_t group, const uint16_t* keys, const uint16_t* values, const int32_t* cells, int64_t n,
                   int64_t cell_stride, int64_t head_dim, float scale, float* scores, float* out);

    // The ids of the k largest of n values, largest first, the lower id first on a tie. What is no number counts as infinite.
    void (*likeliest)(const float* values, int64_t n, int64_t k, int32_t* ids);

    // Fills `ids` (room for n) with, in rising order, every id whose score + Gumbel noise may lie within `margin` of the largest;
    // more than those, never fewer. `key` is the noise's of one position and lane (rng.py). Returns how many; 0 if no score is
    // larger than -inf or one is +inf. Passes over NaN.
    int64_t (*contenders)(const double* scores, int64_t n, uint64_t key, double margin, int32_t* ids);

    // The sum of exp(x[i]) for x <= 0, to 1e-9 of its value if one of them is 0.
    double (*exp_sum)(const double* x, int64_t n);

    // Does `rounds` times 1024 multiply-adds as fast as the hardware can, in registers alone, and returns a number without meaning.
    int32_t (*multiply_adds)(int64_t rounds);
};

// The fastest table this CPU can run, or the one that is named: "avx512vnni", "avxvnni", "avx2",
// "portable", in builds for tests "avxvnni-evex". Throws BadLevel if the name is unknown or the CPU cannot run it.
const Kernels& kernels(const std::string& level);

// The names of the tables this CPU can run, fastest first.
std::vector<std::string> kernel_levels();

extern const Kernels kKernelsPortable;
#if defined(__x86_64__) && defined(__GNUC__)
#define DRAFTGRAPH_X86 1
extern const Kernels kKernelsAvx2;
extern const Kernels kKernelsAvx512;
extern const Kernels kKernelsAvxVnni;      // where the compiler knows AVX-VNNI
extern const Kernels kKernelsAvxVnniEvex;  // in builds for tests, see csrc/tests
#endif

}  // namespace draftgraph
