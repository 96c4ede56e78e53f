#include "core/kernels.hpp"

#include "core/cpu_features.hpp"

namespace draftgraph {
namespace {

std::vector<const Kernels*> runnable() {
    std::vector<const Kernels*> tables;
#if defined(DRAFTGRAPH_X86)
    const CpuFeatures& cpu = cpu_features();
    if (cpu.avx512f && cpu.avx512bw && cpu.avx512vl && cpu.avx512_vnni && cpu.fma && cpu.f16c) tables.push_back(&kKernelsAvx512);
#if defined(DRAFTGRAPH_TEST_LEVELS)
    if (cpu.avx512vl && cpu.avx512_vnni && cpu.avx2 && cpu.fma && cpu.f16c) tables.push_back(&kKernelsAvxVnniEvex);
#endif
#if defined(DRAFTGRAPH_AVXVNNI)
    if (cpu.avx_vnni && cpu.avx2 && cpu.fma && cpu.f16c) tables.push_back(&kKernelsAvxVnni);
#endif
    if (cpu.avx2 && cpu.fma && cpu.f16c) tables.push_back(&kKernelsAvx2);
#endif
    tables.push_back(&kKernelsPortable);
    return tables;
}

}  // namespace

const Kernels& kernels(const std::string& level) {
    std::string names;
    for (const Kernels* table : runnable()) {
        if (level.empty() || level == table->name) return *table;
        names += names.empty() ? table->name : std::string(", ") + table->name;
    }
    throw BadLevel("kernel level '" + level + "' cannot run here; this CPU can run " + names);
}

std::vector<std::string> kernel_levels() {
    std::vector<std::string> names;
    for (const Kernels* table : runnable()) names.emplace_back(table->name);
    return names;
}

}  // namespace draftgraph
