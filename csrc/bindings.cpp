// draftgraph._native: checks arguments, releases the GIL, calls the core. No logic here, but for what makes Python's objects.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <optional>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "core/cpu_features.hpp"
#include "core/decoder.hpp"
#include "core/kernels.hpp"
#include "core/linear.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace draftgraph;

namespace {

template <class T, class S> using Array = nb::ndarray<T, S, nb::c_contig, nb::device::cpu>;
using Bytes = Array<const uint8_t, nb::ndim<1>>;
using Floats = Array<const float, nb::ndim<1>>;
using Ints = Array<const int32_t, nb::ndim<1>>;
using Scores = Array<const double, nb::ndim<1>>;
using Mask = Array<const uint8_t, nb::ndim<1>>;
using Matrix2 = Array<float, nb::ndim<2>>;
using Matrix3 = Array<float, nb::ndim<3>>;

// A tensor of a model file; keeps its bytes alive.
struct Tensor {
    Tensor(uint32_t type, int64_t outputs, int64_t inputs, Bytes bytes) : bytes(bytes) {
        view = {static_cast<Type>(type), outputs, inputs, bytes.data(), bytes.size()};
        type_info(view.type);
    }
    Bytes bytes;
    TensorView view;
};

std::vector<float> copy(const Floats& a) { return std::vector<float>(a.data(), a.data() + a.size()); }

struct Layer {
    Layer(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o, const Tensor& gate, const Tensor& up, const Tensor& down,
          Floats attn_norm, Floats ffn_norm, Floats q_bias, Floats k_bias, Floats v_bias, Floats q_norm, Floats k_norm,
          Floats post_attn_norm, Floats post_ffn_norm, int64_t window, bool local_rope) {
        views = {q.view, k.view, v.view, o.view, gate.view, up.view, down.view,
                 {copy(attn_norm), copy(ffn_norm), copy(q_bias), copy(k_bias), copy(v_bias), copy(q_norm), copy(k_norm),
                  copy(post_attn_norm), copy(post_ffn_norm)},
                 window, local_rope};
    }
    LayerViews views;
};

void require(bool holds, const char* what) {
    if (!holds) throw nb::value_error(what);
}

void make_decoder(Decoder* self, const Shape& shape, const Tensor* embedding, const Tensor& head, const std::vector<const Layer*>& layers,
                  Floats final_norm, Floats cos, Floats sin, Floats local_cos, Floats local_sin, int threads, const std::string& level,
                  const std::string& packed) {
    std::vector<LayerViews> views;
    for (const Layer* layer : layers) views.push_back(layer->views);
    std::vector<float> norm = copy(final_norm);
    RopeTable rope{copy(cos), copy(sin)}, local{copy(local_cos), copy(local_sin)};
    const std::optional<TensorView> rows = embedding ? std::optional<TensorView>(embedding->view) : std::nullopt;
    nb::gil_scoped_release release;
    new (self) Decoder(shape, rows, head.view, views, std::move(norm), std::move(rope), std::move(local), threads, level, packed);
}

void forward(Decoder& self, Ints tokens, Ints positions, Ints offsets, Ints cells, Mask wanted, Matrix2 logits) {
    const size_t rows = tokens.size();
    require(positions.size() == rows && wanted.size() == rows && offsets.size() == rows + 1, "arrays of different lengths");
    require(offsets(0) == 0 && static_cast<size_t>(offsets(rows)) == cells.size(), "offsets that do not span the cells");
    size_t count = 0;
    for (size_t r = 0; r < rows; ++r) count += wanted(r) != 0;
    require(logits.shape(0) == count && logits.shape(1) == static_cast<size_t>(self.shape().head), "logits of another shape");
    nb::gil_scoped_release release;
    self.forward(static_cast<int64_t>(rows), tokens.data(), positions.data(), offsets.data(), cells.data(), wanted.data(), logits.data());
}

void move_cells(Decoder& self, Ints source, Ints target) {
    require(source.size() == target.size(), "arrays of different lengths");
    nb::gil_scoped_release release;
    self.move_cells(static_cast<int64_t>(source.size()), source.data(), target.data());
}

void read_cells(Decoder& self, int64_t layer, Ints cells, Matrix3 keys, Matrix3 values) {
    for (const Matrix3* a : {&keys, &values})
        require(a->shape(0) == cells.size() && a->shape(1) == static_cast<size_t>(self.shape().num_kv_heads) &&
                    a->shape(2) == static_cast<size_t>(self.shape().head_dim), "arrays of another shape");
    nb::gil_scoped_release release;
    self.read_cells(layer, static_cast<int64_t>(cells.size()), cells.data(), keys.data(), values.data());
}

void set_head_tile(Decoder& self, int64_t tile, Bytes rows) {
    nb::gil_scoped_release release;
    self.set_head_tile(tile, rows.data(), rows.size());
}

void multiply(Linear& self, Array<const float, nb::ndim<2>> x, Matrix2 out) {
    require(x.shape(1) == static_cast<size_t>(self.inputs()) && out.shape(0) == x.shape(0) &&
                out.shape(1) == static_cast<size_t>(self.outputs()), "arrays of another shape");
    nb::gil_scoped_release release;
    self.multiply(static_cast<int64_t>(x.shape(0)), x.data(), out.data());
}

void likeliest(Array<const float, nb::ndim<2>> rows, Array<int32_t, nb::ndim<2>> ids) {
    require(ids.shape(0) == rows.shape(0) && ids.shape(1) <= rows.shape(1), "arrays of another shape");
    const Kernels& k = kernels("");
    nb::gil_scoped_release release;
    for (size_t r = 0; r < rows.shape(0); ++r)
        k.likeliest(rows.data() + r * rows.shape(1), static_cast<int64_t>(rows.shape(1)), static_cast<int64_t>(ids.shape(1)),
                    ids.data() + r * ids.shape(1));
}

int64_t contenders(Scores scores, uint64_t key, double margin, Array<int32_t, nb::ndim<1>> ids) {
    require(ids.size() == scores.size(), "arrays of different lengths");
    const Kernels& k = kernels("");
    nb::gil_scoped_release release;
    return k.contenders(scores.data(), static_cast<int64_t>(scores.size()), key, margin, ids.data());
}

double exp_sum(Scores x) {
    const Kernels& k = kernels("");
    nb::gil_scoped_release release;
    return k.exp_sum(x.data(), static_cast<int64_t>(x.size()));
}

int32_t multiply_adds(const std::string& level, int64_t rounds) {
    const Kernels& k = kernels(level);
    nb::gil_scoped_release release;
    return k.multiply_adds(rounds);
}

// Strings of a GGUF file, each after its length in 8 bytes, from byte `at` on; and where they end. None if they are not all whole
// and UTF-8.
nb::object read_strings(Bytes data, size_t at, size_t count) {
    nb::list strings;
    for (size_t i = 0; i < count; ++i) {
        uint64_t length;
        if (at > data.size() || data.size() - at < sizeof length) return nb::none();
        std::memcpy(&length, data.data() + at, sizeof length);
        at += sizeof length;
        if (length > data.size() - at) return nb::none();
        nb::object text = nb::steal(PyUnicode_DecodeUTF8(reinterpret_cast<const char*>(data.data()) + at, static_cast<Py_ssize_t>(length), nullptr));
        if (!text.is_valid()) {
            PyErr_Clear();
            return nb::none();
        }
        strings.append(text);
        at += length;
    }
    return nb::make_tuple(strings, at);
}

Shape make_shape(int64_t num_layers, int64_t hidden, int64_t intermediate, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,
                 int64_t vocab, int64_t head, int64_t num_cells, int64_t num_positions, int64_t rope_dim, bool rope_interleaved,
                 bool coarse, bool gelu, float norm_eps, float embedding_scale, float score_scale) {
    return {num_layers, hidden, intermediate, num_heads, num_kv_heads, head_dim, vocab, head, num_cells, num_positions, rope_dim,
            rope_interleaved, coarse, gelu, norm_eps, embedding_scale, score_scale};
}

void release_memory() {
#if defined(__GLIBC__)
    nb::gil_scoped_release released;
    malloc_trim(0);
#endif
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "The C++ core of DraftGraph.";
    nb::exception<BadMatrix>(m, "BadMatrixError", PyExc_ValueError);
    nb::exception<BadLevel>(m, "BadLevelError", PyExc_ValueError);
    m.def("cpu_features", &cpu_feature_names, "Returns the names of the vector extensions that this CPU and its operating system offer.");
    m.def("compiler", &compiler_name, "Returns the compiler that built this extension, with its version.");
    m.def("kernel_levels", &kernel_levels, "Returns the names of the kernel levels that this CPU can run, fastest first.");
    m.def("likeliest", &likeliest, "rows"_a.noconvert(), "ids"_a.noconvert(),
          "Fills ids [rows, k] with the ids of each row's k largest values, largest first.");
    m.def("contenders", &contenders, "scores"_a.noconvert(), "key"_a, "margin"_a, "ids"_a.noconvert(),
          "Fills ids with those whose score + noise may lie within margin of the largest. Returns how many.");
    m.def("exp_sum", &exp_sum, "x"_a.noconvert(), "Returns the sum of exp(x), x <= 0.");
    m.def("release_memory", &release_memory, "Gives what was freed back to the system, where the allocator keeps it.");
    m.def("multiply_adds", &multiply_adds, "level"_a, "rounds"_a, "Does rounds * 1024 multiply-adds in registers; what it returns means nothing.");
    m.def("read_strings", &read_strings, "data"_a.noconvert(), "at"_a, "count"_a,
          "Returns a GGUF file's count strings from byte at on, and where they end; None if one is not whole or not UTF-8.");
    nb::class_<Tensor>(m, "Tensor").def(nb::init<uint32_t, int64_t, int64_t, Bytes>(), "type"_a, "outputs"_a, "inputs"_a, "data"_a.noconvert());
    nb::class_<Layer>(m, "Layer").def(
        nb::init<const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, Floats, Floats, Floats,
                 Floats, Floats, Floats, Floats, Floats, Floats, int64_t, bool>(),
        nb::kw_only(), "q"_a, "k"_a, "v"_a, "o"_a, "gate"_a, "up"_a, "down"_a, "attn_norm"_a.noconvert(), "ffn_norm"_a.noconvert(),
        "q_bias"_a.noconvert(), "k_bias"_a.noconvert(), "v_bias"_a.noconvert(), "q_norm"_a.noconvert(), "k_norm"_a.noconvert(),
        "post_attn_norm"_a.noconvert(), "post_ffn_norm"_a.noconvert(), "window"_a, "local_rope"_a);
    nb::class_<Shape>(m, "Shape").def(
        nb::new_(&make_shape), nb::kw_only(), "num_layers"_a, "hidden"_a, "intermediate"_a, "num_heads"_a, "num_kv_heads"_a, "head_dim"_a,
        "vocab"_a, "head"_a, "num_cells"_a, "num_positions"_a, "rope_dim"_a, "rope_interleaved"_a, "coarse"_a, "gelu"_a, "norm_eps"_a,
        "embedding_scale"_a, "score_scale"_a);
    nb::class_<Linear>(m, "Linear")
        .def("__init__", [](Linear* self, const Tensor& tensor, int threads, const std::string& level) {
            new (self) Linear(tensor.view, threads, level);
        }, "tensor"_a, "threads"_a, "level"_a)
        .def("multiply", &multiply, "x"_a.noconvert(), "out"_a.noconvert());
    nb::class_<Decoder>(m, "Decoder")
        .def("__init__", &make_decoder, nb::kw_only(), "shape"_a, "embedding"_a.none(), "head"_a, "layers"_a, "final_norm"_a.noconvert(),
             "cos"_a.noconvert(), "sin"_a.noconvert(), "local_cos"_a.noconvert(), "local_sin"_a.noconvert(), "threads"_a, "level"_a, "packed"_a,
             nb::keep_alive<1, 3>())
        .def("forward", &forward, "tokens"_a.noconvert(), "positions"_a.noconvert(), "offsets"_a.noconvert(), "cells"_a.noconvert(),
             "wanted"_a.noconvert(), "logits"_a.noconvert())
        .def("move_cells", &move_cells, "source"_a.noconvert(), "target"_a.noconvert())
        .def("read_cells", &read_cells, "layer"_a, "cells"_a.noconvert(), "keys"_a.noconvert(), "values"_a.noconvert())
        .def("set_head_tile", &set_head_tile, "tile"_a, "rows"_a.noconvert())
        .def_prop_ro("level", [](const Decoder& d) { return d.level(); })
        .def_prop_ro("weight_bytes", &Decoder::weight_bytes);
}
