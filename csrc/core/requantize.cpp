#include "core/requantize.hpp"

#include <cmath>
#include <cstring>

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
    constexpr int kMost = 256;  // values at a time: a block of the file, if that is larger than ours
    const int chunk = type_info(type).block > kBlock ? type_info(type).block : kBlock;
    const size_t bytes = row_bytes(type, chunk);
    float values[kMost];
    uint8_t blocks[kMost / kBlock * kBlockBytes];
    std::memset(matrix.tile(t), 0, matrix.tile_bytes());
    for (int o = 0; o < kTile && t * kTile + o < matrix.outputs; ++o)
        for (int64_t i = 0; i < matrix.inputs; i += chunk, rows += bytes) {
            dequantize_row(type, rows, chunk, values);
            quantize_row_q4_0(values, chunk, blocks);
            pack_blocks(matrix, t, o, i / kBlock, chunk / kBlock, blocks);
        }
}

}  // namespace draftgraph
