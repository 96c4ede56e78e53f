// The core by itself, for builds with sanitizers: every type and level, trees, moves, and shapes that must be refused.
// Prints one line per check; the exit code is 1 if one fails.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>

#include "core/decoder.hpp"
#include "core/linear.hpp"
#include "core/requantize.hpp"

using namespace draftgraph;

namespace {

int failures = 0;

void expect(bool holds, const std::string& what) {
    std::printf("%s  %s\n", holds ? "ok    " : "FAILED", what.c_str());
    failures += !holds;
}

void expect_refused(const std::string& what, const std::function<void()>& call) {
    try {
        call();
    } catch (const std::exception&) {
        return expect(true, what + " is refused");
    }
    expect(false, what + " is refused");
}

const Type kTypes[] = {Type::F32, Type::F16, Type::BF16, Type::Q4_0, Type::Q4_1, Type::Q5_0, Type::Q5_1, Type::Q8_0, Type::Q4_K, Type::Q5_K, Type::Q6_K};

size_t tensor_bytes(Type type, int64_t outputs, int64_t inputs) {
    const TypeInfo& info = type_info(type);
    return static_cast<size_t>(outputs * (inputs / info.block)) * info.block_bytes;
}

// The bytes of a tensor, random or all ones; each float and half in them is small and finite.
std::vector<uint8_t> make_bytes(Type type, int64_t outputs, int64_t inputs, bool random) {
    const TypeInfo& info = type_info(type);
    const bool has_min = type == Type::Q4_1 || type == Type::Q5_1 || type == Type::Q4_K || type == Type::Q5_K;
    const size_t first_half = type == Type::Q6_K ? 208 : 0, half_bytes = info.block == 1 ? info.block_bytes : has_min ? 4 : 2;
    std::mt19937 generator(2);
    std::vector<uint8_t> bytes(tensor_bytes(type, outputs, inputs));
    for (size_t i = 0; i < bytes.size(); ++i) {
        const size_t place = i % info.block_bytes - first_half;
        bytes[i] = static_cast<uint8_t>(random ? generator() : type == Type::Q8_0 ? 0x7f : 0xff);
        if (place < half_bytes) bytes[i] &= 0x2f;
    }
    return bytes;
}

std::vector<float> random_floats(int64_t count, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = normal(random);
    return values;
}

void test_products(const std::string& what, const std::vector<float>& x, bool random) {
    constexpr int64_t outputs = 37, inputs = 512, rows = 11;
    for (const Type type : kTypes) {
        const std::vector<uint8_t> bytes = make_bytes(type, outputs, inputs, random);
        const TensorView view{type, outputs, inputs, bytes.data(), bytes.size()};
        std::vector<float> first(rows * outputs);
        Linear(view, 1, "portable").multiply(rows, x.data(), first.data());
        bool same = true;
        for (const std::string& level : kernel_levels())
            for (const int threads : {1, 3}) {
                std::vector<float> out(rows * outputs);
                Linear(view, threads, level).multiply(rows, x.data(), out.data());
                same = same && std::memcmp(out.data(), first.data(), out.size() * sizeof(float)) == 0;
                Linear(view, threads, level).multiply(1, x.data() + inputs, out.data());
                same = same && std::memcmp(out.data(), first.data() + outputs, outputs * sizeof(float)) == 0;
            }
        expect(same, "type " + std::to_string(static_cast<uint32_t>(type)) + ", " + what + ", has the same bits at every level, alone and among 11");
    }
}

// What `run` writes at each level, as bytes; whether all wrote the same.
template <class T> bool same_at_every_level(size_t count, const std::function<void(const Kernels&, T*)>& run) {
    std::vector<T> first(count), out(count);
    run(kernels("portable"), first.data());
    for (const std::string& level : kernel_levels()) {
        std::fill(out.begin(), out.end(), T{});
        run(kernels(level), out.data());
        if (std::memcmp(out.data(), first.data(), count * sizeof(T)) != 0) return false;
    }
    return true;
}

void test_operations() {
    bool same = true;
    for (const int64_t n : {1, 7, 16, 37, 576}) {
        const size_t count = static_cast<size_t>(n);
        const std::vector<float> x = random_floats(n, 3), y = random_floats(n, 4);
        same = same && same_at_every_level<float>(count, [&](const Kernels& k, float* out) { k.rms_norm(x.data(), y.data(), 1e-5f, n, out); });
        for (const auto gated : {&Kernels::swiglu, &Kernels::geglu})
            same = same && same_at_every_level<float>(count, [&](const Kernels& k, float* out) {
                std::copy(x.begin(), x.end(), out);
                (k.*gated)(out, y.data(), n);
            });
        same = same && same_at_every_level<uint16_t>(count, [&](const Kernels& k, uint16_t* out) { k.to_half(x.data(), n, out); });
        same = same && same_at_every_level<int32_t>(count, [&](const Kernels& k, int32_t* out) { k.likeliest(x.data(), n, std::min<int64_t>(n, 5), out); });
        same = same && same_at_every_level<double>(1, [&](const Kernels& k, double* out) {
            std::vector<double> below(x.begin(), x.end());
            for (double& value : below) value = -std::fabs(value);
            *out = k.exp_sum(below.data(), n);
        });
    }
    expect(same, "norms, gates, halves, the likeliest and sums of exponentials have the same bits at every level");
}

void test_attention() {
    constexpr int64_t most = 37, stride = 3 * 80;
    const std::vector<float> x = random_floats(2 * most * stride, 5);
    std::vector<uint16_t> cache(x.size());
    kernels("portable").to_half(x.data(), static_cast<int64_t>(x.size()), cache.data());
    std::vector<int32_t> cells;
    for (int32_t i = 0; i < most; ++i) cells.push_back(i * 5 % static_cast<int32_t>(most));
    bool same = true;
    for (const int64_t group : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13})
        for (const int64_t head_dim : {16, 48, 80})
            for (const int64_t n : {1, 5, 16, 37}) {
                const std::vector<float> q = random_floats(group * head_dim, 6);
                same = same && same_at_every_level<float>(q.size(), [&](const Kernels& k, float* out) {
                    std::vector<float> scores(static_cast<size_t>(8 * n));
                    k.attend(q.data(), group, cache.data(), cache.data() + most * stride, cells.data(), n, stride, head_dim, 0.3f, scores.data(), out);
                });
            }
    expect(same, "attention of 1 to 13 queries has the same bits at every level");
}

