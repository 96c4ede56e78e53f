// A decoder-only transformer over packed weights and a paged fp16 cache: the whole forward pass in one call.
// In: token ids, positions, and for each row the cells it attends to. Out: logits of the rows that are wanted. Which rows may
// see which is the caller's business; it never sees trees, drafts or text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/kernels.hpp"
#include "core/matrix.hpp"
#include "core/team.hpp"

namespace draftgraph {

struct Shape {
    int64_t num_layers = 0;
    int64_t hidden = 0;
    int64_t intermediate = 0;
    int64_t num_heads = 0;
    int64_t num_kv_heads = 0;
    int64_t head_dim = 0;
    int64_t vocab = 0;        // token ids
    int64_t head = 0;         // rows of the head: logits per row
    int64_t num_cells = 0;    // cells of the cache
    int64_t num_positions = 0;
    int64_t rope_dim = 0;
    bool rope_interleaved = false;
    bool coarse = false;      // repack the matrices as Q4_0 where that makes them smaller
    bool gelu = false;        // the gate's activation: GELU in its tanh approximation, else SiLU
    float norm_eps = 0;
    float embedding_scale = 1;
    float score_scale = 1;
};

// A tensor; `data` stays valid as long as the decoder lives for the embedding, during loading for the others.
struct TensorView {
    Type type = Type::F32;
    int64_t outputs = 0;
    int64_t inputs = 0;
    const uint8_t* data = nullptr;
    size_t bytes = 0;
};

// The small vectors of a layer; all but the first two may be empty.
struct LayerVectors {
    std::vector<float> attn_norm, ffn_norm;            // [hidden]
    std::vector<float> q_bias, k_bias, v_bias;         // one per output
    std::vector<float> q_norm, k_norm;                 // [head_dim], before the rotation
    std::vector<float> post_attn_norm, post_ffn_norm;  // [hidden], before the addition
};

struct LayerViews {
    TensorView q, k, v, o, gate, up, down;
    LayerVectors vectors;
    int64_t window = 0;      // how many of the latest cells a row sees; 0 is all
    bool local_rope = false; // rotate by the second pair of tables
};

// Cosines and sines of the rotary angles, [num_positions][rope_dim / 2] each.
struct RopeTable {
    std::vector<float> cos, sin;
};

class Decoder {
public:
    // Packs the weights with all threads. Without an embedding, the head's outputs are it. Throws BadMatrix if shapes and data disagree. With a path in `packed`, the packed
    // weights are read from there if the file is whole; otherwise they are packed and written there.
    Decoder(const Shape& shape, const std::optional<TensorView>& embedding, const TensorView& head, const std::vector<LayerViews>& layers,
            std::vector<float> final_norm, RopeTable rope, RopeTable local_rope, int threads, const std::string& level,
            const std::string& packed);

    const Shape& shape() const { return shape_; }
    const char* level() const { return k_.name; }

    // logits: [rows - with wanted != 0][head]. Row r attends to cells[offsets[r] .. offsets[r + 1]), its own cell last.
    void forward(int64_t rows, const int32_t* tokens, const int32_t* positions, const int32_t* offsets, const int32_t* cells,
                 const uint8_t* wanted, float* logits);

    // Copies cells source[i] to target[i] in every layer, all read before any is written.
    void move_cells(int64_t n, const int32_t* source, const int32_t* target);

    // keys and values of cells in one layer as float32, each [n][kv_heads][head_dim].
    void read_cells(int64_t layer, int64_t n, const int32_t* cells, float* keys, float* values) const;

    // Replaces outputs [16 tile, 16 tile + 16) of the head by 16 rows of the file's type.
    void set_head_tile(int64_t tile, const uint8_t* rows, size_t bytes);

    size_t weight_bytes() const;  // read by one pass

private:
    struct Layer {
        Matrix q, k, v, o, gate, up, down;
        LayerVectors vectors;
        int64_t window;
        bool local_rope;
    };
    struct Input {  // one activation in the form that a block size asks for
        std::vector<int8_t> q;
        std::vector<float> scale, totals;
        std::vector<int32_t> sums, pairs;
    };
    struct Space {  // normalised rows, and what matrices read
        std::vector<float> normed;
        Input in32, in256;
    };
    struct Call;

    struct Job {  // a matrix and the file's rows that it is packed from
        Matrix* matrix;
        Type type;
        const uint8_t* data;
    };

    void pack(const std::vector<Job>& jobs);
    void embed(int32_t token, float* x) const;
    static void pack_any(Matrix& matrix, Type type, int64_t t, const uint8_t* rows);
    void reserve(int64_t rows, int64_t longest);
    bool own_rows(int64_t rows) const;
    bool alone(int64_t rows) const;
    void sync(const Call& c);
    static Activations activations(Input& in, const float* x, int64_t inputs);
    static Activations input_for(const Call& c, const Matrix& m);
    void quantize(Call& c, const float* x, int64_t inputs, std::initializer_list<const Matrix*> readers);
    template <class Work> void divide(Call& c, int64_t tiles, size_t tile_bytes, const Work& work);
    void multiply(Call& c, const Matrix& m, float* out, int64_t stride, int64_t begin, int64_t end);
    void norm_rows(Call& c, const std::vector<float>& weight);
    void rotate_row(Call& c, const Layer& l, int64_t row, float* q, float* k) const;
    void attention(Call& c, int64_t layer);
    void project(Call& c, const Matrix& m, const std::vector<float>& post_norm);
    void drop_unwanted(Call& c);
    void layer_pass(Call& c, int64_t layer);
    void head_pass(Call& c);
    uint16_t* cell_keys(int64_t layer) { return keys_[static_cast<size_t>(layer)].get(); }
    uint16_t* cell_values(int64_t layer) { return values_[static_cast<size_t>(layer)].get(); }

    Shape shape_;
    const Kernels& k_;
    std::shared_ptr<Team> team_;
    Demand demand_;
    std::optional<TensorView> embedding_;
    std::vector<Layer> layers_;
    Matrix head_;
    Type head_type_;  // in the file
    std::vector<float> final_norm_;
    RopeTable rope_, local_rope_;
    std::vector<std::unique_ptr<uint16_t[]>> keys_, values_;  // per layer [cells][kv_heads][head_dim]
    std::vector<float> x_, delta_, qkv_, attended_, ffn_, scores_, edge_;
    std::vector<int64_t> wanted_;  // rows with logits
    std::vector<Space> spaces_;  // one per thread
};

}  // namespace draftgraph
