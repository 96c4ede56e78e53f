#include "core/matrix.hpp"

#include <cstdlib>
#include <cstring>
#include <new>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace draftgraph {
namespace {

constexpr TypeInfo kTypes[] = {
    {Type::F32, 1, 4, 0, 4 * kTile},
    {Type::F16, 1, 2, 0, 2 * kTile},
    {Type::BF16, 1, 2, 0, 2 * kTile},
    {Type::Q4_0, 32, 18, 32, 4 * 64},
    {Type::Q4_1, 32, 20, 64, 4 * 64},
    {Type::Q5_0, 32, 22, 32, 5 * 64},
    {Type::Q5_1, 32, 24, 64, 5 * 64},
    {Type::Q8_0, 32, 34, 32, 8 * 64},
    {Type::Q4_K, 256, 144, 64, 8 * 16 + 4 * 32 + 8 * 4 * 64},
    {Type::Q5_K, 256, 176, 64, 8 * 16 + 4 * 32 + 8 * 5 * 64},
    {Type::Q6_K, 256, 210, 32, 16 * 16 + 8 * 6 * 64},
};

constexpr size_t kHugePage = size_t{1} << 21;

uint16_t load16(const uint8_t* p) {
    uint16_t v;
    std::memcpy(&v, p, 2);
    return v;
}

void store16(uint8_t* p, uint16_t v) { std::memcpy(p, &v, 2); }

// The 6-bit scale and minimum of sub-block j in the 12 bytes of a Q4_K or Q5_K block.
void scale_min(const uint8_t* s, int j, uint8_t* scale, uint8_t* min) {
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = static_cast<uint8_t>((s[j + 4] & 15) | ((s[j - 4] >> 6) << 4));
        *min = static_cast<uint8_t>((s[j + 4] >> 4) | ((s[j] >> 6) << 4));
    }
}

// One block of the file, unpacked: unsigned values and the numbers that turn them into weights.
struct Unpacked {
    uint8_t q[256];
    uint16_t d = 0;      // half
    uint16_t m = 0;      // half: added minimum (Q4_1, Q5_1) or subtracted one (Q4_K, Q5_K)
    int8_t scale[16];
    uint8_t min[8];
};

void unpack(Type type, const uint8_t* b, Unpacked& u) {
    switch (type) {
        case Type::Q4_0:
        case Type::Q4_1: {
            u.d = load16(b);
            const bool has_min = type == Type::Q4_1;
            if (has_min) u.m = load16(b + 2);
            const uint8_t* q = b + (has_min ? 4 : 2);
            for (int i = 0; i < 16; ++i) {
                u.q[i] = q[i] & 15;
                u.q[i + 16] = q[i] >> 4;
            }
            return;
        }
        case Type::Q5_0:
        case Type::Q5_1: {
            u.d = load16(b);
            const bool has_min = type == Type::Q5_1;
            if (has_min) u.m = load16(b + 2);
            const uint8_t* p = b + (has_min ? 4 : 2);
            uint32_t high;
            std::memcpy(&high, p, 4);
            for (int i = 0; i < 16; ++i) {
                u.q[i] = static_cast<uint8_t>((p[4 + i] & 15) | (((high >> i) & 1) << 4));
                u.q[i + 16] = static_cast<uint8_t>((p[4 + i] >> 4) | (((high >> (i + 16)) & 1) << 4));
            }
            return;
        }
        case Type::Q8_0:
            u.d = load16(b);
            for (int i = 0; i < 32; ++i) u.q[i] = b[2 + i] ^ 0x80;
            return;
        case Type::Q4_K:
        case Type::Q5_K: {
            u.d = load16(b);
            u.m = load16(b + 2);
            for (int j = 0; j < 8; ++j) {
                uint8_t s;
                scale_min(b + 4, j, &s, &u.min[j]);
                u.scale[j] = static_cast<int8_t>(s);
            }
            const bool five = type == Type::Q5_K;
            const uint8_t* high = b + 16;
            const uint8_t* low = b + (five ? 48 : 16);
            for (int j = 0; j < 8; ++j)
                for (int i = 0; i < 32; ++i) {
                    const uint8_t nibble = static_cast<uint8_t>((low[(j / 2) * 32 + i] >> (4 * (j % 2))) & 15);
                    u.q[j * 32 + i] = static_cast<uint8_t>(nibble | (five ? ((high[i] >> j) & 1) << 4 : 0));
                }
            return;
        }
        case Type::Q6_K:
            u.d = load16(b + 208);
            std::memcpy(u.scale, b + 192, 16);
            for (int i = 0; i < 256; ++i) {
                const int half = i / 128, r = i % 128, quarter = r / 32, l = r % 32;
                const uint8_t low = b[half * 64 + (quarter % 2) * 32 + l];
                const uint8_t high = b[128 + half * 32 + l];
                u.q[i] = static_cast<uint8_t>(((low >> (4 * (quarter / 2))) & 15) | (((high >> (2 * quarter)) & 3) << 4));
            }
            return;
        default:
            throw BadMatrix("not a quantised type");
    }
}

