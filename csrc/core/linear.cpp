#include "core/linear.hpp"

#include <cstring>

namespace draftgraph {

Linear::Linear(const TensorView& tensor, int threads, const std::string& level)
    : k_(kernels(level)), team_(Team::of(threads)), matrix_(make_matrix(tensor.type, tensor.outputs, tensor.inputs, tensor.bytes)) {
    team_->run([&](int index) {
        const Share share(matrix_.tiles(), index, team_->size());
        pack_tiles(matrix_, tensor.data, share.begin, share.end);
    });
}

void Linear::multiply(int64_t rows, const float* x, float* out) {
    const int block = type_info(matrix_.type).block;
    const int64_t n = matrix_.inputs, stride = matrix_.tiles() * kTile;
    std::vector<int8_t> q(static_cast<size_t>(rows * n));
    std::vector<float> scale(static_cast<size_t>(rows * (n / 32 + 1))), totals(scale.size()), padded(static_cast<size_t>(rows * stride));
    std::vector<int32_t> sums(static_cast<size_t>(rows * (n / 16 + 1))), pairs(static_cast<size_t>(rows * (n / 64 + 1)));
    Activations a{q.data(), scale.data(), sums.data(), totals.data(), sums.data(), pairs.data(), x, n};
    team_->run([&](int index) {
        const Share mine(rows, index, team_->size());
        for (int64_t r = mine.begin; block > 1 && r < mine.end; ++r) k_.quantize(x + r * n, block, a, r, 0, n / block);
        team_->sync();
        const Share tiles(matrix_.tiles(), index, team_->size());
        k_.gemm(matrix_, a, rows, padded.data() + tiles.begin * kTile, stride, tiles.begin, tiles.end);
    });
    for (int64_t r = 0; r < rows; ++r)
        std::memcpy(out + r * matrix_.outputs, padded.data() + r * stride, sizeof(float) * static_cast<size_t>(matrix_.outputs));
}

}  // namespace draftgraph
