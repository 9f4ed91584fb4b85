// Elements that a busy runtime has to bear: they fail, refuse, and lie about what they support.
#pragma once

#include <string>
#include <vector>

#include "nnstretch/nnstretch.h"

struct BadUnit {
  const nns_element* element;
  int unit;
};

// Two units that fail now and then, and one that supports less than the costs say.
std::vector<BadUnit> bad_units();

// One that refuses to prepare the third call that it says it supports.
const nns_element* refusing_element();

// What must not be, empty where nothing was: one unit called from two threads at once, or calls that
// were prepared and not released.
std::string spoilt_by_vendors();