// A decoder of two layers with every option on, over tensors that this object owns. Matrices of F32 have awkward sizes, those of
// other types whole blocks; `type` is that of the first layer and the head, `other` that of the second and the embedding.
struct Tiny {
    enum class Embedding { own, rows_of_head, head };

    Tiny(int threads, const std::string& level, Type type = Type::F32, Type other = Type::F32, Embedding embedded = Embedding::own) {
        const bool plain = type_info(type).block == 1 && type_info(other).block == 1;
        const int64_t hidden = plain ? 72 : 256, intermediate = plain ? 100 : 512, d = plain ? 16 : 64, q = 4 * d, kv = 2 * d;
        shape.num_layers = 2;
        shape.hidden = hidden;
        shape.intermediate = intermediate;
        shape.num_heads = 4;
        shape.num_kv_heads = 2;
        shape.head_dim = d;
        shape.vocab = 77;
        shape.head = 77;
        shape.num_cells = 64;
        shape.num_positions = 40;
        shape.rope_dim = 16;
        shape.gelu = true;
        shape.norm_eps = 1e-5f;
        shape.embedding_scale = 2;
        shape.score_scale = 0.25f;
        uint32_t seed = 1;
        const auto tensor = [&](Type kind, int64_t outputs, int64_t inputs) {
            if (type_info(kind).block > 1) {
                data.push_back(make_bytes(kind, outputs, inputs, true));
                return TensorView{kind, outputs, inputs, data.back().data(), data.back().size()};
            }
            std::vector<float> values = random_floats(outputs * inputs, seed++);
            for (float& value : values) value /= __builtin_sqrtf(static_cast<float>(inputs));
            const auto* first = reinterpret_cast<const uint8_t*>(values.data());
            data.emplace_back(first, first + values.size() * sizeof(float));
            return TensorView{Type::F32, outputs, inputs, data.back().data(), data.back().size()};
        };
        const auto ones = [](int64_t n) { return std::vector<float>(static_cast<size_t>(n), 1.0f); };
        const TensorView rows = tensor(other, 80, hidden), head = tensor(type, 77, hidden);
        std::optional<TensorView> embedding;
        if (embedded == Embedding::own) embedding = rows;
        if (embedded == Embedding::rows_of_head) embedding = head;
        std::vector<LayerViews> layers;
        for (const Type kind : {type, other}) {
            LayerViews l{tensor(kind, q, hidden), tensor(kind, kv, hidden), tensor(kind, kv, hidden), tensor(kind, hidden, q),
                         tensor(kind, intermediate, hidden), tensor(kind, intermediate, hidden), tensor(kind, hidden, intermediate), {}, 0, false};
            l.vectors = {ones(hidden), ones(hidden), ones(q), ones(kv), ones(kv), ones(d), ones(d), ones(hidden), ones(hidden)};
            layers.push_back(l);
        }
        layers[0].window = 5;
        layers[0].local_rope = true;
        const RopeTable table{ones(40 * 8), std::vector<float>(40 * 8, 0.0f)};
        decoder = std::make_unique<Decoder>(shape, embedding, head, layers, ones(hidden), table, table, threads, level, "");
    }

