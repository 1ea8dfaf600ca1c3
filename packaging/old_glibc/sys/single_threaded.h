// glibc has this header since 2.32. libstdc++ looks for it, and would use what 2.28 does not have.
#pragma once

constexpr char __libc_single_threaded = false;
