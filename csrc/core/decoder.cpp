#include "core/decoder.hpp"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "core/packed.hpp"
#include "core/requantize.hpp"

namespace draftgraph {
namespace {

constexpr int64_t kAlone = 8;  // rows up to which every thread prepares all of them for itself
constexpr size_t kChunk = size_t{1} << 17;  // bytes of weights that a thread takes at a time
constexpr int64_t kDivisions = 4;  // of a layer: queries, keys and values; the output; gate and up; down
constexpr int64_t kOwnRows = 4;  // times the square of the threads: rows from which each thread computes its own alone

int64_t padded(int64_t outputs) { return (outputs + kTile - 1) / kTile * kTile; }

void check(bool holds, const std::string& what) {
    if (!holds) throw BadMatrix(what);
}

}  // namespace

// What one thread works on: rows, and its part in them. Either the threads share all rows and divide the outputs, or each has
// rows of its own, for which it reads all weights: more of the memory's traffic, and hardly any waiting for each other.
struct Decoder::Call {
    int64_t rows;
    const int32_t* tokens;     // of these rows, as all that follows
    const int32_t* positions;
    const int32_t* offsets;
    const int32_t* cells;
    int64_t first;             // the number of the first of them in the whole pass
    const int64_t* wanted;     // which of them have logits, by their numbers in the whole pass, in rising order
    int64_t num_wanted;
    float* logits;
    float *x, *delta, *qkv, *attended, *ffn;
    Space& space;
    bool alone;       // no other thread prepares rows in this space
    int index, size;  // this thread among those that share the rows
    float *scores, *edge;  // the thread's own
    int64_t division = 0;  // the number of the next one
    const float* input = nullptr;  // the rows that the next matrices read
};

Decoder::Decoder(const Shape& shape, const std::optional<TensorView>& embedding, const TensorView& head, const std::vector<LayerViews>& layers,
                 std::vector<float> final_norm, RopeTable rope, RopeTable local_rope, int threads, const std::string& level,
                 const std::string& packed)
    : shape_(shape), k_(kernels(level)), team_(Team::of(threads)), demand_(team_->size(), kDivisions * static_cast<int64_t>(layers.size()) + 1),
      embedding_(embedding), final_norm_(std::move(final_norm)), rope_(std::move(rope)), local_rope_(std::move(local_rope)) {
    const Shape& s = shape_;
    const int64_t q_size = s.num_heads * s.head_dim, kv_size = s.num_kv_heads * s.head_dim;
    check(s.head_dim > 0 && s.head_dim % 16 == 0, "a head size that is not a multiple of 16");
    check(s.num_kv_heads > 0 && s.num_heads % s.num_kv_heads == 0, "query heads that do not divide among the key heads");
    check(s.num_layers == static_cast<int64_t>(layers.size()), "a number of layers that is not the shape's");
    if (embedding) {
        check(embedding->inputs == s.hidden && embedding->outputs >= s.vocab, "an embedding of another shape");
        check(s.hidden % type_info(embedding->type).block == 0 &&
                  embedding->bytes == static_cast<size_t>(embedding->outputs) * row_bytes(embedding->type, s.hidden), "an embedding with another number of bytes");
    } else {
        check(s.head >= s.vocab && !s.coarse, "a head that is no embedding");
    }
    check(s.rope_dim >= 0 && s.rope_dim % 2 == 0 && s.rope_dim <= s.head_dim, "a rotation that is wider than a head");
    check(static_cast<int64_t>(final_norm_.size()) == s.hidden, "a final norm of another size");
    const auto is_table = [&](const RopeTable& t) {
        return static_cast<int64_t>(t.cos.size()) == s.num_positions * s.rope_dim / 2 && t.cos.size() == t.sin.size();
    };
    check(is_table(rope_), "rotary tables of another size");

    std::vector<Job> jobs;
    const auto add = [&](Matrix& m, const TensorView& v, int64_t outputs, int64_t inputs) {
        check(v.outputs == outputs && v.inputs == inputs, "a weight of another shape");
        m = make_matrix(v.type, v.outputs, v.inputs, v.bytes);
        if (s.coarse && shrinks(v.type, v.inputs)) m = make_matrix(Type::Q4_0, outputs, inputs, static_cast<size_t>(outputs) * row_bytes(Type::Q4_0, inputs));
        jobs.push_back({&m, v.type, v.data});
    };
    layers_.resize(layers.size());
    for (size_t i = 0; i < layers.size(); ++i) {
        const LayerViews& v = layers[i];
        Layer& l = layers_[i];
        add(l.q, v.q, q_size, s.hidden);
        add(l.k, v.k, kv_size, s.hidden);
        add(l.v, v.v, kv_size, s.hidden);
        add(l.o, v.o, s.hidden, q_size);
        add(l.gate, v.gate, s.intermediate, s.hidden);
        add(l.up, v.up, s.intermediate, s.hidden);
        add(l.down, v.down, s.hidden, s.intermediate);
        l.vectors = v.vectors;
        l.window = v.window;
        l.local_rope = v.local_rope;
        check(!l.local_rope || is_table(local_rope_), "rotary tables of another size");
        const auto sized = [](const std::vector<float>& x, int64_t n, bool required) {
            check((x.empty() && !required) || static_cast<int64_t>(x.size()) == n, "a norm or a bias of another size");
        };
        sized(l.vectors.attn_norm, s.hidden, true);
        sized(l.vectors.ffn_norm, s.hidden, true);
        sized(l.vectors.q_bias, q_size, false);
        sized(l.vectors.k_bias, kv_size, false);
        sized(l.vectors.v_bias, kv_size, false);
        sized(l.vectors.q_norm, s.head_dim, false);
        sized(l.vectors.k_norm, s.head_dim, false);
        sized(l.vectors.post_attn_norm, s.hidden, false);
        sized(l.vectors.post_ffn_norm, s.hidden, false);
    }
    check(s.head > 0, "a head without rows");
    head_type_ = head.type;
    add(head_, head, s.head, s.hidden);
    std::vector<Matrix*> matrices;
    for (const Job& job : jobs) matrices.push_back(job.matrix);
    if (packed.empty() || !read_packed(packed, matrices, *team_)) {
        pack(jobs);
        if (!packed.empty()) write_packed(packed, matrices);
    }
    const size_t cell = static_cast<size_t>(s.num_cells * kv_size);
    for (int64_t i = 0; i < s.num_layers; ++i) {
        keys_.emplace_back(new uint16_t[cell]);
        values_.emplace_back(new uint16_t[cell]);
    }
}

void Decoder::pack(const std::vector<Job>& jobs) {
    for (const Job& job : jobs)
        team_->run([&](int index) {
            const size_t tile_rows = kTile * row_bytes(job.type, job.matrix->inputs);
            const Share share(job.matrix->tiles(), index, team_->size());
            for (int64_t t = share.begin; t < share.end; ++t) pack_any(*job.matrix, job.type, t, job.data + static_cast<size_t>(t) * tile_rows);
        });
}

void Decoder::pack_any(Matrix& matrix, Type type, int64_t t, const uint8_t* rows) {
    if (matrix.type == type) pack_tile(matrix, t, rows);
    else pack_tile_q4_0(matrix, type, t, rows);
}

void Decoder::set_head_tile(int64_t tile, const uint8_t* rows, size_t bytes) {
    check(embedding_.has_value(), "a head that is the embedding");
    check(tile >= 0 && tile < head_.tiles() && bytes == kTile * row_bytes(head_type_, head_.inputs), "not a tile of the head");
    pack_any(head_, head_type_, tile, rows);
}

// The embedding of a token, [hidden].
void Decoder::embed(int32_t token, float* x) const {
    if (embedding_) dequantize_row(embedding_->type, embedding_->data + static_cast<size_t>(token) * row_bytes(embedding_->type, shape_.hidden), shape_.hidden, x);
    else dequantize_output(head_, token, x);
    for (int64_t i = 0; shape_.embedding_scale != 1 && i < shape_.hidden; ++i) x[i] *= shape_.embedding_scale;
}

size_t Decoder::weight_bytes() const {
    size_t bytes = head_.data.size();
    for (const Layer& l : layers_)
        for (const Matrix* m : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down}) bytes += m->data.size();
    return bytes;
}