// Writes 32 inputs of output o: vector v holds inputs [4 v, 4 v + 4) of 16 outputs; two vectors share a nibble plane.
void put_low(uint8_t* plane, int o, const uint8_t* q) {
    for (int i = 0; i < 32; ++i) {
        const int v = i / 4;
        plane[(v / 2) * 64 + o * 4 + i % 4] |= static_cast<uint8_t>((q[i] & 15) << (4 * (v % 2)));
    }
}

// The fifth bits: bit v of a byte belongs to vector v.
void put_fifth(uint8_t* plane, int o, const uint8_t* q) {
    for (int i = 0; i < 32; ++i) plane[o * 4 + i % 4] |= static_cast<uint8_t>((q[i] >> 4) << (i / 4));
}

// The fifth and sixth bits: bits 2 v and 2 v + 1 of a byte of plane h belong to vector 4 h + v.
void put_high2(uint8_t* plane, int o, const uint8_t* q) {
    for (int i = 0; i < 32; ++i) {
        const int v = i / 4;
        plane[(v / 4) * 64 + o * 4 + i % 4] |= static_cast<uint8_t>((q[i] >> 4) << (2 * (v % 4)));
    }
}

void pack_block(Type type, const uint8_t* block, int o, uint8_t* head, uint8_t* out) {
    if (type == Type::F32) { std::memcpy(out + 4 * o, block, 4); return; }
    if (type == Type::F16 || type == Type::BF16) { std::memcpy(out + 2 * o, block, 2); return; }
    Unpacked u;
    unpack(type, block, u);
    store16(head + 2 * o, u.d);
    switch (type) {
        case Type::Q4_0: put_low(out, o, u.q); return;
        case Type::Q5_0: put_low(out, o, u.q); put_fifth(out + 256, o, u.q); return;
        case Type::Q4_1: store16(head + 32 + 2 * o, u.m); put_low(out, o, u.q); return;
        case Type::Q5_1:
            store16(head + 32 + 2 * o, u.m);
            put_low(out, o, u.q);
            put_fifth(out + 256, o, u.q);
            return;
        case Type::Q8_0:
            for (int i = 0; i < 32; ++i) out[(i / 4) * 64 + o * 4 + i % 4] = u.q[i];
            return;
        case Type::Q4_K:
        case Type::Q5_K: {
            store16(head + 32 + 2 * o, u.m);
            uint8_t* scales = out;
            uint8_t* mins = scales + 128;
            uint8_t* q = mins + 128;
            const int step = type == Type::Q5_K ? 5 * 64 : 4 * 64;
            for (int j = 0; j < 8; ++j) {
                scales[j * 16 + o] = static_cast<uint8_t>(u.scale[j]);
                mins[(j / 2) * 32 + o * 2 + j % 2] = u.min[j];
                put_low(q + j * step, o, u.q + 32 * j);
                if (type == Type::Q5_K) put_fifth(q + j * step + 256, o, u.q + 32 * j);
            }
            return;
        }
        case Type::Q6_K:
            for (int j = 0; j < 16; ++j) out[j * 16 + o] = static_cast<uint8_t>(u.scale[j]);
            for (int j = 0; j < 8; ++j) {
                put_low(out + 256 + j * 384, o, u.q + 32 * j);
                put_high2(out + 256 + j * 384 + 256, o, u.q + 32 * j);
            }
            return;
        default: return;
    }
}

// 32 values of output o: what put_low, put_fifth and put_high2 wrote.
void get_low(const uint8_t* plane, int o, uint8_t* q) {
    for (int i = 0; i < 32; ++i) {
        const int v = i / 4;
        q[i] = static_cast<uint8_t>((plane[(v / 2) * 64 + o * 4 + i % 4] >> (4 * (v % 2))) & 15);
    }
}

void get_fifth(const uint8_t* plane, int o, uint8_t* q) {
    for (int i = 0; i < 32; ++i) q[i] |= static_cast<uint8_t>(((plane[o * 4 + i % 4] >> (i / 4)) & 1) << 4);
}

void get_high2(const uint8_t* plane, int o, uint8_t* q) {
    for (int i = 0; i < 32; ++i) {
        const int v = i / 4;
        q[i] |= static_cast<uint8_t>(((plane[(v / 4) * 64 + o * 4 + i % 4] >> (2 * (v % 4))) & 3) << 4);
    }
}