    // The logits of a chain of tokens, `chunk` at a time, in cells [first, …).
    std::vector<float> chain(const std::vector<int32_t>& tokens, size_t chunk, int32_t first = 0) {
        std::vector<float> logits;
        for (size_t start = 0; start < tokens.size(); start += chunk) {
            const size_t rows = std::min(chunk, tokens.size() - start);
            std::vector<int32_t> positions, offsets{0}, cells;
            for (size_t r = 0; r < rows; ++r) {
                positions.push_back(static_cast<int32_t>(start + r));
                for (size_t c = 0; c <= start + r; ++c) cells.push_back(first + static_cast<int32_t>(c));
                offsets.push_back(static_cast<int32_t>(cells.size()));
            }
            const std::vector<uint8_t> wanted(rows, 1);
            std::vector<float> out(rows * 77);
            decoder->forward(static_cast<int64_t>(rows), tokens.data() + start, positions.data(), offsets.data(), cells.data(), wanted.data(), out.data());
            logits.insert(logits.end(), out.begin(), out.end());
        }
        return logits;
    }

    Shape shape;
    std::vector<std::vector<uint8_t>> data;
    std::unique_ptr<Decoder> decoder;
};

// Chunks of 1, 9 and 30 rows: prepared by every thread for itself, by all together, and (on 2 threads) each with rows of its own.
void test_decoder() {
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < 30; ++i) tokens.push_back(i * 7 % 77);
    bool same = true;
    const std::pair<Type, Type> kinds[] = {{Type::F32, Type::F32}, {Type::Q8_0, Type::Q8_0}, {Type::Q4_0, Type::Q5_1}, {Type::Q4_K, Type::Q6_K}, {Type::Q5_K, Type::Q8_0}};
    for (const auto& [type, other] : kinds) {
        const std::vector<float> expected = Tiny(1, "portable", type, other).chain(tokens, 1);
        same = std::all_of(expected.begin(), expected.end(), [](float x) { return std::isfinite(x); });
        for (const std::string& level : kernel_levels())
            for (const int threads : {1, 2, 4})
                for (const size_t chunk : {size_t{1}, size_t{9}, size_t{30}})
                    same = same && Tiny(threads, level, type, other).chain(tokens, chunk) == expected;
        expect(same, "types " + std::to_string(static_cast<uint32_t>(type)) + " and " + std::to_string(static_cast<uint32_t>(other)) +
                         ": a text has the same rows in any chunks, on any threads, at every level");
    }

    for (const Type type : kTypes)
        same = same && Tiny(2, "", type, type, Tiny::Embedding::head).chain(tokens, 9) == Tiny(2, "", type, type, Tiny::Embedding::rows_of_head).chain(tokens, 9);
    expect(same, "an embedding is the same rows, given or read from the packed head");

    Tiny tiny(2, "");
    tiny.chain(tokens, 30, 20);
    const std::vector<int32_t> source{21, 22, 23, 40}, target{20, 21, 22, 23};
    std::vector<float> before(4 * 32), after(4 * 32), values(4 * 32);
    tiny.decoder->read_cells(1, 4, source.data(), before.data(), values.data());
    tiny.decoder->move_cells(4, source.data(), target.data());
    tiny.decoder->read_cells(1, 4, target.data(), after.data(), values.data());
    expect(before == after, "overlapping cells move as if all were read first");
}