void Decoder::reserve(int64_t rows, int64_t longest) {
    const Shape& s = shape_;
    const auto grow = [](auto& v, int64_t n) { if (static_cast<int64_t>(v.size()) < n) v.resize(static_cast<size_t>(n)); };
    const int64_t heads = s.num_heads * s.head_dim;
    const int64_t qkv = padded(heads) + 2 * padded(s.num_kv_heads * s.head_dim);
    int64_t widest = s.hidden > s.intermediate ? s.hidden : s.intermediate;
    widest = widest > heads ? widest : heads;
    grow(x_, rows * padded(s.hidden));
    grow(delta_, rows * padded(s.hidden));
    grow(qkv_, rows * qkv);
    grow(attended_, rows * heads);
    grow(ffn_, rows * 2 * padded(s.intermediate));
    grow(edge_, rows * kTile);
    grow(scores_, static_cast<int64_t>(team_->size()) * 8 * longest);
    spaces_.resize(static_cast<size_t>(team_->size()));
    const int64_t each = own_rows(rows) ? (rows + team_->size() - 1) / team_->size() : rows;
    for (size_t i = 0; i < (alone(rows) ? spaces_.size() : 1); ++i) {
        Space& space = spaces_[i];
        grow(space.normed, each * padded(s.hidden));
        for (Input* in : {&space.in32, &space.in256}) {
            grow(in->q, each * widest);
            grow(in->scale, each * (widest / 32 + 1));
            grow(in->totals, each * (widest / 32 + 1));
            grow(in->sums, each * (widest / 16 + 1));
            grow(in->pairs, each * (widest / 64 + 1));
        }
    }
}

