// Packed weights in a file of their own, so that the next start need not pack them.
// The file's name says what model it belongs to; its head and its length say whether it is whole.
#pragma once

#include <string>
#include <vector>

#include "core/matrix.hpp"
#include "core/team.hpp"

namespace draftgraph {

// Fills the matrices' data from the file, with all threads. False, and the data is not to be used, if there is no file, or it
// is not whole, or of another layout.
bool read_packed(const std::string& path, const std::vector<Matrix*>& matrices, Team& team);

// Writes the file beside its place and then moves it there, after removing what killed writers left in the folder. False if it
// cannot be written; then nothing is left, nor what stood there and was not whole.
bool write_packed(const std::string& path, const std::vector<Matrix*>& matrices);

}  // namespace draftgraph
