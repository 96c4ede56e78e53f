// draftgraph._native: checks arguments, releases the GIL, calls the core. No logic here.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "core/cpu_features.hpp"

namespace nb = nanobind;

NB_MODULE(_native, m) {
    m.doc() = "The C++ core of DraftGraph.";
    m.def("cpu_features", &draftgraph::cpu_feature_names,
          "Returns the names of the vector extensions that this CPU and its operating system offer.");
    m.def("compiler", &draftgraph::compiler_name, "Returns the compiler that built this extension, with its version.");
}
