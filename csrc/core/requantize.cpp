#include "core/requantize.hpp"

#include <cmath>
#include <cstring>

namespace draftgraph {
namespace {

constexpr int kBlock = 32;
constexpr size_t kBlockBytes = 18;
constexpr int kLanes = 8;
constexpr float kHalf = 8;  // codes below zero

typedef float floats __attribute__((vector_size(4 * kLanes)));

// 32 values, what an error of each counts, and the codes that a scale gives them, from -8 to 7.
class Block {
public:
    explicit Block(const float* x) {
        std::memcpy(x_, x, sizeof(x_));
        floats squares{};
        for (const floats& v : x_) squares += v * v;
        const float mean = sum(squares) / kBlock;
        for (int i = 0; i < kBlock; ++i) weight_[i / kLanes][i % kLanes] = std::sqrt(at(x_, i) * at(x_, i) + mean);
    }

    // The value furthest from zero.
    float extreme() const {
        float extreme = 0;
        for (int i = 0; i < kBlock; ++i) extreme = std::fabs(at(x_, i)) > std::fabs(extreme) ? at(x_, i) : extreme;
        return extreme;
    }

    // The scale that fits some codes best, and what the error lacks then of its most.
    struct Fit {
        float scale = 0, gain = 0;
    };

    // Rounds all values by a scale. Returns what fits these codes.
    Fit round(float scale) {
        const float inverse = scale != 0 ? 1 / scale : 0;
        floats products{}, squares{};
        for (int i = 0; i < kBlock / kLanes; ++i) {
            floats code = x_[i] * inverse;
            code = code > -kHalf ? code : floats{} - kHalf;  // as is what is no number
            code = code < kHalf - 1 ? code : floats{} + (kHalf - 1);
            codes_[i] = code + kMagic - kMagic;  // to the nearest whole number
            const floats weighed = weight_[i] * codes_[i];
            products += weighed * x_[i];
            squares += weighed * codes_[i];
        }
        const float product = sum(products), square = sum(squares);
        return square > 0 ? Fit{product / square, product * (product / square)} : Fit{};
    }

    // The code of value i, from zero up.
    uint32_t code(int i) const { return static_cast<uint32_t>(at(codes_, i) + kHalf); }

private:
    static constexpr float kMagic = 12582912.0f;
    static float at(const floats* v, int i) { return v[i / kLanes][i % kLanes]; }
    static float sum(floats v) {
        float sum = 0;
        for (int i = 0; i < kLanes; ++i) sum += v[i];
        return sum;
    }

    floats x_[kBlock / kLanes], weight_[kBlock / kLanes], codes_[kBlock / kLanes];
};

}  // namespace

bool shrinks(Type type, int64_t inputs) {
    return inputs % kBlock == 0 && type != Type::Q4_0 && type != Type::Q4_K;
}

void quantize_row_q4_0(const float* x, int64_t inputs, uint8_t* out) {
    for (int64_t b = 0; b < inputs / kBlock; ++b, x += kBlock, out += kBlockBytes) {
        Block block(x);
        const float extreme = block.extreme();
        Block::Fit best;
        for (int step = -4; step <= 4; ++step) {  // the extreme becomes code 0, or is cut a little
            const Block::Fit fit = block.round(extreme / (-kHalf + 0.4f * static_cast<float>(step)));
            if (fit.gain > best.gain) best = fit;
        }
        const uint16_t d = float_to_half(block.round(best.scale).scale);
        block.round(half_to_float(d));
        std::memcpy(out, &d, 2);
        for (int i = 0; i < kBlock / 2; ++i) out[2 + i] = static_cast<uint8_t>(block.code(i) | block.code(i + kBlock / 2) << 4);
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