// What pack_tiles writes is read back as dequantize_row reads the file, whatever the row.
void test_outputs() {
    constexpr int64_t outputs = 37, inputs = 512;
    for (const Type type : kTypes) {
        const std::vector<uint8_t> bytes = make_bytes(type, outputs, inputs, true);
        Matrix matrix = make_matrix(type, outputs, inputs, bytes.size());
        pack_tiles(matrix, bytes.data(), 0, matrix.tiles());
        std::vector<float> wanted(inputs), found(inputs);
        bool same = true;
        for (int64_t o = 0; o < outputs; ++o) {
            dequantize_row(type, bytes.data() + static_cast<size_t>(o) * row_bytes(type, inputs), inputs, wanted.data());
            dequantize_output(matrix, o, found.data());
            same = same && std::memcmp(wanted.data(), found.data(), inputs * sizeof(float)) == 0;
        }
        expect(same, "type " + std::to_string(static_cast<uint32_t>(type)) + ": an output is read back from its tile");
    }
}

void test_refusals() {
    Tiny tiny(2, "");
    const std::vector<int32_t> zero{0}, offsets{0, 1};
    const uint8_t wanted = 1;
    std::vector<float> logits(77);
    const auto forward = [&](int32_t token, int32_t position, int32_t cell) {
        tiny.decoder->forward(1, &token, &position, offsets.data(), &cell, &wanted, logits.data());
    };
    expect_refused("a token outside the vocabulary", [&] { forward(77, 0, 0); });
    expect_refused("a negative token", [&] { forward(-1, 0, 0); });
    expect_refused("a position outside the context", [&] { forward(0, 40, 0); });
    expect_refused("a cell outside the cache", [&] { forward(0, 0, 64); });
    const int32_t far = 1 << 30;
    expect_refused("a move outside the cache", [&] { tiny.decoder->move_cells(1, &far, zero.data()); });
    const std::vector<uint8_t> bytes(1000);
    for (const Type type : kTypes) {
        for (const int64_t outputs : {int64_t{-1}, int64_t{0}, int64_t{1} << 40, int64_t{1} << 62})
            expect_refused("a matrix of " + std::to_string(outputs) + " outputs", [&] { make_matrix(type, outputs, 256, bytes.size()); });
        expect_refused("a matrix with too few bytes", [&] { make_matrix(type, 1000, 256, bytes.size()); });
    }
    expect_refused("an unknown type", [&] { type_info(static_cast<Type>(77)); });
    expect_refused("an unknown level", [&] { kernels("none"); });
}

void test_halves() {
    bool same = true;
    for (uint32_t h = 0; h < 65536; ++h) {
        const float f = half_to_float(static_cast<uint16_t>(h));
        same = same && (f != f || float_to_half(f) == h);
    }
    expect(same, "every half survives the way to float and back");
}

// Against the noise of every id: no contender is missing, and every level finds the same ones.
void test_contenders() {
    const auto mix = [](uint64_t s) {
        s = (s ^ (s >> 30)) * 0xBF58476D1CE4E5B9;
        s = (s ^ (s >> 27)) * 0x94D049BB133111EB;
        return s ^ (s >> 31);
    };
    const double infinity = std::numeric_limits<double>::infinity();
    bool complete = true, same = true, close = true;
    for (const int64_t n : {0, 1, 7, 63, 64, 65, 1000, 20000})
        for (const double scale : {0.0, 0.1, 3.0, 1e6, 1e300})
            for (const double margin : {0.0, 0.5, 10.0, infinity}) {
                const std::vector<float> numbers = random_floats(n, static_cast<uint32_t>(n + 1));
                std::vector<double> scores(numbers.begin(), numbers.end()), values;
                for (double& score : scores) score *= scale;
                for (int64_t i = 0; i < n; i += 3) scores[static_cast<size_t>(i)] = n > 3 ? -infinity : 0;
                const uint64_t key = mix(static_cast<uint64_t>(n) + 99);
                double best = -infinity;
                for (size_t i = 0; i < scores.size(); ++i) {
                    const double u = (static_cast<double>(mix(key + (i + 1) * 0x9E3779B97F4A7C15) >> 12) + 0.5) * 0x1p-52;
                    values.push_back(scores[i] - std::log(-std::log(u)));
                    best = std::max(best, values.back());
                }
                std::vector<int32_t> first;
                for (const std::string& level : kernel_levels()) {
                    std::vector<int32_t> ids(scores.size());
                    ids.resize(static_cast<size_t>(kernels(level).contenders(scores.data(), n, key, margin, ids.data())));
                    for (size_t i = 0; i < values.size(); ++i)
                        if (values[i] >= best - margin && values[i] > -infinity)
                            complete = complete && std::binary_search(ids.begin(), ids.end(), static_cast<int32_t>(i));
                    if (first.empty()) first = ids;
                    same = same && ids == first;
                }
                for (double& score : scores) score = -std::fabs(score);
                double sum = 0;
                for (const double score : scores) sum += std::exp(score);
                for (const std::string& level : kernel_levels())
                    close = close && std::fabs(kernels(level).exp_sum(scores.data(), n) - sum) <= 1e-9 * sum + 1e-290;
            }
    expect(complete, "no contender is missing");
    expect(same, "every level finds the same contenders");
    expect(close, "sums of exponentials are close at every level");
}

