// What happens to a sum before it is stored, as oneDNN's attributes.
#pragma once

#include "onednn/steps.hpp"

namespace nnstretch::library {

// Whether oneDNN has the function.
bool has_activation(const Activation& activation);
void append_activation(dnnl::post_ops& operations, const Activation& activation);
void append_linear(dnnl::post_ops& operations, float factor, float shift);
// Attributes with the caller's working memory; `residual` null for none.
dnnl::primitive_attr attributes_of(float scale, const Desc* residual, const Activation& activation);

}  // namespace nnstretch::library
