// glibc has this header since 2.32. This file hides a newer glibc's header from libstdc++, which
// would otherwise use a variable that glibc 2.28 does not have.
#pragma once

constexpr char __libc_single_threaded = false;
