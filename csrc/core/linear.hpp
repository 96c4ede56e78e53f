// One matrix by itself: what the decoder does to it, for tests.
#pragma once

#include <string>
#include <vector>

#include "core/decoder.hpp"

namespace draftgraph {

class Linear {
public:
    // Packs the tensor. Throws BadMatrix if its data and shape disagree.
    Linear(const TensorView& tensor, int threads, const std::string& level);

    int64_t outputs() const { return matrix_.outputs; }
    int64_t inputs() const { return matrix_.inputs; }

    // out [rows][outputs] = x [rows][inputs], quantised as the type asks, times the matrix transposed.
    void multiply(int64_t rows, const float* x, float* out);

private:
    const Kernels& k_;
    std::shared_ptr<Team> team_;
    Matrix matrix_;
};

}  // namespace draftgraph
