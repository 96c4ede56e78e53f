// What this CPU and its operating system offer, asked once at run time.
// In: nothing. Out: the names of vector extensions, for choosing a kernel. Knows no Python and no kernel.
#pragma once

#include <string>
#include <vector>

namespace draftgraph {

// A feature counts only if the operating system also saves its registers.
struct CpuFeatures {
    bool avx2 = false;
    bool fma = false;
    bool f16c = false;
    bool avx_vnni = false;
    bool avx512f = false;
    bool avx512bw = false;
    bool avx512vl = false;
    bool avx512_vnni = false;
};

// Asks the CPU on the first call; later calls return the same object. Thread-safe.
const CpuFeatures& cpu_features();

// The names of the features present, in the order of the struct; empty where none is known.
std::vector<std::string> cpu_feature_names();

// The compiler that built this library, with its version.
std::string compiler_name();

}  // namespace draftgraph