// Whether each thread computes rows of its own. The weights are then read once per thread, at a speed that falls with the rows of
// each; so with more threads it takes more rows until the memory keeps up.
bool Decoder::own_rows(int64_t rows) const { return team_->size() > 1 && rows >= kOwnRows * team_->size() * team_->size(); }

// Whether each thread prepares what it reads in a space of its own; else the first space is everybody's.
bool Decoder::alone(int64_t rows) const { return rows <= kAlone || own_rows(rows); }

// A view of buffers that threads may share: each thread makes its own, so there is nothing to write but the buffers' contents.
Activations Decoder::activations(Input& in, const float* x, int64_t inputs) {
    return {in.q.data(), in.scale.data(), in.sums.data(), in.totals.data(), in.sums.data(), in.pairs.data(), x, inputs};
}

// What `m` reads: the rows that this thread's last `quantize` was given.
Activations Decoder::input_for(const Call& c, const Matrix& m) {
    return activations(type_info(m.type).block == 256 ? c.space.in256 : c.space.in32, c.input, m.inputs);
}

// Waits for the threads that share the rows.
void Decoder::sync(const Call& c) {
    if (c.size > 1) team_->sync();
}

// Prepares x [rows][inputs] for the matrices that will read it. Ends with a barrier, unless the thread has a space of its own.
void Decoder::quantize(Call& c, const float* x, int64_t inputs, std::initializer_list<const Matrix*> readers) {
    for (const int block : {32, 256}) {
        bool asked = false;
        for (const Matrix* m : readers) asked = asked || type_info(m->type).block == block;
        if (!asked) continue;
        Activations a = activations(block == 32 ? c.space.in32 : c.space.in256, x, inputs);
        const int64_t blocks = inputs / block;
        const Share share = c.alone ? Share(c.rows * blocks, 0, 1) : Share(c.rows * blocks, c.index, c.size);
        for (int64_t i = share.begin; i < share.end;) {
            const int64_t row = i / blocks, first = i % blocks;
            const int64_t last = row == share.end / blocks ? share.end % blocks : blocks;
            k_.quantize(x + row * inputs, block, a, row, first, last);
            i = row * blocks + last;
        }
    }
    c.input = x;
    if (!c.alone) sync(c);
}

