// A weight matrix, repacked so that one vector load serves 16 outputs, and rows of quantised activations.
// In: GGUF blocks. Out: tiles that the kernels stream. Knows no model and no thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

namespace draftgraph {

// A model file asks for something that cannot be; Python turns it into a typed error.
struct BadMatrix : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// GGUF tensor types, numbered as in the file.
enum class Type : uint32_t {
    F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q4_K = 12, Q5_K = 13, Q6_K = 14, BF16 = 30,
};

// How a type lies in a file and in a tile.
struct TypeInfo {
    Type type;
    int block;              // inputs per block of the file: 1, 32 or 256
    size_t block_bytes;     // bytes of one block in the file
    size_t head_bytes;      // of 16 outputs in a tile: the scales of a block, half-precision,
    size_t body_bytes;      // and the rest of it, whole cache lines
};

// Throws BadMatrix for a type that is not supported.
const TypeInfo& type_info(Type type);

// Bytes of a row of the file, whole blocks.
size_t row_bytes(Type type, int64_t inputs);

constexpr int kTile = 16;  // outputs side by side

// Memory that is aligned to a cache line and, where the system offers it, lies in huge pages.
class Buffer {
public:
    Buffer() = default;
    explicit Buffer(size_t bytes);
    uint8_t* data() const { return data_.get(); }
    size_t size() const { return size_; }

private:
    struct Free { void operator()(uint8_t* p) const; };
    std::unique_ptr<uint8_t, Free> data_;
    size_t size_ = 0;
};

// outputs × inputs weights in tiles. Tile t holds outputs [16 t, 16 t + 16): first the heads of all blocks along the inputs, up
// to a whole cache line, then their bodies. Outputs beyond the last are zero.
struct Matrix {
    Type type = Type::F32;
    int64_t outputs = 0;
    int64_t inputs = 0;
    Buffer data;

    int64_t tiles() const { return (outputs + kTile - 1) / kTile; }
    size_t heads_bytes() const;  // of a tile, up to a whole cache line
    size_t tile_bytes() const;
    uint8_t* tile(int64_t t) { return data.data() + static_cast<size_t>(t) * tile_bytes(); }
    const uint8_t* tile(int64_t t) const { return data.data() + static_cast<size_t>(t) * tile_bytes(); }
};

// Checks the sizes and allocates; the tiles are filled by pack_tiles.
Matrix make_matrix(Type type, int64_t outputs, int64_t inputs, size_t bytes_given);

// Repacks tile t from its 16 rows of the file; outputs beyond the last have none.
void pack_tile(Matrix& matrix, int64_t t, const uint8_t* rows);

// Writes `count` blocks of the file into output o of tile t, as blocks `first`, `first` + 1, and so on of its row. Adds bits: the
// tile is zero before.
void pack_blocks(Matrix& matrix, int64_t t, int o, int64_t first, int64_t count, const uint8_t* blocks);

// Repacks tiles [begin, end) from the file's rows, outputs × (inputs / block) blocks. Tiles are independent.
void pack_tiles(Matrix& matrix, const uint8_t* rows, int64_t begin, int64_t end);

// Writes one row of the file's blocks as float32, [inputs].
void dequantize_row(Type type, const uint8_t* row, int64_t inputs, float* out);

// Writes one output's weights as float32, [inputs]: the bits that dequantize_row makes of the row that it was packed from.
void dequantize_output(const Matrix& matrix, int64_t output, float* out);

float half_to_float(uint16_t h);
uint16_t float_to_half(float f);

// Activations as the kernels of a block size want them, for `rows` rows of `inputs` values each.
//   block 32:  int8 values, one scale and one sum per 32
//   block 256: int8 values, one scale per 256, -32 times the sums per 16 (what Q6_K's zero takes away), and sums per 32
//   block 1:   float32 as they are
// All buffers belong to the caller.
struct Activations {
    int8_t* q = nullptr;        // [rows][inputs]
    float* scale = nullptr;     // [rows][inputs / block]
    int32_t* sum32 = nullptr;   // block 32: [rows][inputs / 32]
    float* total32 = nullptr;   // block 32: [rows][inputs / 32], scale times sum
    int32_t* zero16 = nullptr;  // block 256: [rows][inputs / 16]
    int32_t* pair = nullptr;    // block 256: [rows][inputs / 64], two int16 sums of 32 each
    const float* x = nullptr;   // [rows][inputs]
    int64_t inputs = 0;
};

}  // namespace draftgraph
