// Marks a function as part of the library's C interface.
#pragma once

#define PLIMSOLL_EXPORT extern "C" __attribute__((visibility("default")))