// Calls work(begin, end) for the tiles that fall to this thread. Ends without a barrier; there must be one before the next.
template <class Work> void Decoder::divide(Call& c, int64_t tiles, size_t tile_bytes, const Work& work) {
    if (c.size == 1) return work(0, tiles);
    const int64_t chunk = tile_bytes < kChunk ? static_cast<int64_t>(kChunk / tile_bytes) : 1;
    demand_.run(c.division++, tiles, chunk, c.index, work);
}

// out [rows][stride] = x · mᵀ for some tiles.
void Decoder::multiply(Call& c, const Matrix& m, float* out, int64_t stride, int64_t begin, int64_t end) {
    k_.gemm(m, input_for(c, m), c.rows, out + begin * kTile, stride, begin, end);
}

// Normalises the residual stream's rows for what reads them next. Ends as `quantize` does.
void Decoder::norm_rows(Call& c, const std::vector<float>& weight) {
    const Share share = c.alone ? Share(c.rows, 0, 1) : Share(c.rows, c.index, c.size);
    for (int64_t r = share.begin; r < share.end; ++r)
        k_.rms_norm(c.x + r * padded(shape_.hidden), weight.data(), shape_.norm_eps, shape_.hidden, c.space.normed.data() + r * shape_.hidden);
    if (!c.alone) sync(c);
}

// Biases, norms and rotation of one row's queries and keys, in place.
void Decoder::rotate_row(Call& c, const Layer& l, int64_t row, float* q, float* k) const {
    const Shape& s = shape_;
    const int64_t d = s.head_dim, half = s.rope_dim / 2;
    const RopeTable& table = l.local_rope ? local_rope_ : rope_;
    const float* cos = table.cos.data() + c.positions[row] * half;
    const float* sin = table.sin.data() + c.positions[row] * half;
    for (size_t i = 0; i < l.vectors.q_bias.size(); ++i) q[i] += l.vectors.q_bias[i];
    for (size_t i = 0; i < l.vectors.k_bias.size(); ++i) k[i] += l.vectors.k_bias[i];
    for (int64_t h = 0; h < s.num_heads + s.num_kv_heads; ++h) {
        const bool is_query = h < s.num_heads;
        float* head = is_query ? q + h * d : k + (h - s.num_heads) * d;
        const std::vector<float>& norm = is_query ? l.vectors.q_norm : l.vectors.k_norm;
        if (!norm.empty()) k_.rms_norm(head, norm.data(), s.norm_eps, d, head);
        for (int64_t i = 0; i < half; ++i) {
            float& a = head[s.rope_interleaved ? 2 * i : i];
            float& b = head[s.rope_interleaved ? 2 * i + 1 : i + half];
            const float first = a, second = b;
            a = first * cos[i] - second * sin[i];
            b = second * cos[i] + first * sin[i];
        }
    }
}

