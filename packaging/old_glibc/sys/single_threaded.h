// glibc has had a header of this name since version 2.32. This file hides that header from
// libstdc++, which would otherwise use a variable that glibc 2.28 does not have.
#pragma once

constexpr char __libc_single_threaded = false;