// What pack_block was given, from where it put it.
void unpack_output(Type type, int o, const uint8_t* head, const uint8_t* in, Unpacked& u) {
    u.d = load16(head + 2 * o);
    if (type_info(type).head_bytes == 64) u.m = load16(head + 32 + 2 * o);
    switch (type) {
        case Type::Q8_0:
            for (int i = 0; i < 32; ++i) u.q[i] = in[(i / 4) * 64 + o * 4 + i % 4];
            return;
        case Type::Q4_K:
        case Type::Q5_K: {
            const int step = type == Type::Q5_K ? 5 * 64 : 4 * 64;
            for (int j = 0; j < 8; ++j) {
                u.scale[j] = static_cast<int8_t>(in[j * 16 + o]);
                u.min[j] = in[128 + (j / 2) * 32 + o * 2 + j % 2];
                get_low(in + 256 + j * step, o, u.q + 32 * j);
                if (type == Type::Q5_K) get_fifth(in + 256 + j * step + 256, o, u.q + 32 * j);
            }
            return;
        }
        case Type::Q6_K:
            for (int j = 0; j < 16; ++j) u.scale[j] = static_cast<int8_t>(in[j * 16 + o]);
            for (int j = 0; j < 8; ++j) {
                get_low(in + 256 + j * 384, o, u.q + 32 * j);
                get_high2(in + 256 + j * 384 + 256, o, u.q + 32 * j);
            }
            return;
        default:
            get_low(in, o, u.q);
            if (type == Type::Q5_0 || type == Type::Q5_1) get_fifth(in + 256, o, u.q);
    }
}

float dequantize_plain(Type type, const uint8_t* value) {
    if (type == Type::F16) return half_to_float(load16(value));
    uint32_t bits = 0;
    if (type == Type::F32) std::memcpy(&bits, value, 4);
    else bits = static_cast<uint32_t>(load16(value)) << 16;
    float weight;
    std::memcpy(&weight, &bits, 4);
    return weight;
}

void dequantize_block(Type type, const Unpacked& u, float* out) {
    const float d = half_to_float(u.d), m = half_to_float(u.m);
    for (int i = 0; i < type_info(type).block; ++i) {
        const float q = u.q[i];
        float w = 0;
        switch (type) {
            case Type::Q4_0: w = d * (q - 8); break;
            case Type::Q5_0: w = d * (q - 16); break;
            case Type::Q8_0: w = d * (q - 128); break;
            case Type::Q4_1:
            case Type::Q5_1: w = d * q + m; break;
            case Type::Q4_K:
            case Type::Q5_K: w = d * u.scale[i / 32] * q - m * u.min[i / 32]; break;
            default: w = d * u.scale[i / 16] * (q - 32); break;
        }
        out[i] = w;
    }
}

}  // namespace

const TypeInfo& type_info(Type type) {
    for (const TypeInfo& info : kTypes)
        if (info.type == type) return info;
    throw BadMatrix("tensor type " + std::to_string(static_cast<uint32_t>(type)) + " is not supported");
}

size_t row_bytes(Type type, int64_t inputs) {
    const TypeInfo& info = type_info(type);
    return static_cast<size_t>(inputs / info.block) * info.block_bytes;
}

Buffer::Buffer(size_t bytes) : size_(bytes) {
    const size_t align = bytes >= kHugePage ? kHugePage : 64;
    const size_t rounded = (bytes + align - 1) / align * align;
    void* p = std::aligned_alloc(align, rounded ? rounded : align);
    if (p == nullptr) throw std::bad_alloc();
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (align == kHugePage) madvise(p, rounded, MADV_HUGEPAGE);
#endif
    data_.reset(static_cast<uint8_t*>(p));
}

void Buffer::Free::operator()(uint8_t* p) const { std::free(p); }

size_t Matrix::heads_bytes() const {
    const TypeInfo& info = type_info(type);
    return (static_cast<size_t>(inputs / info.block) * info.head_bytes + 63) / 64 * 64;
}

size_t Matrix::tile_bytes() const {
    const TypeInfo& info = type_info(type);
    return heads_bytes() + (static_cast<size_t>(inputs / info.block) * info.body_bytes + 63) / 64 * 64;
}

