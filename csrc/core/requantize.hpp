// Coarser weights for a model whose results need not be exact: a draft model only guesses.
// In: a row of any type. Out: the same row as Q4_0 blocks. Knows no model and no thread.
#pragma once

#include <cstdint>

#include "core/matrix.hpp"

namespace draftgraph {

// Whether a matrix gets smaller as Q4_0: its type has more bits a weight, and its rows are whole blocks of 32.
bool shrinks(Type type, int64_t inputs);

// Writes x [inputs] as Q4_0 blocks. The scale of 32 values is, of several around the usual one, that with the least squared
// error; large values count more, as the square root of their squares and the mean of all squares.
void quantize_row_q4_0(const float* x, int64_t inputs, uint8_t* out);

// Repacks tile t of a Q4_0 matrix from its rows of the file, which are of `type`.
void pack_tile_q4_0(Matrix& matrix, Type type, int64_t t, const uint8_t* rows);

}  // namespace draftgraph