// Repacked weights are close to the row, closer than with the usual scale, and a row of anything has some.
void test_requantize() {
    constexpr int64_t inputs = 4096;
    std::vector<float> x = random_floats(inputs, 8), coarse(inputs);
    std::vector<uint8_t> blocks(row_bytes(Type::Q4_0, inputs));
    quantize_row_q4_0(x.data(), inputs, blocks.data());
    dequantize_row(Type::Q4_0, blocks.data(), inputs, coarse.data());
    double error = 0, usual = 0;
    for (int64_t b = 0; b < inputs; b += 32) {
        const float* v = x.data() + b;
        const float extreme = *std::max_element(v, v + 32, [](float p, float q) { return std::fabs(p) < std::fabs(q); });
        double mean = 0;
        for (int i = 0; i < 32; ++i) mean += static_cast<double>(v[i]) * v[i] / 32;
        for (int i = 0; i < 32; ++i) {
            const float rounded = std::min(std::nearbyint(v[i] / (extreme / -8)), 7.0f) * (extreme / -8);
            const double weight = std::sqrt(static_cast<double>(v[i]) * v[i] + mean);
            error += weight * std::pow(coarse[static_cast<size_t>(b + i)] - v[i], 2);
            usual += weight * std::pow(rounded - v[i], 2);
        }
    }
    expect(error < 0.9 * usual, "repacked weights are closer than with the usual scale");
    for (const float odd : {0.0f, 1e-42f, 1e38f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
        std::fill(x.begin(), x.begin() + 32, 0.0f);
        x[3] = odd;
        quantize_row_q4_0(x.data(), 32, blocks.data());
        dequantize_row(Type::Q4_0, blocks.data(), 32, coarse.data());
        if (odd == 0.0f) expect(std::all_of(coarse.begin(), coarse.begin() + 32, [](float w) { return w == 0; }), "zeros stay zeros");
    }
}

// Every item is taken once in each round, also those of a thread that stands still in its first chunk until the others are done.
void test_demand() {
    constexpr int64_t kItems = 100, kRounds = 3, kPerChunk = 7;
    const auto team = Team::of(3);
    Demand demand(team->size(), kRounds);
    bool once = true, others_went_on = true;
    for (int pass = 0; pass < 2; ++pass) {
        std::vector<std::atomic<int>> times(kItems * kRounds);
        std::atomic<int64_t> done{0};
        team->run([&](int index) {
            demand.begin(index);
            team->sync();
            for (int64_t round = 0; round < kRounds; ++round) {
                demand.run(round, kItems, kPerChunk, index, [&](int64_t first, int64_t last) {
                    const auto begin = std::chrono::steady_clock::now();
                    while (index == 1 && done < (round + 1) * kItems - (last - first) && others_went_on)
                        others_went_on = std::chrono::steady_clock::now() - begin < std::chrono::seconds(10);
                    for (int64_t i = first; i < last; ++i) ++times[static_cast<size_t>(round * kItems + i)];
                    done += last - first;
                });
                team->sync();
            }
        });
        for (const auto& count : times) once = once && count == 1;
    }
    expect(once, "every item is taken once");
    expect(others_went_on, "a thread that stands still is not waited for with more than its chunk");
}

}  // namespace

int main() {
    test_contenders();
    test_demand();
    test_halves();
    test_products("random", random_floats(11 * 512, 1), true);
    test_products("at its largest", std::vector<float>(11 * 512, 1.0f), false);
    test_operations();
    test_attention();
    test_outputs();
    test_decoder();
    test_refusals();
    test_requantize();
    std::printf("%d failures\n", failures);
    return failures != 0;
}