Matrix make_matrix(Type type, int64_t outputs, int64_t inputs, size_t bytes_given) {
    const TypeInfo& info = type_info(type);
    constexpr int64_t kMost = int64_t{1} << 31;
    if (outputs <= 0 || inputs <= 0 || outputs > kMost || inputs > kMost || inputs % info.block != 0)
        throw BadMatrix("a matrix of " + std::to_string(outputs) + " by " + std::to_string(inputs) + " does not fit its type");
    const size_t blocks = static_cast<size_t>(inputs / info.block);
    if (blocks > SIZE_MAX / 8192 / (static_cast<size_t>(outputs) + kTile) ||
        blocks * info.block_bytes * static_cast<size_t>(outputs) != bytes_given)
        throw BadMatrix("a matrix of " + std::to_string(outputs) + " by " + std::to_string(inputs) + " with " +
                        std::to_string(bytes_given) + " bytes of data");
    Matrix matrix;
    matrix.type = type;
    matrix.outputs = outputs;
    matrix.inputs = inputs;
    matrix.data = Buffer(static_cast<size_t>(matrix.tiles()) * matrix.tile_bytes());
    return matrix;
}

void pack_tile(Matrix& matrix, int64_t t, const uint8_t* rows) {
    std::memset(matrix.tile(t), 0, matrix.tile_bytes());
    const int64_t blocks = matrix.inputs / type_info(matrix.type).block;
    const size_t bytes = row_bytes(matrix.type, matrix.inputs);
    for (int o = 0; o < kTile && t * kTile + o < matrix.outputs; ++o, rows += bytes) pack_blocks(matrix, t, o, 0, blocks, rows);
}

void pack_blocks(Matrix& matrix, int64_t t, int o, int64_t first, int64_t count, const uint8_t* blocks) {
    const TypeInfo& info = type_info(matrix.type);
    uint8_t* tile = matrix.tile(t);
    for (int64_t b = first; b < first + count; ++b, blocks += info.block_bytes)
        pack_block(matrix.type, blocks, o, tile + static_cast<size_t>(b) * info.head_bytes,
                   tile + matrix.heads_bytes() + static_cast<size_t>(b) * info.body_bytes);
}

void pack_tiles(Matrix& matrix, const uint8_t* rows, int64_t begin, int64_t end) {
    const size_t tile_rows = kTile * row_bytes(matrix.type, matrix.inputs);
    for (int64_t t = begin; t < end; ++t) pack_tile(matrix, t, rows + static_cast<size_t>(t) * tile_rows);
}

void dequantize_row(Type type, const uint8_t* row, int64_t inputs, float* out) {
    const TypeInfo& info = type_info(type);
    for (int64_t b = 0; b < inputs / info.block; ++b, row += info.block_bytes) {
        if (info.block == 1) {
            out[b] = dequantize_plain(type, row);
            continue;
        }
        Unpacked u;
        unpack(type, row, u);
        dequantize_block(type, u, out + b * info.block);
    }
}

void dequantize_output(const Matrix& matrix, int64_t output, float* out) {
    const TypeInfo& info = type_info(matrix.type);
    const int o = static_cast<int>(output % kTile);
    const uint8_t* head = matrix.tile(output / kTile);
    const uint8_t* body = head + matrix.heads_bytes();
    for (int64_t b = 0; b < matrix.inputs / info.block; ++b, head += info.head_bytes, body += info.body_bytes) {
        if (info.block == 1) {
            out[b] = dequantize_plain(matrix.type, body + static_cast<size_t>(o) * info.block_bytes);
            continue;
        }
        Unpacked u;
        unpack_output(matrix.type, o, head, body, u);
        dequantize_block(matrix.type, u, out + b * info.block);
    }
}

float half_to_float(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
    uint32_t exponent = (h >> 10) & 31, mantissa = h & 1023;
    uint32_t bits;
    if (exponent == 31) {
        bits = sign | 0x7f800000 | (mantissa << 13);
    } else if (exponent != 0) {
        bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
    } else if (mantissa == 0) {
        bits = sign;
    } else {
        exponent = 113;
        while (!(mantissa & 1024)) {
            mantissa <<= 1;
            --exponent;
        }
        bits = sign | (exponent << 23) | ((mantissa & 1023) << 13);
    }
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}

uint16_t float_to_half(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | ((bits >> 13) & 0x3ff));
    if (bits >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // rounds to 65536 or more
    if (bits < 0x38800000) {  // subnormal: value = mantissa · 2^-24
        float magnitude;
        std::memcpy(&magnitude, &bits, 4);
        const float shifted = magnitude + 0.5f;  // 0.5 has an ulp of 2^-24, so the sum rounds to the right place
        uint32_t rounded;
        std::memcpy(&rounded, &shifted, 4);
        return static_cast<uint16_t>(sign | (rounded - 0x3f000000));
    }
    bits += 0xfff + ((bits >> 13) & 1);  // round to nearest even
    return static_cast<uint16_t>(sign | ((bits - 0x38000000) >> 13));
}

}  // namespace draftgraph
