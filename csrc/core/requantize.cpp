#include "core/requantize.hpp"

#include <cmath>
#include <cstring>
#include <vector>

namespace draftgraph {
namespace {

constexpr int kBlock = 32;
constexpr size_t kBlockBytes = 18;

int code_of(float x, float inverse) {
    const int code = static_cast<int>(std::lrintf(x * inverse)) + 8;
    return code < 0 ? 0 : code > 15 ? 15 : code;
}

float squared_error(const float* x, float d) {
    const float inverse = d != 0 ? 1 / d : 0;
    float error = 0;
    for (int i = 0; i < kBlock; ++i) {
        const float off = x[i] - d * static_cast<float>(code_of(x[i], inverse) - 8);
        error += off * off;
    }
    return error;
}

}  // namespace

bool shrinks(Type type, int64_t inputs) {
    return inputs % kBlock == 0 && type != Type::Q4_0 && type != Type::Q4_K;
}

size_t q4_0_bytes(int64_t outputs, int64_t inputs) {
    return static_cast<size_t>(outputs) * static_cast<size_t>(inputs / kBlock) * kBlockBytes;
}

void quantize_row_q4_0(const float* x, int64_t inputs, uint8_t* out) {
    for (int64_t b = 0; b < inputs / kBlock; ++b, x += kBlock, out += kBlockBytes) {
        float extreme = 0;
        for (int i = 0; i < kBlock; ++i) extreme = std::fabs(x[i]) > std::fabs(extreme) ? x[i] : extreme;
        float best = 0, least = INFINITY;
        for (int step = -3; step <= 3; ++step) {  // the value furthest from zero becomes code 0, or is cut a little
            const float d = half_to_float(float_to_half(extreme / (-8 + 0.4f * static_cast<float>(step))));
            const float error = squared_error(x, d);
            if (error < least) {
                least = error;
                best = d;
            }
        }
        const uint16_t half = float_to_half(best);
        std::memcpy(out, &half, 2);
        const float inverse = best != 0 ? 1 / best : 0;
        for (int i = 0; i < kBlock / 2; ++i)
            out[2 + i] = static_cast<uint8_t>(code_of(x[i], inverse) | code_of(x[i + kBlock / 2], inverse) << 4);
    }
}

void pack_tile_q4_0(Matrix& matrix, Type type, int64_t t, const uint8_t* rows) {
    const TypeInfo& info = type_info(type);
    const size_t row_bytes = static_cast<size_t>(matrix.inputs / info.block) * info.block_bytes;
    const size_t new_bytes = static_cast<size_t>(matrix.inputs / kBlock) * kBlockBytes;
    std::vector<float> values(static_cast<size_t>(matrix.inputs));
    std::vector<uint8_t> tile(kTile * new_bytes);
    for (size_t o = 0; o < kTile && t * kTile + static_cast<int64_t>(o) < matrix.outputs; ++o) {
        dequantize_row(type, rows + o * row_bytes, matrix.inputs, values.data());
        quantize_row_q4_0(values.data(), matrix.inputs, tile.data() + o * new_bytes);
    }
    pack_tile(matrix, t, tile.data());
}

}  // namespace draftgraph