// Rotation, the cache, and attention of this thread's queries. Ends with a barrier.
void Decoder::attention(Call& c, int64_t layer) {
    const Shape& s = shape_;
    const Layer& l = layers_[static_cast<size_t>(layer)];
    const int64_t d = s.head_dim, q_pad = padded(s.num_heads * d), kv_pad = padded(s.num_kv_heads * d);
    const int64_t stride = q_pad + 2 * kv_pad, cell_size = s.num_kv_heads * d;
    const Share rows(c.rows, c.index, c.size);
    for (int64_t r = rows.begin; r < rows.end; ++r) {
        float* q = c.qkv + r * stride;
        float* k = q + q_pad;
        float* v = k + kv_pad;
        rotate_row(c, l, r, q, k);
        for (size_t i = 0; i < l.vectors.v_bias.size(); ++i) v[i] += l.vectors.v_bias[i];
        const int64_t own = c.cells[c.offsets[r + 1] - 1];
        k_.to_half(k, cell_size, cell_keys(layer) + own * cell_size);
        k_.to_half(v, cell_size, cell_values(layer) + own * cell_size);
    }
    team_->sync();  // rows attend to rows of other threads
    const int64_t group = s.num_heads / s.num_kv_heads;
    const Share heads(c.rows * s.num_heads, c.index, c.size);
    for (int64_t i = heads.begin, count; i < heads.end; i += count) {  // as many at a time as share their keys
        const int64_t r = i / s.num_heads, first = i % s.num_heads, h = first / group, end = c.offsets[r + 1];
        count = std::min((h + 1) * group - first, heads.end - i);
        const int64_t all = end - c.offsets[r], seen = l.window > 0 && l.window < all ? l.window : all;
        k_.attend(c.qkv + r * stride + first * d, count, cell_keys(layer) + h * d, cell_values(layer) + h * d, c.cells + (end - seen), seen, cell_size,
                  d, s.score_scale, c.scores, c.attended + r * s.num_heads * d + first * d);
    }
    sync(c);
}

// Adds x · mᵀ to the residual stream, normalised first if there is a norm. Ends with a barrier.
void Decoder::project(Call& c, const Matrix& m, const std::vector<float>& post_norm) {
    const int64_t stride = padded(shape_.hidden);
    const bool at_once = post_norm.empty();  // a norm needs whole rows
    const auto add = [&](int64_t r, int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) c.x[r * stride + i] += c.delta[r * stride + i];
    };
    divide(c, m.tiles(), m.tile_bytes(), [&](int64_t begin, int64_t end) {
        multiply(c, m, c.delta, stride, begin, end);
        for (int64_t r = 0; at_once && r < c.rows; ++r) add(r, begin * kTile, std::min(end * kTile, shape_.hidden));
    });
    sync(c);
    if (at_once) return;
    const Share rows(c.rows, c.index, c.size);
    for (int64_t r = rows.begin; r < rows.end; ++r) {
        k_.rms_norm(c.delta + r * stride, post_norm.data(), shape_.norm_eps, shape_.hidden, c.delta + r * stride);
        add(r, 0, shape_.hidden);
    }
    sync(c);
}

// Leaves only the rows that have logits: above the last layer's keys and values nobody reads the others. Ends with a barrier.
void Decoder::drop_unwanted(Call& c) {
    if (c.num_wanted == c.rows) return;
    const int64_t stride = padded(shape_.hidden), heads = shape_.num_heads * shape_.head_dim;
    for (int64_t i = 0; c.index == 0 && i < c.num_wanted; ++i) {
        const int64_t r = c.wanted[i] - c.first;
        std::memmove(c.x + i * stride, c.x + r * stride, sizeof(float) * static_cast<size_t>(stride));
        std::memmove(c.attended + i * heads, c.attended + r * heads, sizeof(float) * static_cast<size_t>(heads));
    }
    sync(c);
    c.rows = c.num_wanted;
}

