#include "core/cpu_features.hpp"

#include <array>
#include <cstdint>

#if defined(__x86_64__) || defined(__i386__)
#define DRAFTGRAPH_X86 1
#include <cpuid.h>
#endif

namespace draftgraph {
namespace {

#if defined(DRAFTGRAPH_X86)

struct Registers {
    std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// All zero where the CPU does not know the leaf.
Registers cpuid(std::uint32_t leaf, std::uint32_t subleaf) {
    Registers r;
    __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
    return r;
}

// XCR0: which registers the operating system saves. Only valid where cpuid reports OSXSAVE.
std::uint64_t saved_registers() {
    std::uint32_t low = 0, high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (static_cast<std::uint64_t>(high) << 32) | low;
}

bool bit(std::uint32_t word, int index) { return ((word >> index) & 1u) != 0; }

// Bit positions: Intel SDM volume 2A, CPUID, leaves 01H and 07H; AMD APM volume 3, appendix E.
CpuFeatures detect() {
    CpuFeatures f;
    const Registers basic = cpuid(1, 0);
    const bool osxsave = bit(basic.ecx, 27);
    if (!osxsave || !bit(basic.ecx, 28)) return f;

    constexpr std::uint64_t kAvxState = 0x06;     // XMM and the upper halves of YMM
    constexpr std::uint64_t kAvx512State = 0xe6;  // those, the masks, the upper halves of ZMM, and ZMM16 to ZMM31
    const std::uint64_t saved = saved_registers();
    if ((saved & kAvxState) != kAvxState) return f;

    const Registers extended = cpuid(7, 0);
    const Registers more = extended.eax >= 1 ? cpuid(7, 1) : Registers{};
    f.fma = bit(basic.ecx, 12);
    f.f16c = bit(basic.ecx, 29);
    f.avx2 = bit(extended.ebx, 5);
    f.avx_vnni = bit(more.eax, 4);

    if ((saved & kAvx512State) != kAvx512State || !bit(extended.ebx, 16)) return f;
    f.avx512f = true;
    f.avx512bw = bit(extended.ebx, 30);
    f.avx512vl = bit(extended.ebx, 31);
    f.avx512_vnni = bit(extended.ecx, 11);
    return f;
}

#else

CpuFeatures detect() { return {}; }

#endif

}  // namespace

const CpuFeatures& cpu_features() {
    static const CpuFeatures features = detect();
    return features;
}

std::vector<std::string> cpu_feature_names() {
    struct Named {
        const char* name;
        bool CpuFeatures::*present;
    };
    static constexpr std::array<Named, 8> kNamed{{
        {"avx2", &CpuFeatures::avx2},
        {"fma", &CpuFeatures::fma},
        {"f16c", &CpuFeatures::f16c},
        {"avx_vnni", &CpuFeatures::avx_vnni},
        {"avx512f", &CpuFeatures::avx512f},
        {"avx512bw", &CpuFeatures::avx512bw},
        {"avx512vl", &CpuFeatures::avx512vl},
        {"avx512_vnni", &CpuFeatures::avx512_vnni},
    }};
    std::vector<std::string> names;
    for (const Named& named : kNamed) {
        if (cpu_features().*named.present) names.emplace_back(named.name);
    }
    return names;
}

std::string compiler_name() {
#if defined(__clang__)
    return "Clang " __clang_version__;
#elif defined(__GNUC__)
    return "GCC " __VERSION__;
#else
    return "an unknown compiler";
#endif
}

}  // namespace draftgraph