void Decoder::layer_pass(Call& c, int64_t layer) {
    const Shape& s = shape_;
    const Layer& l = layers_[static_cast<size_t>(layer)];
    const int64_t q_pad = padded(s.num_heads * s.head_dim), kv_pad = padded(s.num_kv_heads * s.head_dim);
    const int64_t qkv_stride = q_pad + 2 * kv_pad, ffn = padded(s.intermediate);
    norm_rows(c, l.vectors.attn_norm);
    quantize(c, c.space.normed.data(), s.hidden, {&l.q, &l.k, &l.v});
    divide(c, l.q.tiles() + l.k.tiles() + l.v.tiles(), l.q.tile_bytes(), [&](int64_t begin, int64_t end) {
        int64_t first = 0;  // tile of the matrix
        for (const auto& [m, out] : {std::pair(&l.q, c.qkv), std::pair(&l.k, c.qkv + q_pad), std::pair(&l.v, c.qkv + q_pad + kv_pad)}) {
            const int64_t from = std::max(begin - first, int64_t{0}), to = std::min(end - first, m->tiles());
            if (from < to) multiply(c, *m, out, qkv_stride, from, to);
            first += m->tiles();
        }
    });
    sync(c);
    attention(c, layer);
    if (layer == s.num_layers - 1) drop_unwanted(c);
    if (c.rows == 0) return;
    quantize(c, c.attended, s.num_heads * s.head_dim, {&l.o});
    project(c, l.o, l.vectors.post_attn_norm);
    norm_rows(c, l.vectors.ffn_norm);
    quantize(c, c.space.normed.data(), s.hidden, {&l.gate, &l.up});
    float* up = c.ffn + c.rows * ffn;
    const auto activate = s.gelu ? k_.geglu : k_.swiglu;
    divide(c, l.gate.tiles(), l.gate.tile_bytes() + l.up.tile_bytes(), [&](int64_t begin, int64_t end) {
        multiply(c, l.gate, c.ffn, ffn, begin, end);
        multiply(c, l.up, up, ffn, begin, end);
        const int64_t from = begin * kTile, size = std::min(end * kTile, s.intermediate) - from;
        for (int64_t r = 0; r < c.rows; ++r) activate(c.ffn + r * ffn + from, up + r * ffn + from, size);
    });
    sync(c);
    if (ffn != s.intermediate) {  // rows lie close together for the next product
        for (int64_t r = 1; c.index == 0 && r < c.rows; ++r)
            std::memmove(c.ffn + r * s.intermediate, c.ffn + r * ffn, sizeof(float) * static_cast<size_t>(s.intermediate));
        sync(c);
    }
    quantize(c, c.ffn, s.intermediate, {&l.down});
    project(c, l.down, l.vectors.post_ffn_norm);
}

// The logits of the rows that are left.
void Decoder::head_pass(Call& c) {
    const Shape& s = shape_;
    norm_rows(c, final_norm_);
    quantize(c, c.space.normed.data(), s.hidden, {&head_});
    const int64_t whole = s.head / kTile;  // tiles that end inside a row of logits
    divide(c, head_.tiles(), head_.tile_bytes(), [&](int64_t begin, int64_t end) {
        multiply(c, head_, c.logits, s.head, begin, std::min(end, whole));
        if (end <= whole) return;
        // The last tile is wider than what is left of the row.
        k_.gemm(head_, input_for(c, head_), c.rows, c.edge, kTile, whole, whole + 1);
        for (int64_t r = 0; r < c.rows; ++r)
            std::memcpy(c.logits + r * s.head + whole * kTile, c.edge + r * kTile, sizeof(float) * static_cast<size_t>(s.head - whole * kTile));
    });
}

void Decoder::forward(int64_t rows, const int32_t* tokens, const int32_t* positions, const int32_t* offsets, const int32_t* cells,
                      const uint8_t* wanted, float* logits) {
    const Shape& s = shape_;
    int64_t longest = 1;
    for (int64_t r = 0; r < rows; ++r) {
        check(tokens[r] >= 0 && tokens[r] < s.vocab, "a token outside the vocabulary");
        check(positions[r] >= 0 && positions[r] < s.num_positions, "a position outside the context");
        check(offsets[r + 1] > offsets[r], "a row that attends to nothing");
        for (int64_t i = offsets[r]; i < offsets[r + 1]; ++i) check(cells[i] >= 0 && cells[i] < s.num_cells, "a cell outside the cache");
        longest = longest > offsets[r + 1] - offsets[r] ? longest : offsets[r + 1] - offsets[r];
    }
    reserve(rows, longest);
    const bool own = own_rows(rows), apart = alone(rows);
    const int64_t stride = padded(s.hidden), heads = s.num_heads * s.head_dim, ffn = padded(s.intermediate);
    const int64_t qkv = padded(heads) + 2 * padded(s.num_kv_heads * s.head_dim);
    const size_t room = scores_.size() / static_cast<size_t>(team_->size());
    wanted_.clear();
    for (int64_t r = 0; r < rows; ++r)
        if (wanted[r]) wanted_.push_back(r);
    team_->run([&](int index) {
        const Share mine = own ? Share(rows, index, team_->size()) : Share(rows, 0, 1);
        const int64_t first = mine.begin;
        const auto from = std::lower_bound(wanted_.begin(), wanted_.end(), first), to = std::lower_bound(from, wanted_.end(), mine.end);
        const int64_t before = from - wanted_.begin();
        Call c{mine.end - first, tokens + first, positions + first, offsets + first, cells, first, wanted_.data() + before, to - from,
               logits + before * s.head, x_.data() + first * stride, delta_.data() + first * stride, qkv_.data() + first * qkv,
               attended_.data() + first * heads,
               ffn_.data() + first * 2 * ffn, spaces_[static_cast<size_t>(apart ? index : 0)], apart, own ? 0 : index, own ? 1 : team_->size(),
               scores_.data() + static_cast<size_t>(index) * room, edge_.data() + first * kTile};
        if (!own) demand_.begin(index);
        const Share read(c.rows, c.index, c.size);
        for (int64_t r = read.begin; r < read.end; ++r) embed(c.tokens[r], c.x + r * stride);
        sync(c);
        for (int64_t layer = 0; layer < s.num_layers; ++layer) layer_pass(c, layer);
        if (c.rows > 0) head_pass(c);
    });
}

void Decoder::move_cells(int64_t n, const int32_t* source, const int32_t* target) {
    const size_t cell = static_cast<size_t>(shape_.num_kv_heads * shape_.head_dim);
    for (int64_t i = 0; i < n; ++i)
        check(source[i] >= 0 && source[i] < shape_.num_cells && target[i] >= 0 && target[i] < shape_.num_cells, "a cell outside the cache");
    std::vector<uint16_t> copy(static_cast<size_t>(n) * cell);
    for (int64_t layer = 0; layer < shape_.num_layers; ++layer)
        for (uint16_t* all : {cell_keys(layer), cell_values(layer)}) {
            for (int64_t i = 0; i < n; ++i) std::memcpy(copy.data() + static_cast<size_t>(i) * cell, all + static_cast<size_t>(source[i]) * cell, cell * 2);
            for (int64_t i = 0; i < n; ++i) std::memcpy(all + static_cast<size_t>(target[i]) * cell, copy.data() + static_cast<size_t>(i) * cell, cell * 2);
        }
}

void Decoder::read_cells(int64_t layer, int64_t n, const int32_t* cells, float* keys, float* values) const {
    const int64_t cell = shape_.num_kv_heads * shape_.head_dim;
    check(layer >= 0 && layer < shape_.num_layers, "a layer that does not exist");
    for (int64_t i = 0; i < n; ++i) {
        check(cells[i] >= 0 && cells[i] < shape_.num_cells, "a cell outside the cache");
        for (int64_t j = 0; j < cell; ++j) {
            keys[i * cell + j] = half_to_float(keys_[static_cast<size_t>(layer)][static_cast<size_t>(cells[i] * cell + j)]);
            values[i * cell + j] = half_to_float(values_[static_cast<size_t>(layer)][static_cast<size_t>(cells[i] * cell + j)]);
        }
    }
}

}  // namespace draftgraph
